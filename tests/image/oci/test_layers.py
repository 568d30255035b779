"""Which entry of which layer is what in the end, against rules written down another way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bootseer.errors import Corrupt
from bootseer.image.oci.layers import LayerMerge, source_of
from bootseer.tar import BLOCK, CHARACTER, FILE, FOLDER, HARD_LINK, SYMLINK, Member

NAMES = ("a", "b", "c")
KINDS = (FILE, FILE, FOLDER, FOLDER, SYMLINK, HARD_LINK, CHARACTER)

paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
targets = st.one_of(paths, paths.map(lambda path: f"/{path}"), paths.map(lambda path: f"../{path}"))


@st.composite
def members(draw, kinds=KINDS):
    kind, name = draw(st.sampled_from(kinds)), draw(paths)
    if kind == SYMLINK:
        return Member(name, kind, link=draw(targets))
    return Member(name, kind, link=draw(paths) if kind == HARD_LINK else "")


hidings = st.tuples(
    st.one_of(st.just(""), paths.map(lambda path: f"{path}/")),
    st.sampled_from([*(f".wh.{name}" for name in NAMES), ".wh..wh..opq"]),
).map(lambda parts: Member("".join(parts), FILE))


def stacks(added):
    """Layers, each as what it hides and what it adds."""
    layer = st.tuples(st.lists(hidings, max_size=3), st.lists(added, max_size=8))
    return st.lists(layer, max_size=4)


@dataclass(eq=False)
class Thing:
    """What a name stands for in the model; equal only to itself, as files are."""

    kind: str
    source: int = -1
    link: str = ""


class Model:
    """A dict from paths to things; a path is a tuple, the root's is ()."""

    def __init__(self):
        self.things = {(): Thing(FOLDER)}

    def resolve(self, parts, links=0):
        """Where a folder's path leads, whether something is there or not."""
        at = ()
        for index, part in enumerate(parts):
            if part in ("", "."):
                continue
            if part == "..":
                at = at[:-1]
                continue
            thing = self.things.get((*at, part))
            if thing is not None and thing.kind == SYMLINK:
                if links == 40:
                    raise Corrupt("model")
                start = () if thing.link.startswith("/") else at
                return self.resolve(
                    (*start, *thing.link.split("/"), *parts[index + 1 :]), links + 1
                )
            at = (*at, part)
            if thing is not None and thing.kind != FOLDER:
                return (*at, *parts[index + 1 :])  # there is nothing below
        return at

    def below(self, path):
        return [p for p in self.things if p[: len(path)] == path and p != path]

    def remove(self, path):
        for p in [*self.below(path), path]:
            self.things.pop(p, None)

    def hide(self, member):
        *above, name = member.name.split("/")
        folder = self.resolve(above)
        if name == ".wh..wh..opq":
            for path in self.below(folder):
                self.remove(path)
        else:
            self.remove((*folder, name[4:]))

    def add(self, source, member):
        *above, name = member.name.split("/")
        thing = Thing(member.kind, source, member.link)
        folder = self.resolve(above)
        for length in range(1, len(folder) + 1):
            if self.things.setdefault(folder[:length], Thing(FOLDER)).kind != FOLDER:
                raise Corrupt("model")
        path = (*folder, name)
        old = self.things.get(path)
        if old is None or old.kind != FOLDER or member.kind != FOLDER:
            self.remove(path)
        if member.kind == HARD_LINK:
            *link_above, link_name = member.link.split("/")
            thing = self.things.get((*self.resolve(link_above), link_name))
            if thing is None or thing.kind == FOLDER:
                raise Corrupt("model")
        self.things[path] = thing

    def outcome(self):
        """Names of every file's source, as a plan says it."""
        names = {}
        for path, thing in self.things.items():
            if path and thing.kind not in (CHARACTER, BLOCK):
                names.setdefault(thing.source, set()).add("/".join(path))
        return names


def merged(layers):
    merge = LayerMerge(1000)
    for number, layer in enumerate(layers):
        for index, member in enumerate(layer):
            merge.add(number, index, member)
    return merge.finish()


def outcome(plan):
    names = {source: set(found) for source, found in plan.names.items()}
    assert sum(map(len, plan.names.values())) == sum(map(len, names.values()))
    return names | ({-1: set(plan.implied)} if plan.implied else {})


@settings(max_examples=500, deadline=None)
@given(stacks(members()))
def test_any_stack_of_layers_is_merged_by_the_rules(stack):
    model, expected = Model(), None
    layers = [[*hidden, *added] for hidden, added in stack]
    try:
        for number, layer in enumerate(layers):
            hidden = len(stack[number][0])
            for index, member in enumerate(layer):
                if index < hidden:
                    model.hide(member)
                else:
                    model.add(source_of(number, index), member)
        expected = model.outcome()
    except Corrupt:
        with pytest.raises(Corrupt):
            merged(layers)
        return
    assert outcome(merged(layers)) == expected


@settings(deadline=None)
@given(stacks(members((FILE, FILE, FOLDER))), st.data())
def test_where_a_whiteout_stands_in_its_layer_does_not_matter(stack, data):
    first = [[*hidden, *added] for hidden, added in stack]
    shuffled = []
    for hidden, added in stack:
        layer = list(added)
        for member in hidden:
            layer.insert(data.draw(st.integers(0, len(layer))), member)
        shuffled.append(layer)
    try:
        results = [described(layers) for layers in (first, shuffled)]
    except Corrupt:
        assume(False)
    assert results[0] == results[1]


def described(layers):
    """By name, which member it is; folders are all alike, described by an entry or not."""
    plan = merged(layers)
    found = dict.fromkeys(plan.implied, FOLDER)
    for source, names in plan.names.items():
        number, index = divmod(source, source_of(1, 0))
        member = layers[number][index]
        for name in names:
            found[name] = FOLDER if member.kind == FOLDER else (number, id(member))
    return found


def plan_of(*layers):
    return merged(
        [
            [Member(*entry) if isinstance(entry, tuple) else entry for entry in layer]
            for layer in layers
        ]
    )


def names_of(plan):
    return {name for names in plan.names.values() for name in names}


def test_a_name_below_a_link_lies_where_the_link_leads():
    plan = plan_of(
        [("usr/lib", FOLDER), Member("lib", SYMLINK, link="usr/lib")],
        [("lib/x", FILE), Member("usr/up", SYMLINK, link="../etc"), ("usr/up/y", FILE)],
        [Member("usr/root", SYMLINK, link="/etc"), ("usr/root/z", FILE), ("lib/.wh.x", FILE)],
        [Member("out", SYMLINK, link="../../../usr"), ("out/lib/w", FILE)],
    )
    links = {"lib", "usr/up", "usr/root", "out"}
    assert names_of(plan) == links | {"usr/lib", "etc/y", "etc/z", "usr/lib/w"}


@pytest.mark.parametrize("hiding", [".wh.a", "a/.wh..wh..opq"])
def test_a_whiteout_spares_only_what_its_own_layer_has(hiding):
    lower = [("a/x", FILE), ("a/b/y", FILE), ("a/c", FOLDER)]
    plan = plan_of(lower, [("a/b/new", FILE), (hiding, FILE)])
    assert names_of(plan) == {"a/b/new"} and set(plan.implied) == {"a", "a/b"}


def test_a_hard_link_to_a_symbolic_link_leads_where_that_leads():
    link = [("d", FOLDER), Member("l", SYMLINK, link="d"), Member("h", HARD_LINK, link="l")]
    plan = plan_of(link, [("h/x", FILE)])
    assert plan.names[source_of(0, 1)] in (["l", "h"], ["h", "l"])
    assert names_of(plan) == {"d", "l", "h", "d/x"}


def test_a_hard_link_keeps_what_its_target_was():
    first = [("a", FILE), Member("b", HARD_LINK, link="a"), Member("./c", HARD_LINK, link="/b")]
    plan = plan_of(first, [("a", FILE), (".wh.b", FILE)])
    assert plan.names == {source_of(0, 0): ["c"], source_of(1, 0): ["a"]}


def test_the_last_root_counts_and_what_aufs_left_does_not():
    plan = plan_of(
        [Member("./", FOLDER, mode=0o700), (".wh..wh.plnk/12.34", FILE), (".wh..wh.aufs", FILE)],
        [Member("/", FOLDER, mode=0o711)],
    )
    assert plan.root is not None and plan.root.mode == 0o711
    assert not plan.names and not plan.implied


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ([("../a", FILE)], "would lead out"),
        ([("a/../b", FILE)], "would lead out"),
        ([("a/..", FOLDER)], "would lead out"),
        ([(".", FILE)], "root folder is something else"),
        ([("a" * 256, FILE)], "name is too long"),
        ([("ä" * 128, FILE)], "name is too long"),
        ([("a/" * 2048, FOLDER)], "name is too long"),
        ([("a", FILE), ("a/b", FILE)], "'a' in it is not one"),
        ([Member("a", SYMLINK)], "points nowhere"),
        ([Member("a", SYMLINK, link="b" * 4096)], "points nowhere"),
        ([Member("a", SYMLINK, link="a"), ("a/b", FILE)], "without an end"),
        ([Member("a", SYMLINK, link="a/" * 1000), ("a/b", FILE)], "without an end"),
        ([Member("a", HARD_LINK, link="b")], "'b', which is not there"),
        ([("a", FILE), Member("a", HARD_LINK, link="a")], "'a', which is not there"),
        ([("a/b", FILE), Member("a", HARD_LINK, link="a/b")], "'a/b', which is not there"),
        ([Member("a", HARD_LINK)], "'', which is not there"),
        ([Member("a", HARD_LINK, link="../b")], "would lead out"),
        ([("b", FOLDER), Member("a", HARD_LINK, link="b")], "'b', which is a folder"),
        ([(".wh.", FILE)], "hides no name"),
        ([("a", FOLDER), ("a/.wh...", FILE)], "hides no name"),
        ([("/".join("abcdefgh" * 20), FILE)] * 10, "more files in it"),
        ([(f"{i}", FILE) for i in range(200)], "more files in it"),
    ],
)
def test_what_is_not_acceptable_is_refused(layer, message):
    merge = LayerMerge(100)
    with pytest.raises(Corrupt, match=message):
        for index, entry in enumerate(layer):
            merge.add(0, index, entry if isinstance(entry, Member) else Member(*entry))


LONGEST = "/".join(["d" * 255] * 16)
"""Of 4,095 bytes."""


@pytest.mark.parametrize("name", ["a" * 255, "ä" * 127, "\U0001f600" * 63, "\udcff" * 255, LONGEST])
def test_the_longest_names_that_linux_has_are_taken(name):
    assert names_of(plan_of([(name, FILE)])) == {name}


@pytest.mark.parametrize(
    "name",
    ["\U0001f600" * 64, "\udcff" * 256, f"{LONGEST}/", "ä/" * 1365 + "a", "a/" * 2047 + "aa"],
)
def test_a_byte_more_is_too_long(name):
    with pytest.raises(Corrupt, match="name is too long"):
        plan_of([(name, FOLDER)])


@pytest.mark.parametrize("target", [LONGEST, "a" * 4095])
def test_the_longest_links_are_taken(target):
    plan = plan_of([Member("l", SYMLINK, link=target)])
    assert names_of(plan) == {"l"}


def test_as_many_entries_as_allowed_are_taken_with_the_folders_above_them():
    merge = LayerMerge(4)
    for index, name in enumerate(("a", "b/c", "b")):
        merge.add(0, index, Member(name, FOLDER))
    with pytest.raises(Corrupt, match="more files in it"):
        merge.add(0, 3, Member("d", FILE))


def test_as_much_text_as_allowed_is_taken(monkeypatch):
    monkeypatch.setattr("bootseer.image.oci.layers._MAX_TEXT_BYTES", 12)
    merge = LayerMerge(10)
    merge.add(0, 0, Member("abc", SYMLINK, link="defg"))
    merge.add(0, 1, Member("h" * 5, FILE))
    assert names_of(merge.finish()) == {"abc", "h" * 5}
    merge = LayerMerge(10)
    merge.add(0, 0, Member("abc", SYMLINK, link="defg"))
    with pytest.raises(Corrupt, match="longer names"):
        merge.add(0, 1, Member("h" * 6, FILE))


def test_forty_links_are_followed_on_the_way_to_one_name():
    links = [Member(f"l{i}", SYMLINK, link=f"l{i - 1}" if i else "d") for i in range(41)]
    assert "d/x" in names_of(plan_of([*links, ("l39/x", FILE)]))
    with pytest.raises(Corrupt, match="'l40' lies behind symbolic links without an end"):
        plan_of([*links, ("l40/x", FILE)])
    between = [*links, ("d/m", FOLDER), Member("d/m/n", SYMLINK, link="/l19")]
    assert "d/x" in names_of(plan_of([*between, ("l18/m/n/x", FILE)]))
    with pytest.raises(Corrupt, match="without an end"):
        plan_of([*between, ("l19/m/n/x", FILE)])


def test_a_device_is_listed_by_all_its_names_and_is_no_file():
    plan = plan_of(
        [("c", CHARACTER), Member("d/b", BLOCK), Member("e", HARD_LINK, link="c"), ("f", FILE)]
    )
    assert sorted(plan.devices) == ["c", "d/b", "e"]
    assert names_of(plan) == {"f"} and plan.implied == ["d"]


def test_without_an_entry_the_root_is_not_described():
    assert plan_of([("a", FILE)]).root is None


def test_a_layer_that_hides_a_folder_again_and_again_has_it_looked_at_once():
    class Counted(dict):
        looks = 0

        def items(self):
            self.looks += 1
            return super().items()

    merge = LayerMerge(1000)
    root = merge._root.children = Counted()
    for index in range(100):
        merge.add(0, index, Member(f"a{index}", FILE))
    for layer in (1, 2):
        merge.add(layer, 0, Member("b", FILE))
        for index in range(1, 50):
            merge.add(layer, index, Member(".wh..wh..opq", FILE))
            assert set(root) == {"b"}
    assert root.looks == 2


def test_what_is_hidden_stays_so_when_its_folder_is_described_anew():
    again = [("a/.wh..wh..opq", FILE), ("a", FOLDER)] * 2
    plan = plan_of([("a/x", FILE)], [("a", FOLDER), *again, ("a/y", FILE)], again)
    assert names_of(plan) == {"a"}


def test_long_links_are_not_followed_without_end(monkeypatch):
    monkeypatch.setattr("bootseer.image.oci.layers._MAX_TEXT_BYTES", 100_000)
    merge = LayerMerge(100_000)
    merge.add(0, 0, Member("l", SYMLINK, link="../" * 1000 + "a"))
    with pytest.raises(Corrupt, match="longer names"):
        for index in range(1, 100):
            merge.add(0, index, Member(f"l/{index}", FILE))


def test_links_do_not_make_names_too_long():
    """Each step is short, all together are no path that Linux could open."""
    merge = LayerMerge(100_000)
    deep = "/".join(["d" * 200] * 18)
    merge.add(0, 0, Member(deep, FOLDER))
    merge.add(0, 1, Member("l", SYMLINK, link=deep))
    merge.add(0, 2, Member(f"l/{deep}", FOLDER))
    with pytest.raises(Corrupt, match="name is too long"):
        merge.finish()

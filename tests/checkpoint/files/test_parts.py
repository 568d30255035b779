"""Where parts are found, and who may take them away: what marks and links say."""

import pytest

from bootseer.checkpoint.files import parts as parts_module
from bootseer.checkpoint.files.parts import (
    FROM,
    Parts,
    is_link,
    is_of_move,
    making_folder,
    parts_beside,
    parts_folder,
    parts_of,
    was_named,
)
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest
from bootseer.errors import Conflict, Denied, NoSpace, NotFound, OverQuota, Transient
from bootseer.store.api.base import ObjectInfo, publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore

ID = "0" * 32
LAYOUT = StripeManifest(1, 4096, ID, 1, ())


class Watched(WrappedStore):
    """Notes what is done; some of it fails."""

    def __init__(self):
        super().__init__(MemoryStore())
        self.calls = []
        self.errors = {}

    async def around(self, operation, name, call):
        self.calls.append((operation, name))
        if operation in self.errors:
            raise self.errors[operation].again()
        return await call()

    def names(self, operation):
        return [name for found, name in self.calls if found == operation]


@pytest.fixture
def store():
    return Watched()


@pytest.fixture
def parts(store):
    return Parts(store)


async def put(store, folder, *marks):
    """Put a part into a folder, and marks."""
    await publish(store, f"{folder}/0000", b"part")
    for mark in marks:
        await store.mkdir(f"{folder}/{mark}")


async def marks_in(store, folder):
    """The kinds of the marks in a folder."""
    found = [info.name.rpartition("/")[2] for info in await store.list(folder) if info.is_folder]
    return sorted(name.partition("-")[0] for name in found)


async def content(store, folder):
    return [info.name.rpartition("/")[2] for info in await store.list(folder)]


BESIDE = parts_folder("a", ID)
"""Of `a/f`."""
ELSEWHERE = parts_folder("b", ID)


async def link(store, folder, text, name="1"):
    await publish(store, f"{parts_of(folder)}/{FROM}{name}", text.encode())


# Names


def test_parts_are_beside_their_manifest():
    assert parts_of("") == PARTS_FOLDER
    assert parts_of("a/b") == f"a/b/{PARTS_FOLDER}"
    assert parts_beside("a/b/f", LAYOUT) == f"a/b/{PARTS_FOLDER}/{ID}"
    assert parts_beside("f", LAYOUT) == f"{PARTS_FOLDER}/{ID}"
    assert making_folder("a/f", ID) == f"a/{PARTS_FOLDER}/making-{ID}"


@pytest.mark.parametrize(
    ("name", "is_folder", "link", "of_move"),
    [
        ("from-1", False, True, True),
        ("from-1", True, False, False),
        ("leaving-1", True, False, True),
        ("making-1", True, False, False),
        ("x-from-1", False, False, False),
        (ID, True, False, False),
    ],
)
def test_what_is_there_while_a_file_moves_is_known_by_its_name(name, is_folder, link, of_move):
    info = ObjectInfo(f"a/{PARTS_FOLDER}/{name}", 0, 0, is_folder=is_folder)
    assert (is_link(info), is_of_move(info)) == (link, of_move)


# Finding them


async def test_parts_are_looked_for_beside_the_file_first(store, parts):
    await put(store, BESIDE)
    await put(store, ELSEWHERE)
    await link(store, "a", "../b")
    store.calls.clear()
    folder, found = await parts.find("a/f", LAYOUT)
    assert (folder, [info.name for info in found]) == (BESIDE, [f"{BESIDE}/0000"])
    assert store.calls == [("list", BESIDE)]


@pytest.mark.parametrize("text", ["../b", "/b", "../none\n/b", "../../x\n/b", "../b/c/.."])
async def test_parts_are_found_where_a_link_leads(store, parts, text):
    await store.mkdir(f"{BESIDE}/held-1")  # which is no part
    await put(store, ELSEWHERE)
    await link(store, "a", text)
    assert (await parts.find("a/f", LAYOUT))[0] == ELSEWHERE


async def test_parts_are_found_behind_several_links(store, parts):
    await put(store, ELSEWHERE)
    await link(store, "a", "../c")
    await link(store, "c", "../d")
    await link(store, "c", "../a", "2")
    await link(store, "d", "../b")
    assert [folder async for folder in parts.folders("a/f", LAYOUT)] == [
        BESIDE,
        *(parts_folder(folder, ID) for folder in "cdb"),
        BESIDE,
    ]
    assert (await parts.find("a/f", LAYOUT))[0] == ELSEWHERE


@pytest.mark.parametrize(("most", "found"), [(2, 1), (3, 2), (9, 4)])
async def test_so_many_folders_are_looked_into_and_no_more(store, parts, monkeypatch, most, found):
    monkeypatch.setattr(parts_module, "_MOST_FOLDERS", most)
    for number in range(4):
        await link(store, "a", f"../b{number}", str(number))
    folders = [folder async for folder in parts.folders("a/f", LAYOUT)]
    assert len(folders) == found + 2


@pytest.mark.parametrize("text", ["", "\udcff", "../..", "x" * 5000])
async def test_a_link_that_leads_nowhere_is_none(store, parts, text):
    await publish(store, f"{parts_of('a')}/{FROM}1", text.encode("utf-8", "surrogateescape"))
    with pytest.raises(NotFound, match="'a/f': its parts are missing"):
        await parts.find("a/f", LAYOUT)


async def test_where_there_are_no_links_it_is_looked_once(store, parts):
    assert [folder async for folder in parts.folders("a/f", LAYOUT)] == [BESIDE]


async def test_a_link_leads_there_from_where_it_is_and_from_the_root(store, parts):
    made = await parts.link("a/b/f", "c/f")
    assert made.startswith(f"{parts_of('c')}/{FROM}")
    assert await read_all(store, made, 4096) == b"../a/b\n/a/b"
    await parts.unlink(made)
    assert await content(store, parts_of("c")) == []
    await parts.unlink(made)
    made = await parts.link("f", "c/f")
    await put(store, parts_folder("", ID))
    assert (await parts.find("c/f", LAYOUT))[0] == parts_folder("", ID)


# Whose they are


async def test_parts_without_a_mark_are_those_of_who_finds_them(store, parts):
    await put(store, BESIDE)
    assert await parts.find_own("a/f", LAYOUT) == BESIDE
    await parts.move_away("a/f", LAYOUT, "kept")
    assert await content(store, "kept") == ["0000"]
    assert await parts.find_own("a/f", LAYOUT) is None
    with pytest.raises(NotFound, match="'a/f'"):
        await parts.move_away("a/f", LAYOUT, "kept")


async def test_parts_are_of_the_name_that_they_are_marked_with(store, parts):
    await put(store, BESIDE)
    await parts.mark("a/f", LAYOUT, "a/g")
    assert was_named(await store.list(BESIDE))
    assert await parts.find_own("a/f", LAYOUT) is None
    assert await parts.find_own("a/g", LAYOUT) == BESIDE
    await parts.mark("a/f", LAYOUT, "a/f")
    assert await parts.find_own("a/g", LAYOUT) is None


async def test_what_is_nowhere_is_not_marked(store, parts):
    await parts.mark("a/f", LAYOUT, "a/g")
    assert store.names("mkdir") == []


async def test_parts_that_somebody_holds_are_nobody_s_own(store, parts):
    await put(store, BESIDE)
    async with parts.held(BESIDE):
        assert await marks_in(store, BESIDE) == ["held"]
        assert not was_named(await store.list(BESIDE))
        assert await parts.find_own("a/f", LAYOUT) is None
    assert await parts.find_own("a/f", LAYOUT) == BESIDE


async def test_parts_are_let_go_where_they_have_moved_to(store, parts):
    await put(store, BESIDE)
    async with parts.held(BESIDE, ELSEWHERE):
        await store.rename(BESIDE, ELSEWHERE)
    assert await content(store, ELSEWHERE) == ["0000"]


@pytest.mark.parametrize("where", [0, 1])
async def test_the_first_parts_that_are_there_look_as_if_just_put_to(store, parts, where):
    folders = [BESIDE, ELSEWHERE]
    for folder in folders[where:]:
        await put(store, folder)
        await store.set_mtime(folder, 0)
    await parts.touch(*folders)
    times = [(await store.stat(folder)).mtime_ns > 0 for folder in folders[where:]]
    assert times == [True, False][: len(times)]
    assert await content(store, folders[where]) == ["0000"]
    assert await content(store, parts_of("a")) == ([] if where else [ID])


# Taking a name away


async def test_parts_of_a_name_that_leaves_are_nobody_s_own(store, parts):
    await put(store, BESIDE)
    async with parts.leaving("a/f"):
        assert await parts.find_own("a/f", LAYOUT) is None
        assert await parts.find_own("a/g", LAYOUT) == BESIDE
        async with parts.leaving("a/f"):
            pass
        assert await parts.find_own("a/f", LAYOUT) is None, "there are two"
    assert await parts.find_own("a/f", LAYOUT) == BESIDE
    assert await content(store, parts_of("a")) == [ID]


@pytest.mark.parametrize(
    ("error", "stays"), [(Conflict("x"), False), (NotFound("x"), False), (Transient("x"), True)]
)
async def test_a_name_leaves_as_long_as_it_is_not_known_that_it_stays(store, parts, error, stays):
    await put(store, BESIDE)
    with pytest.raises(type(error)):
        async with parts.leaving("a/f"):
            raise error
    assert await parts.find_own("a/f", LAYOUT) == (None if stays else BESIDE)
    assert len(await content(store, parts_of("a"))) == (2 if stays else 1)


@pytest.mark.parametrize("error", [Denied("x"), NoSpace("x"), OverQuota("x")])
async def test_where_nothing_can_be_marked_files_move_all_the_same(store, parts, error):
    await put(store, BESIDE)
    store.errors["mkdir"] = error
    async with parts.leaving("a/f"), parts.renamed("a/f", "a/g", LAYOUT):
        pass
    assert await content(store, BESIDE) == ["0000"]


async def test_a_mark_that_cannot_be_made_for_another_reason_is_an_error(store, parts):
    await put(store, BESIDE)
    store.errors["mkdir"] = Transient("x")
    with pytest.raises(Transient):
        async with parts.held(BESIDE):
            raise AssertionError("it is not held")


async def test_a_mark_that_cannot_be_removed_stays(store, parts):
    await put(store, BESIDE)
    async with parts.held(BESIDE, ELSEWHERE):
        store.errors["delete"] = Transient("x")
        store.calls.clear()
    assert [name.startswith(f"{BESIDE}/held-") for name in store.names("delete")] == [True]
    assert await marks_in(store, BESIDE) == ["held"]


# Moving


@pytest.mark.parametrize(
    ("target", "marks"),
    [("a/g", ["named", "named"]), ("b/g", ["held", "named", "named"]), ("b/f", ["held", "named"])],
)
async def test_parts_have_the_mark_of_where_a_file_moves(store, parts, target, marks):
    await put(store, BESIDE)
    await parts.mark("a/f", LAYOUT, "a/f")
    folder = parts_beside(target, LAYOUT)
    async with parts.renamed("a/f", target, LAYOUT):
        assert await parts.find_own("a/f", LAYOUT) is None
        assert await marks_in(store, BESIDE) == marks
        if folder != BESIDE:
            await store.rename(BESIDE, folder)
    assert await marks_in(store, folder) == ["named"]
    assert await parts.find_own(target, LAYOUT) == folder


@pytest.mark.parametrize("target", ["a/g", "b/g", "b/f"])
@pytest.mark.parametrize(
    ("error", "is_back"),
    [(Conflict("x"), True), (NotFound("x"), True), (Transient("x"), False)],
    ids=lambda value: type(value).__name__,
)
async def test_a_file_that_did_not_move_has_its_mark_alone(store, parts, target, error, is_back):
    """Unless it is not known whether it did."""
    await put(store, BESIDE)
    await parts.mark("a/f", LAYOUT, "a/f")
    with pytest.raises(type(error)):
        async with parts.renamed("a/f", target, LAYOUT):
            raise error
    is_back = is_back or target == "b/f"  # whose mark is the same
    assert await marks_in(store, BESIDE) == ["named"] * (1 if is_back else 2)
    assert await parts.find_own("a/f", LAYOUT) == (BESIDE if is_back else None)


# Bringing them


async def test_parts_that_are_beside_a_file_are_not_brought(store, parts):
    await put(store, BESIDE)
    assert not await parts.move_beside("a/f", LAYOUT)
    assert store.names("rename") == []


async def test_parts_are_brought_beside_a_file(store, parts):
    await put(store, ELSEWHERE, "named-1")
    await link(store, "a", "../b")
    assert await parts.move_beside("a/f", LAYOUT)
    assert await content(store, BESIDE) == ["0000", "named-1"]
    assert await content(store, parts_of("b")) == []
    assert not await parts.move_beside("a/f", LAYOUT)


async def test_parts_that_are_nowhere_cannot_be_brought(parts):
    with pytest.raises(NotFound):
        await parts.move_beside("a/f", LAYOUT)


async def test_marks_that_are_in_the_way_of_parts_go_with_them(store, parts):
    await put(store, ELSEWHERE)
    for mark in ("held-1", "named-2"):
        await store.mkdir(f"{BESIDE}/{mark}")
    await link(store, "a", "../b")
    assert await parts.move_beside("a/f", LAYOUT)
    assert await content(store, BESIDE) == ["0000", "held-1", "named-2"]
    assert await content(store, parts_of("b")) == []


@pytest.mark.parametrize("late", [False, True])
async def test_parts_that_somebody_else_brings_meanwhile_are_there(late):
    inner = MemoryStore()
    await put(inner, ELSEWHERE)
    await link(inner, "a", "../b")

    class Busy(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "rename" and name == ELSEWHERE:
                await inner.rename(ELSEWHERE, BESIDE)
                if late:
                    await put(inner, ELSEWHERE)  # and another has the same ones once more
            return await call()

    assert await Parts(Busy(inner)).move_beside("a/f", LAYOUT)
    assert await content(inner, BESIDE) == ["0000"]


async def test_parts_that_are_taken_away_meanwhile_are_missing():
    inner = MemoryStore()
    await put(inner, ELSEWHERE)
    await link(inner, "a", "../b")

    def taken(count, operation, name):
        if operation == "rename":
            inner._entries.clear()
        return False

    with pytest.raises(NotFound):
        await Parts(FlakyStore(inner, taken)).move_beside("a/f", LAYOUT)

"""The index of a snapshot says what was put into it, and refuses what no snapshot may hold."""

import hashlib
import stat
import struct
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootseer.core import table
from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.core.tree_rows import ENTRY as ENTRY_ROW
from bootseer.core.tree_rows import INODE as INODE_ROW
from bootseer.env.client.scan import TreeNode
from bootseer.env.snapshot import index
from bootseer.env.snapshot.index import ContentPlace, decode, encode, leads_out, open_rows
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.fuse.fastpath import TreeTable
from bootseer.squashfs.superblock import BLOCK_RAW
from bootseer.units import MIB

FOLDER = TreeNode("folder", 0o755, 0, 0, mtime_ns=7)


def file(size_bytes=0, **more):
    return TreeNode("file", 0o644, 0, 0, size_bytes=size_bytes, digest=bytes(32), **more)


def link(target):
    return TreeNode("link", 0o777, 0, 0, target=target)


def with_places(tree):
    places, start = {}, 96
    for path, node in tree.items():
        if node.kind == "file" and not node.same_as:
            count = -(-node.size_bytes // BLOCK_BYTES)
            places[path] = ContentPlace(start, tuple(range(100, 100 + count)))
            start += sum(places[path].blocks)
    return places


def round_trip(tree, deleted=(), outside=()):
    return decode(encode(tree, with_places(tree), deleted), "index", outside)


def test_links_are_counted_as_the_kernel_counts_them(tmp_path):
    tree = {b"": FOLDER, b"a": file(1), b"b": FOLDER, b"b/a": file(1, same_as=b"a"), b"b/c": FOLDER}
    for name in ("b", "b/c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a").touch()
    (tmp_path / "b/a").hardlink_to(tmp_path / "a")
    rows = open_rows(encode(tree, with_places(tree)), "index")
    links = [row[6] for row in INODE_ROW.iter_unpack(rows.inodes)]
    names = ("", "a", "b", "b/c")
    assert links == [(tmp_path / name).stat().st_nlink for name in names]


NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda n: n not in (b".", b"..") and not set(n) & {0, 47}
)
NODES = st.one_of(
    st.builds(file, st.integers(0, 1 << 20), mtime_ns=st.integers(-(1 << 62), 1 << 62)),
    st.builds(
        lambda name, value: file(1, xattrs=((b"user." + name, value),)),
        st.binary(min_size=1, max_size=9).filter(lambda n: 0 not in n),
        st.binary(max_size=9),
    ),
    st.just(link(b"x")),
    st.just(FOLDER),
)


@st.composite
def trees(draw):
    tree = {b"": FOLDER, b"0": FOLDER, b"1": FOLDER}
    folders = [b"0", b"1"]
    files = []
    for name, node in draw(st.lists(st.tuples(NAMES, NODES), max_size=30)):
        path = draw(st.sampled_from(folders)) + b"/" + name
        if path in tree:
            continue
        tree[path] = node
        if node.kind == "folder":
            folders.append(path)
        elif node.kind == "file":
            files.append(path)
    for name in draw(st.lists(NAMES, max_size=4)):
        path = draw(st.sampled_from(folders)) + b"/" + name
        if files and path not in tree:
            names = sorted([draw(st.sampled_from(files)), path])
            if names[0] != path:
                tree[path] = tree[names[0]]._replace(same_as=names[0])
    return dict(sorted(tree.items()))


@settings(deadline=None)
@given(trees())
def test_what_is_put_in_comes_out(tree):
    found = round_trip(tree, [b"0/gone/away"] if b"0/gone" not in tree else [])
    assert found.tree == tree
    assert list(found.tree) == sorted(tree)
    assert found.places == with_places(tree)
    assert found.deleted in ((b"0/gone/away",), ())


def test_owners_are_left_out():
    tree = {b"": FOLDER, b"0": FOLDER._replace(uid=5, gid=6)}
    assert round_trip(tree).tree[b"0"] == FOLDER


TREE = {
    b"": FOLDER,
    b"0": FOLDER,
    b"0/a": file(BLOCK_BYTES + 1, xattrs=((b"user.key", b"value"), (b"user.other", b""))),
    b"0/b": FOLDER,
    b"0/b/c": file(3),
    b"0/b/d": FOLDER,
    b"0/e": FOLDER,
    b"0/l": link(b"b/c"),
}
ROWS = {"inodes": 80, "entries": 12, "blocks": 4, "strings": 1, "deleted": 1}


def changed(change, tree=None, header=None, deleted=()):
    """Encode a tree, have its rows changed, and close it again with a good checksum."""
    tree = TREE if tree is None else tree
    data = encode(tree, with_places(tree), deleted)
    head, rows = table.open_table(index.MAGIC, index.VERSION, 4, data, "")
    rows = bytearray(rows)
    places, at = {}, 0
    for key, unit in ROWS.items():
        places[key] = at
        at += head[key] * unit + -(head[key] * unit) % 4
    change(rows, places)
    return table.close_table(index.MAGIC, index.VERSION, head | (header or {}), 4, bytes(rows))


def put(section, number, offset, layout, *values):
    def change(rows, places):
        at = places[section] + number * ROWS[section] + offset
        struct.pack_into(layout, rows, at, *values)

    return change


def rename(old, new):
    def change(rows, places):
        at = bytes(rows).index(old, places["strings"])
        rows[at : at + len(old)] = new

    return change


def both(*changes):
    def change(rows, places):
        for one in changes:
            one(rows, places)

    return change


def mode(path, mode):
    return put("inodes", INODE[path], 32, "<I", mode)


def child(path, number):
    return put("entries", ENTRY[path], 8, "<I", number)


INODE = {path: number for number, path in enumerate(sorted(TREE))}
ENTRY = {b"0": 0, b"0/a": 1, b"0/b": 2, b"0/e": 3, b"0/l": 4, b"0/b/c": 5, b"0/b/d": 6}
REFUSED = {
    "an empty name": put("entries", ENTRY[b"0/a"], 4, "<I", 0),
    "a name that goes up": rename(b"c", b"/"),
    "the folder itself": rename(b"a", b"."),
    "the folder above": both(
        rename(b"user.other", b"user.oth.."),
        put("entries", ENTRY[b"0/a"], 0, "<II", 38, 2),
        put("inodes", INODE[b"0/a"], 44, "<I", 0),
    ),
    "a zero in a name": rename(b"a", b"\0"),
    "names out of order": rename(b"a", b"z"),
    "the same name twice": rename(b"b", b"a"),
    "a device": mode(b"0/a", 0o020644),
    "a pipe": mode(b"0/a", 0o010644),
    "a socket": mode(b"0/l", 0o140777),
    "nothing that there is": mode(b"0/a", 0o644),
    "set-user-id": mode(b"0/a", 0o104755),
    "set-group-id": mode(b"0/b", 0o042755),
    "a link with set-user-id": mode(b"0/l", 0o124777),
    "a root with set-group-id": mode(b"", 0o042755),
    "bits that no mode has": mode(b"0/a", 0o100644 | 1 << 16),
    "a file for a root": mode(b"", 0o100644),
    "a file for a target": both(mode(b"0", 0o100644), put("entries", 0, 8, "<I", INODE[b"0/a"])),
    "a folder in itself": child(b"0/b/d", INODE[b"0/b"]),
    "a folder in two places": child(b"0/e", INODE[b"0/b"]),
    "a loop beside the tree": both(child(b"0/b/d", INODE[b"0/b"]), child(b"0/b", INODE[b"0/a"])),
    "the root again": child(b"0/b/c", 0),
    "an inode past the end": child(b"0/b/c", 99),
    "an inode that is nowhere": child(b"0/b/c", INODE[b"0/a"]),
    "a folder that is nowhere": child(b"0/e", INODE[b"0/a"]),
    "entries past the end": put("inodes", INODE[b"0/b"], 28, "<I", 99),
    "entries that are nowhere": put("inodes", INODE[b"0/b"], 28, "<I", 0),
    "entries that two folders share": both(
        put("inodes", INODE[b"0/e"], 24, "<II", ENTRY[b"0/b/c"], 1),
        put("inodes", INODE[b"0/b"], 28, "<I", 1),
    ),
    "entries of very many": put("inodes", INODE[b"0/e"], 24, "<II", 0xFFFFFFFF, 0xFFFFFFFF),
    "a name past the end": put("entries", ENTRY[b"0/b/c"], 0, "<I", 1 << 30),
    "a name that is too long": put("entries", ENTRY[b"0/b/c"], 4, "<I", 256),
    "a text that is another's too": both(
        put("inodes", INODE[b"0/l"], 0, "<Q", 10), put("inodes", INODE[b"0/l"], 16, "<Q", 30)
    ),
    "blocks past the end": put("inodes", INODE[b"0/a"], 24, "<I", 99),
    "blocks of another file": put("inodes", INODE[b"0/b/c"], 24, "<I", 0),
    "too few blocks for its length": put("inodes", INODE[b"0/a"], 0, "<Q", 1 << 40),
    "blocks that are nowhere": put("inodes", INODE[b"0/b/c"], 0, "<Q16xII", 0, 2, 0),
    "unreasonably large": put("inodes", INODE[b"0/a"], 0, "<Q", 1 << 62),
    "content unreasonably far": put("inodes", INODE[b"0/a"], 16, "<Q", (1 << 50) + 1),
    "a hole": put("blocks", 0, 0, "<I", 0),
    "a block of impossible length": put("blocks", 0, 0, "<I", BLOCK_BYTES + 1),
    "bits that no block's length has": put("blocks", 0, 0, "<I", 1 << 25 | 100),
    "content that two files share": put("inodes", INODE[b"0/b/c"], 16, "<Q", 97),
    "a link to nothing": put("inodes", INODE[b"0/l"], 0, "<Q", 0),
    "a link with a zero": rename(b"b/c", b"b\0c"),
    "a link past the end": put("inodes", INODE[b"0/l"], 16, "<Q", 1 << 40),
    "an attribute past its end": put("inodes", INODE[b"0/a"], 44, "<I", 3),
    "an attribute that is cut short": put("inodes", INODE[b"0/a"], 44, "<I", 18),
    "attributes past the end": put("inodes", INODE[b"0/a"], 40, "<I", 1 << 30),
    "an attribute that gives rights": rename(b"user.key", b"security"),
    "an attribute of the system's": rename(b"user.other", b"system.acl"),
    "a zero in an attribute's name": rename(b"user.key", b"user.k\0y"),
    "an attribute without a name": rename(b"\x08\0\5\0\0\0user.key", b"\5\0\x08\0\0\0user.key"),
}
UNPACKED_ONLY = {
    "a link out of the target": rename(b"b/c", b"/ec"),
    "another link out of it": rename(b"b/c", b".. "[:2] + b"/"),
}


def shown(data):
    """Open an index as a mount does."""
    return TreeTable(open_rows(data, "index"), 1 << 62, 0, 0)


@pytest.mark.parametrize("name", REFUSED | UNPACKED_ONLY)
def test_refused(name):
    with pytest.raises(Corrupt, match="index"):
        decode(changed((REFUSED | UNPACKED_ONLY)[name]), "index")


@pytest.mark.parametrize("name", REFUSED)
def test_a_mount_refuses_the_same(name):
    with pytest.raises(Corrupt, match="index"):
        shown(changed(REFUSED[name]))


def test_what_the_attacks_change_was_good():
    data = changed(lambda rows, places: None)
    assert decode(data, "index").tree == TREE
    shown(data)


@pytest.mark.parametrize("name", UNPACKED_ONLY)
def test_a_mount_shows_links_that_lead_out(name):
    shown(changed(UNPACKED_ONLY[name]))


DEEP = b"/".join([b"d" * 255] * 16)
LARGE = {
    "a name": (b"0/" + b"n" * 255, b"0/" + b"n" * 256),
    "a path": (b"0/" + DEEP[:4093], b"0/" + DEEP[:4094]),
}


@pytest.mark.parametrize("what", LARGE)
def test_lengths_of_paths(what):
    for path, is_good in zip(LARGE[what], (True, False), strict=True):
        tree = {b"": FOLDER, path: file(0)}
        while path := path.rpartition(b"/")[0]:
            tree[path] = FOLDER
        data = encode(tree, with_places(tree))
        for opened in (lambda data: decode(data, "index"), shown):
            if is_good:
                opened(data)
            else:
                with pytest.raises(Corrupt):
                    opened(data)


def test_all_paths_together_may_not_be_very_long():
    """A few bytes each would else stand for four thousand."""
    depth = 15
    count = 512 * MIB // (depth * 256 + 8) + 1
    strings = b"0" + b"d" * 255 * depth + b"".join(b"%06d" % number for number in range(count))
    folder = stat.S_IFDIR | 0o755
    inodes = [INODE_ROW.pack(0, 0, 0, n, 1, folder, 0, 0, 0, bytes(32)) for n in range(16)]
    inodes.append(INODE_ROW.pack(0, 0, 0, 16, count, folder, 0, 0, 0, bytes(32)))
    inodes.append(INODE_ROW.pack(0, 0, 0, 0, 0, stat.S_IFREG, 0, 0, 0, bytes(32)))
    entries = [ENTRY_ROW.pack(0, 1, 1)]
    entries += [ENTRY_ROW.pack(1 + 255 * n, 255, n + 2) for n in range(depth)]
    names = 1 + 255 * depth
    entries += [ENTRY_ROW.pack(names + 6 * n, 6, depth + 2) for n in range(count)]
    header = {"inodes": len(inodes), "entries": len(entries), "blocks": 0, "deleted": 0}
    header["strings"] = len(strings)
    rows = b"".join([*inodes, *entries, strings, bytes(-len(strings) % 4)])
    data = table.close_table(index.MAGIC, index.VERSION, header, 4, rows)
    assert len(data) < 4 * MIB
    for opened in (lambda data: decode(data, "index"), shown):
        with pytest.raises(Corrupt, match="index"):
            opened(data)


@pytest.mark.parametrize("extra", [0, 1])
def test_lengths_of_attributes_and_links(extra):
    value = bytes(64 * 1024 - 12 + extra)
    for node in (file(0, xattrs=((b"user.a", value),)), link(b"x" * (4095 + extra))):
        tree = {b"": FOLDER, b"0": FOLDER, b"0/x": node}
        data = encode(tree, with_places(tree))
        for opened in (lambda data: decode(data, "index"), shown):
            if extra:
                with pytest.raises(Corrupt, match="index"):
                    opened(data)
            else:
                opened(data)


@pytest.mark.parametrize("extra", [0, 1])
def test_lengths_of_names_of_attributes(extra):
    name = b"user." + b"n" * (250 + extra)
    tree = {b"": FOLDER, b"0": FOLDER, b"0/x": file(0, xattrs=((name, b"value"),))}
    data = encode(tree, with_places(tree))
    for opened in (lambda data: decode(data, "index"), shown):
        assert is_good(opened, data) is not bool(extra)


@pytest.mark.parametrize("extra", [0, 1])
def test_lengths_of_paths_that_are_to_be_deleted(extra):
    tree = {b"": FOLDER, b"0": FOLDER}
    path = b"1/" + DEEP[: 4093 + extra]
    data = encode(tree, {}, [path])
    assert is_good(lambda data: decode(data, "index"), data) is not bool(extra)


@pytest.mark.parametrize("fewer", [0, 1])
def test_all_paths_together_may_be_so_long(monkeypatch, fewer):
    monkeypatch.setattr(index, "MAX_PATHS_BYTES", sum(map(len, TREE)) - fewer)
    data = encode(TREE, with_places(TREE))
    assert is_good(lambda data: decode(data, "index"), data) is not bool(fewer)


NEXT = 96 + 100 + 101
"""Behind the blocks of the first file of `TREE` in the squashfs."""


@pytest.mark.parametrize(
    ("change", "good"),
    [
        (put("inodes", INODE[b"0/b/c"], 16, "<Q", NEXT), True),
        (put("inodes", INODE[b"0/b/c"], 16, "<Q", NEXT - 1), False),
        (put("inodes", INODE[b"0/a"], 16, "<Q", 0), True),
        (put("inodes", INODE[b"0/b/c"], 16, "<Q", 1 << 50), True),
        (put("blocks", 1, 0, "<I", 102), False),
        (put("blocks", 2, 0, "<I", BLOCK_BYTES), True),
        (put("blocks", 2, 0, "<I", BLOCK_BYTES + 1), False),
    ],
)
def test_how_far_content_may_be(change, good):
    data = changed(change)
    for opened in (lambda data: decode(data, "index"), shown):
        assert is_good(opened, data) is good


def encoded_rows(inodes, entries):
    """Encode rows without content: kinds, first entry and count of inodes; name and inode."""
    strings = b"".join(name for name, _ in entries)
    packed, at = [], 0
    for kind, first, count in inodes:
        packed.append(INODE_ROW.pack(0, 0, 0, first, count, kind | 0o755, 1, 0, 0, bytes(32)))
    for name, inode in entries:
        packed.append(ENTRY_ROW.pack(at, len(name), inode))
        at += len(name)
    header = {"inodes": len(inodes), "entries": len(entries), "blocks": 0, "deleted": 0}
    padded = strings + bytes(-len(strings) % 4)
    header["strings"] = len(strings)
    return table.close_table(index.MAGIC, index.VERSION, header, 4, b"".join([*packed, padded]))


IN, FILE = stat.S_IFDIR, stat.S_IFREG
NO_TREES = {
    "nothing": ([], []),
    "a folder that is in itself alone": ([(IN, 0, 1), (IN, 1, 1)], [(b"0", 1), (b"x", 1)]),
    "a folder with two names": (
        [(IN, 0, 1), (IN, 1, 2), (IN, 3, 0)],
        [(b"0", 1), (b"x", 2), (b"y", 2)],
    ),
    "a file twice with one name": (
        [(IN, 0, 1), (IN, 1, 2), (FILE, 0, 0)],
        [(b"0", 1), (b"x", 2), (b"x", 2)],
    ),
}


@pytest.mark.parametrize("name", NO_TREES)
def test_what_is_no_tree_is_refused(name):
    data = encoded_rows(*NO_TREES[name])
    for opened in (lambda data: decode(data, "index"), shown):
        with pytest.raises(Corrupt, match="index"):
            opened(data)


def test_a_file_with_two_names_is_a_tree():
    """As rows, it differs by a letter from what is none."""
    inodes, entries = NO_TREES["a file twice with one name"]
    found = decode(encoded_rows(inodes, [*entries[:2], (b"y", 2)]), "index")
    assert found.tree[b"0/y"].same_as == b"0/x"


def is_good(opened, data):
    try:
        opened(data)
    except Corrupt:
        return False
    return True


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["inodes", "inodes", "entries", "blocks", "strings"]),
        st.integers(0, 10_000),
        st.integers(0, 19),
        st.one_of(
            st.integers(0, 12),
            st.sampled_from([0xFFFFFFFF, 1 << 31, 255, 256, 4095, 4096, 1 << 24, BLOCK_BYTES]),
            st.sampled_from([0o100644, 0o040755, 0o120777, 0o104755, 0o041777, 0x2E2E2F00]),
        ),
    ),
    max_size=3,
)


@settings(deadline=None, max_examples=1000)
@given(trees(), EDITS)
def test_a_mount_refuses_what_is_refused_and_nothing_else(tree, edits):
    """Links may lead anywhere, and there is nothing to delete."""

    def change(rows, places):
        ends = [*places.values()][1:]
        for section, number, word, value in edits:
            start, stop = places[section], ends[list(places).index(section)]
            unit = max(ROWS[section], 4)
            if stop - start >= unit:
                at = start + number % ((stop - start) // unit) * unit + word * 4 % unit
                struct.pack_into("<I", rows, at, value)

    data = changed(change, tree)
    with patch.object(index, "leads_out", return_value=False):
        assert is_good(lambda data: decode(data, "index"), data) is is_good(shown, data)


def test_a_target_is_a_folder():
    tree = {b"": FOLDER, b"0": file(1)}
    with pytest.raises(Corrupt, match="no folder"):
        round_trip(tree)


@pytest.mark.parametrize("name", [b"security.capability", b"trusted.overlay.opaque", b"system.x"])
def test_attributes_that_give_rights_are_refused(name):
    with pytest.raises(Corrupt, match="extended attribute"):
        round_trip(TREE | {b"0/x": file(1, xattrs=((name, b"y"),))})


@pytest.mark.parametrize("path", [b"0/a", b"../x", b"/x", b"0//x"])
def test_what_is_to_be_deleted_is_a_path_that_is_not_there(path):
    with pytest.raises(Corrupt, match="cannot be deleted"):
        round_trip(TREE, [path])


@pytest.mark.parametrize("count", ["inodes", "entries", "blocks", "strings", "deleted"])
def test_counts_that_do_not_fit_are_refused(count):
    with pytest.raises(Corrupt):
        decode(changed(lambda rows, places: None, header={count: 200}), "index")


def test_damage_and_other_versions_are_refused():
    data = encode(TREE, with_places(TREE))
    for at in range(0, len(data), 7):
        with pytest.raises((Corrupt, UnknownVersion)):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "index")
    body = data[:8] + b"\3\0" + data[10:-32]
    with pytest.raises(UnknownVersion):
        decode(body + hashlib.sha256(body).digest(), "index")


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        (b"0/l", b"x", False),
        (b"0/a/l", b"../x", False),
        (b"0/a/l", b"../../x", True),
        (b"0/l", b"../1/x", True),
        (b"0/a/l", b"b/../../../x", True),
        (b"0/l", b"/x", True),
        (b"0/l", b"a/..", False),
        (b"0/l", b"..", True),
        (b"0/l", b"..x", False),
    ],
)
def test_which_links_lead_out(path, target, out):
    assert leads_out(path, target) is out
    tree = {b"": FOLDER, b"0": FOLDER, b"0/a": FOLDER, b"1": FOLDER, path: link(target)}
    if out:
        with pytest.raises(Corrupt, match="leads out"):
            round_trip(tree)
    assert round_trip(tree, outside=[path]).tree[path].target == target


def test_blocks_may_be_stored_as_they_are():
    tree = {b"": FOLDER, b"0": FOLDER, b"0/a": file(BLOCK_BYTES)}
    places = {b"0/a": ContentPlace(96, (BLOCK_BYTES | BLOCK_RAW,))}
    assert decode(encode(tree, places), "index").places == places

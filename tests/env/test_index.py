"""The index of a snapshot says what was put into it, and refuses what no snapshot may hold."""

import hashlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootseer.core import table
from bootseer.core.squashfs import BLOCK_RAW
from bootseer.core.treerows import BLOCK_BYTES
from bootseer.env import index
from bootseer.env.index import Place, decode, encode, leads_out
from bootseer.env.tree import Node
from bootseer.errors import Corrupt, UnknownVersion

FOLDER = Node("folder", 0o755, 0, 0, mtime_ns=7)


def file(size_bytes=0, **more):
    return Node("file", 0o644, 0, 0, size_bytes=size_bytes, digest=bytes(32), **more)


def link(target):
    return Node("link", 0o777, 0, 0, target=target)


def with_places(tree):
    places, start, tar = {}, 96, 512
    for path, node in tree.items():
        if node.kind == "file" and not node.same_as:
            count = -(-node.size_bytes // BLOCK_BYTES)
            places[path] = Place(start, tuple(range(100, 100 + count)), tar)
            start += sum(places[path].blocks)
            tar += node.size_bytes + 512
    return places


def round_trip(tree, deleted=(), outside=()):
    return decode(encode(tree, with_places(tree), deleted), "index", outside)


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
    b"0/a": file(BLOCK_BYTES + 1),
    b"0/b": FOLDER,
    b"0/b/c": file(3),
    b"0/l": link(b"b/c"),
}
ROWS = {"inodes": 88, "entries": 12, "blocks": 4, "strings": 1, "deleted": 1}


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


INODE = {path: number for number, path in enumerate(sorted(TREE))}
REFUSED = {
    "a name that goes up": rename(b"c", b"/"),
    "the folder itself": rename(b"a", b"."),
    "a zero in a name": rename(b"a", b"\0"),
    "names out of order": rename(b"a", b"z"),
    "the same name twice": rename(b"b", b"a"),
    "a device": put("inodes", INODE[b"0/a"], 40, "<I", 0o020644),
    "a pipe": put("inodes", INODE[b"0/a"], 40, "<I", 0o010644),
    "set-user-id": put("inodes", INODE[b"0/a"], 40, "<I", 0o104755),
    "set-group-id": put("inodes", INODE[b"0/b"], 40, "<I", 0o042755),
    "a file for a root": put("inodes", 0, 40, "<I", 0o100644),
    "a folder in itself": put("entries", 4, 8, "<I", INODE[b"0/b"]),
    "a folder in two places": put("entries", 1, 8, "<I", INODE[b"0/b"]),
    "the root again": put("entries", 4, 8, "<I", 0),
    "an inode past the end": put("entries", 4, 8, "<I", 99),
    "an inode that is nowhere": put("entries", 4, 8, "<I", INODE[b"0/a"]),
    "entries past the end": put("inodes", INODE[b"0/b"], 36, "<I", 99),
    "entries that are nowhere": put("inodes", INODE[b"0/b"], 36, "<I", 0),
    "a name past the end": put("entries", 4, 0, "<I", 1 << 30),
    "a name that is too long": put("entries", 4, 4, "<I", 256),
    "blocks past the end": put("inodes", INODE[b"0/a"], 32, "<I", 99),
    "too few blocks for its length": put("inodes", INODE[b"0/a"], 0, "<Q", 1 << 40),
    "unreasonably large": put("inodes", INODE[b"0/a"], 0, "<Q", 1 << 62),
    "a block of impossible length": put("blocks", 0, 0, "<I", BLOCK_BYTES + 1),
    "content that two files share": put("inodes", INODE[b"0/b/c"], 24, "<Q", 513),
    "a link to nothing": put("inodes", INODE[b"0/l"], 0, "<Q", 0),
    "a link out of the target": rename(b"b/c", b"/ec"),
    "another link out of it": rename(b"b/c", b".. "[:2] + b"/"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(Corrupt, match="index"):
        decode(changed(REFUSED[name]), "index")


def test_a_target_is_a_folder():
    tree = {b"": FOLDER, b"0": file(1)}
    with pytest.raises(Corrupt, match="no folder"):
        round_trip(tree)


@pytest.mark.parametrize("name", [b"security.capability", b"trusted.overlay.opaque", b"system.x"])
def test_attributes_that_give_rights_are_refused(name):
    with pytest.raises(Corrupt, match="extended attribute"):
        round_trip(TREE | {b"0/x": file(1, xattrs=((name, b"y"),))})


def test_attributes_past_their_end_are_refused():
    tree = TREE | {b"0/x": file(1, xattrs=((b"user.a", b"y"),))}
    number = sorted(tree).index(b"0/x")
    with pytest.raises(Corrupt, match="extended attribute"):
        decode(changed(put("inodes", number, 52, "<I", 3), tree), "index")


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
    body = data[:8] + b"\2\0" + data[10:-32]
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
    places = {b"0/a": Place(96, (BLOCK_BYTES | BLOCK_RAW,), 512)}
    assert decode(encode(tree, places), "index").places == places

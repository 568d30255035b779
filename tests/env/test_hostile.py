"""Snapshots that are made to harm: each is refused, and nothing is there that was not before."""

import hashlib
import os
import struct
from dataclasses import replace

import lz4.block
import pytest

from bootseer.core import table
from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.client.scan import TreeNode
from bootseer.env.snapshot import index
from bootseer.errors import Corrupt, Denied
from bootseer.squashfs.superblock import BLOCK_RAW
from bootseer.units import MIB

FOLDER = TreeNode("folder", 0o755, 0, 0, mtime_ns=7)
CONTENT = {b"0/AA": b"first", b"0/a": bytes(range(256)) * 20, b"0/b/c": b"third"}


def file(path):
    data = CONTENT[path]
    return TreeNode("file", 0o644, 0, 0, len(data), digest=hashlib.sha256(data).digest())


def link(target):
    return TreeNode("link", 0o777, 0, 0, target=target)


TREE = {
    b"": FOLDER,
    b"0": FOLDER,
    b"0/AA": file(b"0/AA"),
    b"0/a": file(b"0/a"),
    b"0/b": FOLDER,
    b"0/b/c": file(b"0/b/c"),
    b"0/l": link(b"b/c"),
    b"0/n": file(b"0/a")._replace(same_as=b"0/a"),
}
INODE = {path: number for number, path in enumerate(p for p in sorted(TREE) if p != b"0/n")}
ENTRY = {b"0": 0, b"0/AA": 1, b"0/a": 2, b"0/b": 3, b"0/l": 4, b"0/n": 5, b"0/b/c": 6}
ROWS = {"inodes": 80, "entries": 12, "blocks": 4, "strings": 1, "deleted": 1}
CHUNK_BYTES = 4096


@pytest.fixture
def good(written):
    return lambda tree=TREE, **options: written(
        tree, CONTENT, **{"chunk_bytes": CHUNK_BYTES, **options}
    )


def rows_changed(snapshot, change, header=None):
    """Change rows of an index, and close it again with a good checksum."""
    head, rows = table.open_table(index.MAGIC, index.VERSION, 4, snapshot.index, "")
    rows = bytearray(rows)
    places, at = {}, 0
    for key, unit in ROWS.items():
        places[key] = at
        at += head[key] * unit + -(head[key] * unit) % 4
    change(rows, places)
    data = table.close_table(index.MAGIC, index.VERSION, head | (header or {}), 4, bytes(rows))
    return replace(snapshot, index=data)


def put(section, number, offset, layout, *values):
    def change(rows, places):
        struct.pack_into(layout, rows, places[section] + number * ROWS[section] + offset, *values)

    return lambda good: rows_changed(good(), change)


def inode(path, offset, layout, *values):
    return put("inodes", INODE[path], offset, layout, *values)


def kind(path, mode):
    return inode(path, 32, "<I", mode)


def renamed(old, new):
    def change(rows, places):
        at = bytes(rows).index(old, places["strings"])
        rows[at : at + len(old)] = new

    return lambda good: rows_changed(good(), change)


def leads(target):
    return lambda good: replace(good(TREE | {b"0/l": link(target)}), outside=())


def with_attribute(name):
    node = TREE[b"0/a"]._replace(xattrs=((name, b"value"),))
    return lambda good: good(TREE | {b"0/a": node})


def counts(**header):
    return lambda good: rows_changed(good(), lambda rows, places: None, header)


def too_deep(good):
    tree, path = dict(TREE), b"0/z"
    while len(path) <= 4095:
        tree[path] = FOLDER
        path += b"/" + b"d" * 255
    return good(tree | {path: FOLDER})


def block(number, length):
    """Give a block another stored length."""
    return put("blocks", number, 0, "<I", length)


def damaged(change):
    def attack(good):
        snapshot = good()
        stored = bytearray(snapshot.stored)
        return replace(snapshot, stored=bytes(change(stored, snapshot.opened()[1])))

    return attack


def second_block(make):
    """Store something else as the second file's block, with the length that it takes."""

    def attack(good):
        snapshot = good()
        chunk = snapshot.opened()[1][1]
        stored = make(lz4.block.decompress(snapshot.read(chunk), uncompressed_size=8 << 20))
        stored = stored.ljust(chunk.stored_bytes, b"\0")
        before, after = snapshot.stored[: chunk.start], snapshot.stored[chunk.stop :]
        return replace(snapshot, stored=before + stored + after)

    return attack


def packed(data):
    return lz4.block.compress(data, store_size=False)


ATTACKS = {
    "the folder above as a name": renamed(b"AA", b".."),
    "an absolute name": renamed(b"AA", b"/e"),
    "a name with a folder in it": renamed(b"AA", b"A/"),
    "a zero in a name": renamed(b"AA", b"A\0"),
    "a name past all that is there": put("entries", ENTRY[b"0/AA"], 4, "<I", 1 << 30),
    "a name longer than names are": put("entries", ENTRY[b"0/AA"], 4, "<I", 256),
    "a name twice": put("entries", ENTRY[b"0/b"], 0, "<I", 2),
    "a path longer than paths are": too_deep,
    "a link with something below it": kind(b"0/b", 0o120777),
    "a file with something below it": kind(b"0/b", 0o100644),
    "a target that is a link": kind(b"0", 0o120777),
    "a target with a name of its own": renamed(b"0", b"x"),
    "a folder in itself": put("entries", ENTRY[b"0/b/c"], 8, "<I", INODE[b"0/b"]),
    "an absolute link": leads(b"/etc"),
    "a link that goes up": leads(b"../etc"),
    "a link that goes down and up": leads(b"b/../../etc"),
    "a name for what is not there": put("entries", ENTRY[b"0/n"], 8, "<I", 1 << 20),
    "a name for a folder that has one": put("entries", ENTRY[b"0/n"], 8, "<I", INODE[b"0/b"]),
    "a character device": kind(b"0/AA", 0o020666),
    "a block device": kind(b"0/AA", 0o060666),
    "a pipe": kind(b"0/AA", 0o010666),
    "a socket": kind(b"0/AA", 0o140666),
    "set-user-id": kind(b"0/AA", 0o104755),
    "set-group-id": kind(b"0/AA", 0o102755),
    "a folder with set-group-id": kind(b"0/b", 0o042777),
    "rights by attribute": with_attribute(b"security.capability"),
    "another attribute that gives rights": with_attribute(b"trusted.overlay.opaque"),
    "an access list": with_attribute(b"system.posix_acl_access"),
    "an attribute with a zero in its name": with_attribute(b"user.a\0b"),
    "all files with the same content": inode(b"0/b/c", 16, "<Q", 96),
    "a file of a petabyte": inode(b"0/a", 0, "<Q", 1 << 50),
    "content behind the end": inode(b"0/b/c", 16, "<Q", 1 << 40),
    "more inodes than there are": counts(inodes=1 << 40),
    "more entries than there are": counts(entries=(1 << 63) - 1),
    "less than no text": counts(strings=-4),
    "a deletion above": lambda good: good(deleted=[b"../precious"]),
    "an absolute deletion": lambda good: good(deleted=[b"/precious"]),
    "a deletion of what is in it": lambda good: good(deleted=[b"0/a"]),
    "content in another file's": inode(b"0/a", 16, "<Q", 97),
    "files in another order": inode(b"0/AA", 16, "<Q", 4000),
    "a hole": block(1, 0),
    "a block that is not compressed, and is": block(1, BLOCK_RAW | 100),
    "a block longer than blocks are": block(1, BLOCK_BYTES + 1),
    "a block longer than it is": block(1, 4000),
    "a block shorter than it is": block(1, 10),
    "a block with more in it": second_block(lambda data: packed(data + b"x")),
    "a block with less in it": second_block(lambda data: packed(data[:-1])),
    "a block with very much in it": second_block(lambda data: packed(bytes(64 * MIB))),
    "no block": second_block(lambda data: b""),
    "no blocks": damaged(lambda stored, found: b""),
    "blocks cut short": damaged(lambda stored, found: stored[: found[1].start + 9]),
}


@pytest.fixture
def beside(tmp_path):
    """What an attack might reach."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_bytes(b"precious")
    (tmp_path / "precious/link").symlink_to("file")
    return tmp_path


def test_the_good_one_is_restored(good, beside, look):
    snapshot = good()
    assert len(snapshot.opened()[1]) >= 3
    snapshot.restore(beside / "new")
    assert sorted(look(beside / "new")) == [b"", b"AA", b"a", b"b", b"b/c", b"l", b"n"]


@pytest.mark.parametrize("content", [None, b"precious too"])
def test_another_users_folder_is_left_alone(good, beside, look, monkeypatch, content):
    """Whoever has it could exchange what is put there at any time."""
    (beside / "theirs").mkdir(mode=0o777)
    if content is not None:
        (beside / "theirs/a").write_bytes(content)
    before = look(beside)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: (beside / "theirs").stat().st_uid + 1)
        with pytest.raises(Denied, match="choose a folder of your own"):
            good().restore(beside / "theirs")
    assert look(beside) == before


@pytest.mark.parametrize("target", ["new", "empty", "full"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_refused(good, beside, look, attack, target):
    if target != "new":
        (beside / target).mkdir()
    if target == "full":
        (beside / "full/a").write_bytes(b"precious too")
        (beside / "full/b").symlink_to("../precious")
    before = look(beside)
    snapshot = ATTACKS[attack](good)
    with pytest.raises(Corrupt):
        snapshot.restore(beside / target)
    after = look(beside)
    for folder in (b"", target.encode()):  # have had something in them for a while
        for tree in (before, after):
            if folder in tree:
                tree[folder] = tree[folder]._replace(mtime_ns=0)
    assert after == before


def test_a_snapshot_does_not_follow_links_that_are_there(good, beside, look):
    """Where it has a folder and there is a link, the link is replaced."""
    (beside / "full").mkdir()
    (beside / "full/b").symlink_to("../precious")
    (beside / "full/a").symlink_to("../precious/file")
    before = look(beside / "precious")
    good(deleted=[b"0/c/file"]).restore(beside / "full")
    assert look(beside / "precious") == before
    assert not os.path.islink(beside / "full/b")
    assert (beside / "full/a").read_bytes() == CONTENT[b"0/a"]


def test_a_deletion_does_not_go_through_a_link(good, beside, look):
    (beside / "full").mkdir()
    (beside / "full/away").symlink_to("../precious")
    before = look(beside / "precious")
    good(deleted=[b"0/away/file"]).restore(beside / "full")
    assert look(beside / "precious") == before


def test_chunks_are_what_the_attacks_take_them_for(good):
    chunks = good().opened()[1]
    assert [[piece.path for piece in chunk.pieces] for chunk in chunks] == [
        [b"0/AA"],
        [b"0/a"],
        [b"0/b/c"],
    ]
    assert list(chunks[1].lengths) == [chunks[1].stored_bytes] and chunks[0].start == 96

"""Which files a hot set is made of."""

import pytest

from bootseer.core.ranges import ByteRange
from bootseer.core.tree_rows import BLOCK, ENTRY, INODE, TreeRows
from bootseer.env.client.scan import TreeNode
from bootseer.env.mount.hot_files import hot_content
from bootseer.env.snapshot import index
from bootseer.env.snapshot.index import BLOCK_BYTES, ContentPlace
from bootseer.image.hot.files import HotFile
from bootseer.squashfs.superblock import BLOCK_RAW

FOLDER = TreeNode("folder", 0o755, 0, 0)
END = 2 * BLOCK_BYTES + 7


@pytest.fixture
def files():
    """Two files of three blocks each, of 5 to 20 bytes."""
    node = TreeNode("file", 0o644, 0, 0, END, digest=bytes(32))
    tree = {b"": FOLDER, b"0": FOLDER, b"0/a": node, b"0/b": node}
    places = {
        b"0/a": ContentPlace(100, (10, 7, 20 | BLOCK_RAW)),
        b"0/b": ContentPlace(200, (10, 5, 20)),
    }
    return index.open_rows(index.encode(tree, places), "index")


FIRST, SECOND, LAST = (
    ByteRange(0, BLOCK_BYTES),
    ByteRange(BLOCK_BYTES, 2 * BLOCK_BYTES),
    ByteRange(2 * BLOCK_BYTES, END),
)


@pytest.mark.parametrize(
    ("hot", "found"),
    [
        ([], []),
        ([ByteRange(0, 100), ByteRange(137, 200)], []),
        ([ByteRange(109, 110)], [HotFile(b"0/a", (FIRST,))]),
        ([ByteRange(109, 110), ByteRange(120, 121)], [HotFile(b"0/a", (FIRST, LAST))]),
        ([ByteRange(129, 130)], [HotFile(b"0/a", (LAST,))]),
        ([ByteRange(214, 215)], [HotFile(b"0/b", (SECOND,))]),
        (
            [ByteRange(215, 216), ByteRange(100, 101), ByteRange(201, 202)],
            [HotFile(b"0/b", (FIRST, LAST)), HotFile(b"0/a", (FIRST,))],
        ),
    ],
)
def test_files_with_hot_blocks_are_in_the_order_of_first_touch(files, hot, found):
    assert hot_content(files, hot) == found


def test_a_file_in_deep_folders_has_its_path():
    node = TreeNode("file", 0o644, 0, 0, 5, digest=bytes(32))
    tree = {b"": FOLDER, b"0": FOLDER, b"0/d": FOLDER, b"0/d/e": FOLDER}
    tree |= {b"0/d/e/f": node, b"0/d/name": node._replace(same_as=b"0/d/e/f")}
    places = {b"0/d/e/f": ContentPlace(100, (5,))}
    rows = index.open_rows(index.encode(tree, places), "index")
    (file,) = hot_content(rows, [ByteRange(100, 101)])
    assert file.path in (b"0/d/e/f", b"0/d/name")
    assert file.ranges == (ByteRange(0, 5),)


@pytest.mark.parametrize("name", [b"..", b".", b"a/b", b"a\0b", b""])
def test_names_that_lead_elsewhere_are_left_out(name):
    """Rows that a mount refuses: they may have been replaced since."""
    rows = rows_of([(0, 0, len(name), 1)], name)
    assert hot_content(rows, [ByteRange(100, 101)]) == []


def test_a_file_that_is_shorter_than_its_blocks_has_no_content_behind_its_end():
    rows = rows_of([(0, 0, 1, 1)], b"a", blocks=3)
    assert hot_content(rows, [ByteRange(100, 112)]) == [HotFile(b"a", (ByteRange(0, 5),))]


def test_folders_in_a_loop_have_no_path():
    rows = rows_of([(2, 1, 1, 1), (2, 2, 1, 2)], b"abc")
    assert hot_content(rows, [ByteRange(100, 101)]) == []


def rows_of(entries, strings, blocks=1):
    """Return rows with a file (inode 1) of five bytes at 100, the rest folders.

    Args:
        entries: folder, offset and length of a name, and inode.
        strings: the names.
        blocks: of the file, each stored in four bytes.
    """
    folders = sorted({0} | {folder for folder, *_ in entries})
    packed, inodes = b"", {1: INODE.pack(5, 0, 100, 0, blocks, 0o100644, 1, 0, 0, bytes(32))}
    for folder in folders:
        own = [row[1:] for row in entries if row[0] == folder]
        first = len(packed) // ENTRY.size
        packed += b"".join(ENTRY.pack(*row) for row in own)
        if folder != 1:
            inodes[folder] = INODE.pack(0, 0, 0, first, len(own), 0o40755, 2, 0, 0, bytes(32))
    return TreeRows(
        b"".join(inodes[n] for n in sorted(inodes)), packed, BLOCK.pack(4) * blocks, strings
    )

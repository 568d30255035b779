"""Which files a hot set is made of."""

import pytest

from bootseer.core.ranges import ByteRange
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
    return index.decode(index.encode(tree, places), "index")


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

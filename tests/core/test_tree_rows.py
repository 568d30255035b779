"""The rows of a tree, as they are counted for whoever reads them."""

from bootseer.core.tree_rows import BLOCK, ENTRY, INODE, TreeRows


def test_rows_are_counted_and_strings_are_by_their_bytes():
    rows = TreeRows(bytes(3 * INODE.size), bytes(2 * ENTRY.size), bytes(5 * BLOCK.size), b"names")
    assert rows.counts == (3, 2, 5, 5)
    assert TreeRows(b"", b"", b"", b"").counts == (0, 0, 0, 0)

"""Find the files in the hot set of a snapshot's squashfs."""

from __future__ import annotations

import stat
from collections.abc import Sequence

from bootseer.core.ranges import ByteRange
from bootseer.core.tree_rows import BLOCK, BLOCK_BYTES, ENTRY, INODE, TreeRows
from bootseer.env.snapshot.index import is_name
from bootseer.image.hot.files import HotFile, HotRanges
from bootseer.squashfs.superblock import BLOCK_RAW

_DEEPEST = 2048
"""Folders above a file: a path is shorter than that."""


def hot_content(rows: TreeRows, hot: Sequence[ByteRange]) -> list[HotFile]:
    """List the files that have blocks in a hot set, in the order of first touch.

    The rows may be hostile. They are not checked, as a mount has refused those that make no tree:
    what this returns of others are paths that lead nowhere, and never out of the tree.

    Args:
        rows: of the snapshot.
        hot: ranges of its squashfs without overlaps, in the order of first touch.
    """
    ranges = HotRanges(hot)
    inodes = list(INODE.iter_unpack(rows.inodes))
    blocks = [length & ~BLOCK_RAW for (length,) in BLOCK.iter_unpack(rows.blocks)]
    found: list[tuple[int, int, tuple[ByteRange, ...]]] = []
    for inode, (size_bytes, _, start, first, count, mode, *_) in enumerate(inodes):
        lengths = blocks[first : first + count] if stat.S_ISREG(mode) else []
        if ranges.first(ByteRange(start, start + sum(lengths))) is None:
            continue
        numbers, touched = [], []
        at = 0
        for length in lengths:
            end = min(at + BLOCK_BYTES, size_bytes)
            number = ranges.first(ByteRange(start, start + length))
            if number is not None and at < end:
                numbers.append(number)
                touched.append(ByteRange(at, end))
            start, at = start + length, end
        if touched:
            found.append((min(numbers), inode, tuple(touched)))
    paths = _Paths(rows, inodes)
    files = [(paths.of(inode), touched) for _, inode, touched in sorted(found)]
    return [HotFile(path, touched) for path, touched in files if path]


class _Paths:
    """The paths of inodes."""

    def __init__(self, rows: TreeRows, inodes: Sequence[tuple[int, ...]]) -> None:
        self._strings = rows.strings
        entries = list(ENTRY.iter_unpack(rows.entries))
        self._entry_of: dict[int, tuple[int, int, int]] = {}
        for folder, row in enumerate(inodes):
            if stat.S_ISDIR(row[5]):
                for at, length, inode in entries[row[3] : row[3] + row[4]]:
                    self._entry_of.setdefault(inode, (folder, at, length))

    def of(self, inode: int) -> bytes:
        """Return the path of an inode, the first if it has several; empty for one without."""
        names: list[bytes] = []
        while inode and len(names) < _DEEPEST:
            inode, at, length = self._entry_of.get(inode, (0, 0, 0))
            name = self._strings[at : at + length]
            if not is_name(name):
                return b""
            names.append(name)
        return b"" if inode else b"/".join(reversed(names))

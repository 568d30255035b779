"""The rows of a snapshot's tree, which c_ext/tree.c reads; see docs/formats/env-index.md."""

from __future__ import annotations

import struct
from typing import NamedTuple

INODE = struct.Struct("<QqQIIIIII32s")
ENTRY = struct.Struct("<III")
BLOCK = struct.Struct("<I")
XATTR = struct.Struct("<HI")
"""Lengths of the name and value that follow."""
BLOCK_BYTES = 128 * 1024
"""Blocks of content, which are compressed together."""


class TreeRows(NamedTuple):
    """The rows of a tree, encoded."""

    inodes: bytes
    entries: bytes
    blocks: bytes
    strings: bytes

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return the number of rows of each kind, and the bytes of the strings."""
        inodes, entries, blocks, strings = map(len, self)
        return inodes // INODE.size, entries // ENTRY.size, blocks // BLOCK.size, strings

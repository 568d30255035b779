"""The rows of a snapshot's tree, which c_ext/tree.c reads; see docs/formats/env-index.md."""

from __future__ import annotations

import struct
from typing import NamedTuple

INODE = struct.Struct("<QqQQIIIIII32s")
ENTRY = struct.Struct("<III")
BLOCK = struct.Struct("<I")
XATTR = struct.Struct("<HI")
"""Lengths of name and value, which follow."""
BLOCK_BYTES = 128 * 1024
"""Of content, which are compressed together."""


class TreeRows(NamedTuple):
    """The rows of a tree, encoded."""

    inodes: bytes
    entries: bytes
    blocks: bytes
    strings: bytes

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """How many there are of each; of the strings, how many bytes."""
        inodes, entries, blocks, strings = map(len, self)
        return inodes // INODE.size, entries // ENTRY.size, blocks // BLOCK.size, strings

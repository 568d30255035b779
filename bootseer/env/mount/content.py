"""Read files of a mounted snapshot, if the fast path in C cannot."""

from __future__ import annotations

import errno
import itertools
import os
from array import array
from collections.abc import Callable

from bootseer.core.tree_rows import BLOCK_BYTES, INODE, TreeRows
from bootseer.errors import BootseerError, Corrupt
from bootseer.fuse.fastpath import FastPath, ReadRequest
from bootseer.image.serve.image_blocks import ImageBlocks
from bootseer.image.serve.touch_log import TouchLog
from bootseer.posix import os_error
from bootseer.squashfs.codec import LZ4, decompressor
from bootseer.squashfs.superblock import BLOCK_RAW

AHEAD = os.O_DSYNC
"""Flag of a file that is opened to read ahead: other reads go first, and these are not recorded. It
is not O_NOATIME, as for images: overlayfs opens every file with that."""

_GROUP = 64
"""Blocks whose lengths add up to less than `BLOCK_RAW`."""


class TreeContent:
    """Reads files of a snapshot from its squashfs.

    Attributes:
        touched: ranges of the squashfs that were read, but not by readers ahead.
    """

    def __init__(
        self, rows: TreeRows, blocks: ImageBlocks, on_error: Callable[[str], None]
    ) -> None:
        """Read from these blocks.

        Args:
            rows: rows of a checked index.
            blocks: blocks of the squashfs.
            on_error: called with the reason if a read fails.
        """
        self.touched = TouchLog()
        self._rows = rows
        self._lengths = memoryview(rows.blocks).cast("I")
        self._starts: dict[int, array[int]] = {}
        self._blocks = blocks
        self._on_error = on_error
        self._decompress = decompressor(LZ4)

    def attach(self, fast: FastPath) -> None:
        """Set the fast path, which answers all other reads."""
        self.touched.attach(fast.touches)

    async def read(self, asked: ReadRequest) -> bytes:
        """Return content of a file.

        Raises:
            OSError: EIO, whatever the reason: a program sees a file that it may read.
        """
        try:
            return await self._read(asked)
        except BootseerError as error:
            self._on_error(str(error))
            raise os_error(errno.EIO) from error

    async def _read(self, asked: ReadRequest) -> bytes:
        size_bytes, _, start, first, count, *_ = INODE.unpack_from(
            self._rows.inodes, (asked.node - 1) * INODE.size
        )
        stop = min(size_bytes, asked.offset + asked.size_bytes)
        if asked.offset >= stop:
            return b""
        wanted = range(asked.offset // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
        lengths = self._lengths[first + wanted.start : first + wanted.stop]
        start = self._start(asked.node, start, range(first, first + count), wanted.start)
        stored_bytes = sum(length & ~BLOCK_RAW for length in lengths)
        stored = await self._stored(start, stored_bytes, bool(asked.flags & AHEAD))
        content = bytearray()
        for index, length in zip(wanted, lengths, strict=True):
            left = min(BLOCK_BYTES, size_bytes - index * BLOCK_BYTES)
            content += self._block(bytes(stored[: length & ~BLOCK_RAW]), length, left)
            stored = stored[length & ~BLOCK_RAW :]
        skip = asked.offset - wanted.start * BLOCK_BYTES
        return bytes(content[skip : skip + stop - asked.offset])

    async def _stored(self, start: int, size_bytes: int, is_ahead: bool) -> memoryview:
        if not is_ahead:
            self.touched.note(start, start + size_bytes)
        return await self._blocks.read(start, size_bytes, is_urgent=not is_ahead)

    def _start(self, node: int, start: int, blocks: range, index: int) -> int:
        """Return the offset of a block of a file in the squashfs.

        Those of every 64th block are computed once, at the first read of the file.

        Args:
            node: number of the file.
            start: offset of its first block.
            blocks: range of its blocks among those of all files.
            index: number of the block in the file.
        """
        starts = self._starts.get(node)
        if starts is None:
            groups = (blocks[at : at + _GROUP] for at in range(0, len(blocks), _GROUP))
            starts = array(
                "Q", itertools.accumulate(map(self._stored_bytes, groups), initial=start)
            )
            self._starts[node] = starts
        before = blocks[index - index % _GROUP : index]
        return starts[index // _GROUP] + self._stored_bytes(before)

    def _stored_bytes(self, blocks: range) -> int:
        """Add up the stored lengths of up to 64 blocks; so few cannot carry into the flag bit."""
        return sum(self._lengths[blocks.start : blocks.stop]) % BLOCK_RAW

    def _block(self, stored: bytes, length: int, size_bytes: int) -> bytes:
        data = stored if length & BLOCK_RAW else self._decompress(stored, size_bytes)
        if len(data) != size_bytes:
            raise Corrupt("a block of a snapshot holds another amount than its index says")
        return data

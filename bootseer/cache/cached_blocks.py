"""The blocks of an image that this node has, read and checked.

An entry of the cache is two files. The data file is as long as the image and sparse: a block is
where it is in the image. The block map has eight bytes for each block, in the machine's own order:
a checksum of the block if it is there, zero if not. So the checksum says that a block is there, and
nothing else does: whatever a crash leaves of either file, a block counts only if its bytes match,
and otherwise is fetched again.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from enum import IntEnum

from xxhash import xxh3_64_intdigest

from bootseer.cache.size import SUM_BYTES
from bootseer.core.image_manifest import ImageManifest


class BlockState(IntEnum):
    """What is known of a block of the data file."""

    ABSENT = 0
    PRESENT = 1
    LOST = 2
    """It should be there, and cannot be read or is damaged."""


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return what the block map says of a block with this content; never zero."""
    return xxh3_64_intdigest(data) or 1


def read_map(map_fd: int, blocks: range) -> array[int]:
    """Read the entries of blocks; what the file does not hold is zero.

    Raises:
        OSError: the disk does not give it.
    """
    data = os.pread(map_fd, len(blocks) * SUM_BYTES, blocks.start * SUM_BYTES)
    return array("Q", data.ljust(len(blocks) * SUM_BYTES, b"\0"))


class CachedBlocks:
    """An image's blocks on this node, for reading; needs no rights beyond its descriptors.

    Every block is checked whenever it is read: a file that was cut and has grown again has holes
    where blocks were, and the checksum is nothing beside the read (40 GB/s). What fails is LOST,
    and for the caller to fetch.

    Concurrency: any number of threads; the states only ever tell what is safe.

    Attributes:
        manifest: of the image.
        data_fd: the data file.
        sums: checksum of each block that is there, as the block map has it.
        states: of each block, a `BlockState` as a byte; neither ever moves in memory.
        damaged: how many blocks were found damaged or unreadable.
    """

    def __init__(self, data_fd: int, map_fd: int, manifest: ImageManifest) -> None:
        """Take over an entry's descriptors; open for reading will do."""
        self.data_fd = data_fd
        self._map_fd = map_fd
        self.manifest = manifest
        self.sums = array("Q", bytes(manifest.blocks * SUM_BYTES))
        self.states = bytearray(manifest.blocks)
        self.damaged = 0
        self.refresh(range(manifest.blocks))

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.data_fd)
        os.close(self._map_fd)

    def refresh(self, blocks: range) -> None:
        """Look again which blocks others have brought meanwhile."""
        try:
            found = read_map(self._map_fd, blocks)
        except OSError:
            return  # what is not known to be there is fetched
        for index, entry in zip(blocks, found, strict=True):
            if entry and self.states[index] == BlockState.ABSENT:
                self.sums[index] = entry
                self.states[index] = BlockState.PRESENT

    def note_kept(self, index: int, data: bytes | memoryview) -> None:
        """Learn that a block with this content has been written to the entry."""
        self.sums[index] = checksum(data)
        self.states[index] = BlockState.PRESENT

    def missing(self, blocks: Iterable[int]) -> list[int]:
        """List the blocks that are to be fetched, as far as is known."""
        return [i for i in blocks if self.states[i] in (BlockState.ABSENT, BlockState.LOST)]

    def is_lost(self, index: int) -> bool:
        """Whether the entry claims to have the block, and does not."""
        return self.states[index] == BlockState.LOST

    @property
    def present_bytes(self) -> int:
        """How much of the image is there."""
        states = self.states
        absent = states.count(BlockState.ABSENT) + states.count(BlockState.LOST)
        return max(0, self.manifest.size_bytes - absent * self.manifest.block_bytes)

    @property
    def is_complete(self) -> bool:
        """Whether all of the image is there."""
        return not (BlockState.ABSENT in self.states or BlockState.LOST in self.states)

    def read(self, offset: int, size_bytes: int) -> memoryview | None:
        """Read bytes of the image, if all of their blocks are there.

        Args:
            offset, size_bytes: inside the image.

        Returns:
            None if a block is missing.
        """
        blocks = self.manifest.covering(offset, size_bytes)
        if self.missing(blocks):
            return None
        start = self.manifest.block_range(blocks[0]).start
        stop = self.manifest.block_range(blocks[-1]).stop
        data = memoryview(bytearray(stop - start))
        try:
            got = os.preadv(self.data_fd, [data], start)
        except OSError:
            got = 0
        if got < len(data):
            for index in blocks:
                self._lose(index)
            return None
        if not self._check(blocks, start, data):
            return None
        return data[offset - start : offset - start + size_bytes]

    def _check(self, blocks: range, start: int, data: memoryview) -> bool:
        """Compare blocks with their checksums; ``data`` holds all their bytes, from ``start``."""
        good = True
        for index in blocks:
            block = self.manifest.block_range(index)
            if checksum(data[block.start - start : block.stop - start]) != self.sums[index]:
                self._lose(index)
                good = False
        return good

    def _lose(self, index: int) -> None:
        self.states[index] = BlockState.LOST
        self.damaged += 1


def no_blocks(manifest: ImageManifest) -> CachedBlocks:
    """Return the blocks of a node that keeps none."""
    return CachedBlocks(os.memfd_create("data"), os.memfd_create("map"), manifest)

"""Read and check the cached blocks of an image.

An entry of the cache is two files. The data file is as long as the image and sparse: a block has
the same offset as in the image. The block map has eight bytes for each block, in native byte order:
the block's checksum if it is present, otherwise zero. Only the checksum marks a block as present.
After a crash, a block counts only if its bytes match; otherwise it is fetched again.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from enum import IntEnum

from xxhash import xxh3_64_intdigest

from bootseer.cache.size import SUM_BYTES
from bootseer.core.image_manifest import ImageManifest
from bootseer.large_buffers import page_buffer


class BlockState(IntEnum):
    """What is known of a block of the data file."""

    ABSENT = 0
    PRESENT = 1
    LOST = 2
    """The map marks it as present, but it is damaged or unreadable."""


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the block map's checksum of a block's content; never zero."""
    return xxh3_64_intdigest(data) or 1


def read_map(map_fd: int, blocks: range) -> array[int]:
    """Read the map's entries of some blocks; zero beyond the end of the file.

    Raises:
        OSError: the map cannot be read.
    """
    data = os.pread(map_fd, len(blocks) * SUM_BYTES, blocks.start * SUM_BYTES)
    return array("Q", data.ljust(len(blocks) * SUM_BYTES, b"\0"))


class CachedBlocks:
    """Reader of an image's cached blocks; needs no rights beyond its descriptors.

    Every block is checked on every read: a file that was truncated and extended has holes, and the
    checksum is cheap (40 GB/s). A block that fails the check is LOST, and the caller must fetch
    it.

    Concurrency: any number of threads.

    Attributes:
        manifest: of the image.
        data_fd: the data file.
        sums: checksums of the present blocks, as in the block map.
        states: a `BlockState` byte per block. The memory of ``sums`` and ``states`` never moves.
        damaged: number of blocks found damaged or unreadable.
    """

    def __init__(self, data_fd: int, map_fd: int, manifest: ImageManifest) -> None:
        """Take over an entry's descriptors, open for reading."""
        self.data_fd = data_fd
        self._map_fd = map_fd
        self.manifest = manifest
        self.sums = array("Q", bytes(manifest.blocks * SUM_BYTES))
        self.states = bytearray(manifest.blocks)
        self.damaged = 0
        self.refresh(range(manifest.blocks))

    def close(self) -> None:
        os.close(self.data_fd)
        os.close(self._map_fd)

    def refresh(self, blocks: range, *, are_new: bool = False) -> None:
        """Update the states with blocks that were added to the entry.

        Args:
            blocks: consecutive blocks of the image.
            are_new: they have just been written, so lost ones are good again.
        """
        try:
            found = read_map(self._map_fd, blocks)
        except OSError:
            return  # blocks not known to be present are fetched
        for index, entry in zip(blocks, found, strict=True):
            if entry and (are_new or self.states[index] == BlockState.ABSENT):
                self.sums[index] = entry
                self.states[index] = BlockState.PRESENT

    def missing(self, blocks: Iterable[int]) -> list[int]:
        """List the blocks that are not known to be present."""
        return [i for i in blocks if self.states[i] in (BlockState.ABSENT, BlockState.LOST)]

    def is_lost(self, index: int) -> bool:
        """Return whether the map marks the block as present but it is damaged."""
        return self.states[index] == BlockState.LOST

    @property
    def present_bytes(self) -> int:
        states = self.states
        absent = states.count(BlockState.ABSENT) + states.count(BlockState.LOST)
        return max(0, self.manifest.size_bytes - absent * self.manifest.block_bytes)

    @property
    def is_complete(self) -> bool:
        return not (BlockState.ABSENT in self.states or BlockState.LOST in self.states)

    def read(self, offset: int, size_bytes: int) -> memoryview | None:
        """Read bytes of the image, if all of their blocks are present.

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
        data = page_buffer(stop - start)
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
    """Return a `CachedBlocks` without any blocks."""
    return CachedBlocks(os.memfd_create("data"), os.memfd_create("map"), manifest)

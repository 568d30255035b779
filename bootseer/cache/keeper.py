"""The block keeper: the only writer of cached blocks; checks their digests.

It needs only the descriptors of an entry. It decodes manifests, which users wrote.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from bootseer.cache.cached_blocks import checksum, read_map
from bootseer.cache.size import SUM_BYTES, EntrySize, on_disk
from bootseer.cache.token import manifest_token
from bootseer.core import image_manifest
from bootseer.core.image_manifest import ImageManifest
from bootseer.errors import Corrupt, NoSpace, NotFound, Unavailable
from bootseer.posix import pwrite_fully, read_fully
from bootseer.units import MIB

_WRITE_BYTES = MIB
"""Written at once: longer writes get folios of 2 MiB, which a virtual machine may have to request
from its host, for up to eight times the processor time."""
_LOCK = struct.Struct("@hhqqi4x")  # struct flock of a 64-bit Linux


class BlockClaim(IntEnum):
    """The answer to a claim on a block."""

    BUSY = 0
    """Another server of this node is fetching the block."""
    GRANTED = 1
    """The caller fetches the block; no other does, until it is kept or released."""
    PRESENT = 2
    """The block is in the cache."""


def read_manifest(fd: int) -> bytes:
    """Read an encoded manifest, from a cache entry or sealed memory.

    Raises:
        Corrupt: the file is too long for a manifest.
        Unavailable: it cannot be read.
    """
    try:
        encoded = read_fully(fd, 0, image_manifest.MAX_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"cannot read the manifest: {error.strerror}") from error
    if len(encoded) > image_manifest.MAX_BYTES:
        raise Corrupt("the file sent as a manifest exceeds the size limit")
    return encoded


def take_manifest(fd: int, digest: str) -> tuple[ImageManifest, EntrySize]:
    """Decode a manifest from a worker; returns it and the size of its entry.

    Args:
        fd: descriptor of sealed memory.
        digest: digest of the image.

    Raises:
        Corrupt: it is not the manifest of that image.
        Unavailable: it cannot be read.
    """
    encoded = read_manifest(fd)
    manifest = image_manifest.decode(encoded, "the manifest handed over", digest)
    return manifest, EntrySize(len(encoded), manifest.size_bytes, manifest.blocks)


def check_entry(fds: Sequence[int], digest: str, token: bytes) -> ImageManifest:
    """Decode an entry's manifest, and check the lengths of the entry's files.

    Args:
        fds: descriptors of its manifest, data and map.
        digest: digest of the image.
        token: token of its manifest.

    Raises:
        NotFound: the entry is damaged; a process that has the manifest may repair it.
        Corrupt: the token belongs to another image.
        Unavailable: it cannot be read.
    """
    encoded = read_manifest(fds[0])
    if manifest_token(encoded) != token:
        raise NotFound("the manifest in the block cache is damaged")
    manifest = image_manifest.decode(encoded, "the manifest in the block cache", digest)
    lengths = [os.fstat(fd).st_size for fd in fds]
    if lengths != [len(encoded), manifest.size_bytes, manifest.blocks * SUM_BYTES]:
        raise NotFound("files in the block cache do not have the image's length")
    return manifest


@dataclass(eq=False)
class BlockKeeper:
    """Writes the blocks of one entry of the cache.

    An entry may have several keepers, in different processes; only one holds the claim on a block.
    Claims are open file description locks on bytes of an empty file: the kernel releases them when
    the process ends.

    Durability: none is needed. After a crash, a block whose checksum or bytes were not written
    counts as missing.

    Concurrency: calls for different blocks may overlap.

    Attributes:
        data_fd, map_fd: see `bootseer.cache.blocks`.
        claims_fd: of a file whose bytes can be locked, one for each block.
        manifest: of the image.
        has_room: called before so many bytes are written; False if the cache is full.
    """

    data_fd: int
    map_fd: int
    claims_fd: int
    manifest: ImageManifest
    has_room: Callable[[int], bool]

    def close(self) -> None:
        """Give up all claims, and close the descriptors."""
        for fd in (self.data_fd, self.map_fd, self.claims_fd):
            os.close(fd)

    def claim(self, blocks: range, *, replace: bool = False) -> list[BlockClaim]:
        """Claim blocks before fetching them; returns an answer per block.

        Args:
            blocks: consecutive blocks of the image.
            replace: also claim blocks that are in the cache, because they are damaged.

        Raises:
            OSError: the file cannot be locked.
        """
        if self._lock(blocks.start, fcntl.F_WRLCK, len(blocks)):
            claims = [BlockClaim.GRANTED] * len(blocks)
        else:
            claims = [
                BlockClaim.GRANTED if self._lock(i, fcntl.F_WRLCK) else BlockClaim.BUSY
                for i in blocks
            ]
        # Read after the claim: the previous holder may just have written the block.
        entries = array("Q", bytes(len(blocks) * SUM_BYTES))
        if not replace:
            entries = read_map(self.map_fd, blocks)
        for number, (index, entry) in enumerate(zip(blocks, entries, strict=True)):
            if entry:
                if claims[number] == BlockClaim.GRANTED:
                    self._lock(index, fcntl.F_UNLCK)
                claims[number] = BlockClaim.PRESENT
        return claims

    def release(self, blocks: range) -> None:
        self._lock(blocks.start, fcntl.F_UNLCK, len(blocks))

    def keep(self, first: int, data: memoryview) -> None:
        """Write consecutive blocks, and release the claims on them.

        Args:
            first: index of the first block.
            data: the blocks' bytes.

        Raises:
            Corrupt: a block has the wrong digest, or ``data`` is empty; nothing was written.
            NoSpace: the cache is full.
            Unavailable: writing failed.
        """
        if not data:  # a lock of length 0 would release all claims
            raise Corrupt(f"there are no bytes of block {first}")
        blocks = self.manifest.covering(first * self.manifest.block_bytes, len(data))
        try:
            self._keep(blocks, data)
        finally:
            self.release(blocks)

    def _keep(self, blocks: range, data: memoryview) -> None:
        start = self.manifest.block_range(blocks.start).start
        if len(data) != self.manifest.block_range(blocks[-1]).stop - start:
            raise Corrupt(f"{len(data)} bytes do not make whole blocks at byte {start}")
        sums = array("Q")
        for index, block in self.manifest.cut(blocks, data):
            if not self.manifest.matches(index, block):
                at = self.manifest.block_range(index).start
                raise Corrupt(f"block {index} at byte {at} has another digest")
            sums.append(checksum(block))
        if not self.has_room(on_disk(len(data))):
            raise NoSpace("the block cache is full")
        try:
            for at in range(0, len(data), _WRITE_BYTES):
                pwrite_fully(self.data_fd, data[at : at + _WRITE_BYTES], start + at)
            pwrite_fully(self.map_fd, memoryview(sums), blocks.start * SUM_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(f"the block cache's disk is full: {error.strerror}") from error
            raise Unavailable(f"the block cache cannot be written: {error.strerror}") from error

    def _lock(self, first: int, kind: int, count: int = 1) -> bool:
        """Set or release the lock on blocks; returns False if another keeper holds it."""
        try:
            fcntl.fcntl(
                self.claims_fd,
                fcntl.F_OFD_SETLK,
                _LOCK.pack(kind, os.SEEK_SET, first, count, 0),
            )
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EACCES:
                return False
            raise
        return True

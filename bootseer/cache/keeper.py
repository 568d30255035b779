"""The keeper of an image's blocks on this node: it alone writes them, if their digests are right.

It needs no rights, only the descriptors of an entry. It decodes the manifests, which users wrote.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from array import array
from collections.abc import Callable, Sequence
from enum import IntEnum

from bootseer.cache.cached_blocks import checksum, read_map
from bootseer.cache.size import SUM_BYTES, EntrySize, on_disk
from bootseer.cache.token import manifest_token
from bootseer.core import image_manifest
from bootseer.core.image_manifest import ImageManifest
from bootseer.errors import Corrupt, NoSpace, NotFound, Unavailable
from bootseer.posix import pwrite_fully, read_fully

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
    """Read an encoded manifest, of a cache's entry or in sealed memory.

    Raises:
        Corrupt: it is too long for a manifest.
        Unavailable: it cannot be read.
    """
    try:
        encoded = read_fully(fd, 0, image_manifest.MAX_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"a manifest cannot be read: {error.strerror}") from error
    if len(encoded) > image_manifest.MAX_BYTES:
        raise Corrupt("what was handed over is longer than any manifest")
    return encoded


def take_manifest(fd: int, digest: str) -> tuple[ImageManifest, EntrySize]:
    """Decode a manifest that was handed over; returns it and the size of its entry.

    Args:
        fd: of sealed memory.
        digest: of the image.

    Raises:
        Corrupt: it is not the manifest of that image.
        Unavailable: it cannot be read.
    """
    encoded = read_manifest(fd)
    manifest = image_manifest.decode(encoded, "the manifest handed over", digest)
    return manifest, EntrySize(len(encoded), manifest.size_bytes, manifest.blocks)


def check_entry(fds: Sequence[int], digest: str, token: bytes) -> ImageManifest:
    """Decode the manifest of an entry, and check the lengths of the entry's files by it.

    Args:
        fds: of its manifest, data and map.
        digest: of the image.
        token: of its manifest.

    Raises:
        NotFound: the entry is damaged; a process that has the manifest may make it again.
        Corrupt: the token is another image's.
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


class BlockKeeper:
    """Writes the blocks of one entry of the cache.

    An entry may have several keepers, in different processes; one at a time has the claim on a
    block. Claims are open file description locks on bytes of an empty file: they end with the
    process that has them.

    Durability: none is promised and none needed. After a crash, a block of which the checksum or
    the bytes did not arrive counts as missing.

    Concurrency: calls for different blocks may overlap.
    """

    def __init__(
        self,
        data_fd: int,
        map_fd: int,
        claims_fd: int,
        manifest: ImageManifest,
        has_room: Callable[[int], bool],
    ) -> None:
        """Take over an entry's descriptors, open for writing.

        Args:
            data_fd, map_fd: see `bootseer.cache.cached_blocks`.
            claims_fd: of a file whose bytes can be locked, one for each block.
            manifest: of the image.
            has_room: called before so many bytes are written; False if the cache is full.
        """
        self._data_fd = data_fd
        self._map_fd = map_fd
        self._claims_fd = claims_fd
        self._manifest = manifest
        self._has_room = has_room

    def close(self) -> None:
        """Give up all claims, and close the descriptors."""
        for fd in (self._data_fd, self._map_fd, self._claims_fd):
            os.close(fd)

    def claim(self, blocks: range, *, anew: bool = False) -> list[BlockClaim]:
        """Claim blocks, to fetch them.

        Args:
            blocks: consecutive ones of the image.
            anew: also blocks that are in the cache: they are damaged.

        Raises:
            OSError: the file cannot be locked.
        """
        claims = [
            BlockClaim.GRANTED if self._lock(i, fcntl.F_WRLCK) else BlockClaim.BUSY for i in blocks
        ]
        # Looked up after the claim: a keeper that had it before may just have kept the block.
        entries = array("Q", bytes(len(blocks) * SUM_BYTES))
        if not anew:
            entries = read_map(self._map_fd, blocks)
        for number, (index, entry) in enumerate(zip(blocks, entries, strict=True)):
            if entry:
                if claims[number] == BlockClaim.GRANTED:
                    self._lock(index, fcntl.F_UNLCK)
                claims[number] = BlockClaim.PRESENT
        return claims

    def release(self, blocks: range) -> None:
        """Give up the claims on these blocks."""
        self._lock(blocks.start, fcntl.F_UNLCK, len(blocks))

    def keep(self, first: int, data: memoryview) -> None:
        """Write consecutive blocks, and give up the claims on them.

        Args:
            first: index of the first.
            data: all of their bytes.

        Raises:
            Corrupt: a block is not the image's, or there are no bytes; nothing was written.
            NoSpace: the cache is full.
            Unavailable: the disk does not take the blocks.
        """
        if not data:  # a lock of length 0 would give up all claims
            raise Corrupt(f"there are no bytes of block {first}")
        blocks = self._manifest.covering(first * self._manifest.block_bytes, len(data))
        try:
            self._keep(blocks, data)
        finally:
            self.release(blocks)

    def _keep(self, blocks: range, data: memoryview) -> None:
        start = self._manifest.block_range(blocks.start).start
        if len(data) != self._manifest.block_range(blocks[-1]).stop - start:
            raise Corrupt(f"{len(data)} bytes do not make whole blocks at byte {start}")
        sums = array("Q")
        for index, block in self._manifest.cut(blocks, data):
            if not self._manifest.matches(index, block):
                at = self._manifest.block_range(index).start
                raise Corrupt(f"block {index} at byte {at} has another digest")
            sums.append(checksum(block))
        if not self._has_room(on_disk(len(data))):
            raise NoSpace("the block cache is full")
        try:
            pwrite_fully(self._data_fd, data, start)
            pwrite_fully(self._map_fd, memoryview(sums), blocks.start * SUM_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(f"the block cache's disk is full: {error.strerror}") from error
            raise Unavailable(f"the block cache cannot be written: {error.strerror}") from error

    def _lock(self, first: int, kind: int, count: int = 1) -> bool:
        """Set or end the lock on blocks; False if another keeper has it."""
        try:
            fcntl.fcntl(
                self._claims_fd,
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

"""Read a squashfs image file: its superblock, bytes and table blocks.

The image is untrusted: it may be damaged or malicious.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, NotFound, Unavailable
from bootseer.squashfs.codec import decompressor
from bootseer.squashfs.inodes import MetadataTable
from bootseer.squashfs.superblock import (
    METADATA_BYTES,
    METADATA_RAW,
    SUPERBLOCK_BYTES,
    decode_superblock,
)

MAX_TABLE_BYTES = 48 << 20
"""Limit of one table's content: 30 times the inodes of 40,000 files."""

_LENGTH = struct.Struct("<H")
_PLACE = struct.Struct("<Q")


class ImageFile:
    """An open squashfs file.

    Attributes:
        path: path of the image.
        size_bytes: length of the file.
        superblock: the image's superblock.
        decompress: decompresses a block to at most so many bytes.
    """

    def __init__(self, path: Path) -> None:
        """Open an image and read its superblock.

        Raises:
            NotFound: there is no such file.
            Unavailable: the file cannot be read, or its compressor is unknown.
            Corrupt: it is not a squashfs.
        """
        self.path = path
        try:
            # Opening a pipe at that path must not block.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise NotFound(f"there is no image {path}") from error
        except OSError as error:
            raise Unavailable(f"cannot open the image {path}: {error.strerror}") from error
        with self._closed_on_error():
            info = os.fstat(self._fd)
            if not stat.S_ISREG(info.st_mode):
                raise Unavailable(f"{path} is not a regular file")
            self.size_bytes = info.st_size
            data = self.pread(0, min(SUPERBLOCK_BYTES, self.size_bytes))
            self.superblock = decode_superblock(data, self.size_bytes)
            self.decompress = decompressor(self.superblock.compressor)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def pread(self, start: int, size_bytes: int) -> bytes:
        """Return bytes of the file.

        Raises:
            Corrupt: the file is too short.
            Unavailable: the file cannot be read.
        """
        if start + size_bytes > self.size_bytes:
            raise Corrupt("the image is cut short")
        try:
            data = os.pread(self._fd, size_bytes, start)
            while 0 < len(data) < size_bytes and (
                more := os.pread(self._fd, size_bytes - len(data), start + len(data))
            ):
                data += more
        except OSError as error:
            raise Unavailable(f"cannot read the image {self.path}: {error.strerror}") from error
        if len(data) < size_bytes:
            raise Corrupt("the image is cut short")
        return data

    def index(self, start: int, count: int, row_bytes: int) -> list[int]:
        """Return the places of the blocks of an indexed table with ``count`` rows.

        Args:
            start: place of the index.
            count: number of rows.
            row_bytes: length of a row, a power of two.

        Raises:
            Corrupt: the index extends past the end.
        """
        blocks = -(-count * row_bytes // METADATA_BYTES)
        if blocks * METADATA_BYTES > MAX_TABLE_BYTES:
            raise Corrupt("a table of the image is unreasonably large")
        data = self.pread(start, blocks * _PLACE.size)
        return [place for (place,) in _PLACE.iter_unpack(data)]

    def gather(self, places: list[int], size_bytes: int) -> bytes:
        """Read an indexed table's blocks; they must hold ``size_bytes``."""
        data = b"".join(self._table_block(place)[0] for place in places)
        if len(data) < size_bytes:
            raise Corrupt("a table of the image holds less than it should")
        return data[:size_bytes]

    def table(self, extent: ByteRange) -> MetadataTable:
        """Read a table whose blocks are contiguous."""
        found: list[bytes] = []
        places: dict[int, int] = {}
        at = extent.start
        while at < extent.stop:
            if len(found) * METADATA_BYTES >= MAX_TABLE_BYTES:
                raise Corrupt("a table of the image is unreasonably large")
            if found and len(found[-1]) != METADATA_BYTES:
                raise Corrupt("a table of the image has a hole")
            places[at - extent.start] = len(found)
            data, at = self._table_block(at)
            found.append(data)
        if at != extent.stop:
            raise Corrupt("a table of the image has no end")
        return MetadataTable(b"".join(found), places)

    def _table_block(self, at: int) -> tuple[bytes, int]:
        """Return the content of a table's block, and the place of the next one."""
        (length,) = _LENGTH.unpack(self.pread(at, _LENGTH.size))
        size_bytes = length & ~METADATA_RAW
        if size_bytes > METADATA_BYTES or not size_bytes:
            raise Corrupt("a table of the image has a block of impossible length")
        data = self.pread(at + _LENGTH.size, size_bytes)
        if not length & METADATA_RAW:
            data = self.decompress(data, METADATA_BYTES)
        return data, at + _LENGTH.size + size_bytes

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Close the file if the block fails, and name it in Corrupt errors."""
        try:
            yield
        except Corrupt as error:
            self.close()
            raise Corrupt(f"{self.path}: {error}") from error
        except BaseException:
            self.close()
            raise

"""Where a squashfs image keeps its tables, read from its superblock.

Source: the on-disk format 4.0 as documented in the kernel's Documentation/filesystems/squashfs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt

SUPERBLOCK_BYTES = 96
_SUPERBLOCK = struct.Struct("<5I6H8Q")
_MAGIC = 0x73717368
_NO_TABLE = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Superblock:
    """What a start needs to know of an image.

    Attributes:
        bytes_used: length of the file system inside the file.
        tables: inode, directory, fragment, id and attribute tables, contiguous at the end.
    """

    bytes_used: int
    tables: ByteRange


def parse_superblock(data: bytes, size_bytes: int) -> Superblock | None:
    """Parse the first bytes of an image file; None when it is not a squashfs.

    Args:
        data: at least SUPERBLOCK_BYTES from the start of the file, or all of a shorter one.
        size_bytes: of the file.

    Raises:
        Corrupt: it says squashfs, and its tables do not lie inside the file.
    """
    if len(data) < SUPERBLOCK_BYTES:
        return None
    fields = _SUPERBLOCK.unpack_from(data)
    if fields[0] != _MAGIC:
        return None
    bytes_used = fields[12]
    tables = [start for start in fields[13:19] if start != _NO_TABLE]
    if not tables or not SUPERBLOCK_BYTES <= min(tables) <= max(tables) <= bytes_used <= size_bytes:
        raise Corrupt("the image's superblock names tables outside the file: it is cut or damaged")
    return Superblock(bytes_used, ByteRange(min(tables), bytes_used))

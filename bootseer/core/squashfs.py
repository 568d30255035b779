"""Where a squashfs image keeps its tables, read from its superblock.

Source: the on-disk format 4.0 as documented in the kernel's Documentation/filesystems/squashfs.
"""

from __future__ import annotations

import struct

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt

SUPERBLOCK_BYTES = 96
_SUPERBLOCK = struct.Struct("<5I6H8Q")
_MAGIC = 0x73717368
_NO_TABLE = 0xFFFFFFFFFFFFFFFF


def find_tables(data: bytes, size_bytes: int) -> ByteRange | None:
    """Return where an image file's tables are; None when it is not a squashfs.

    They are the inode, directory, fragment, id and attribute tables, contiguous at the end.

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
    return ByteRange(min(tables), bytes_used)

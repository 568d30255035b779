"""The superblock of a squashfs image, and the places of its tables.

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
_VERSION = (4, 0)
NO_TABLE = 0xFFFFFFFFFFFFFFFF
NO_FRAGMENT = 0xFFFFFFFF

METADATA_BYTES = 8192
"""Content length of a table's block; the last one holds less."""

METADATA_RAW = 1 << 15
"""Set in the length before a table's block that is stored uncompressed."""

BLOCK_RAW = 1 << 24
"""Set in the length of a data block that is stored uncompressed."""

MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 4096, 1 << 20


def find_tables(data: bytes, size_bytes: int) -> ByteRange | None:
    """Return the range of an image file's tables; None if it is not a squashfs.

    They are the inode, directory, fragment, id and attribute tables, contiguous at the end.

    Args:
        data: at least SUPERBLOCK_BYTES from the start of the file, or all of a shorter one.
        size_bytes: length of the file.

        Raises:
            Corrupt: it is a squashfs whose tables are not inside the file.
    """
    if len(data) < SUPERBLOCK_BYTES:
        return None
    fields = _SUPERBLOCK.unpack_from(data)
    if fields[0] != _MAGIC:
        return None
    bytes_used = fields[12]
    tables = [start for start in fields[13:19] if start != NO_TABLE]
    if not tables or not SUPERBLOCK_BYTES <= min(tables) <= max(tables) <= bytes_used <= size_bytes:
        raise Corrupt("the image's superblock names tables outside the file: it is cut or damaged")
    return ByteRange(min(tables), bytes_used)


@dataclass(frozen=True, slots=True)
class Superblock:
    """The superblock's fields, with the names of the kernel's documentation.

    Attributes:
        inodes: number of inodes.
        block_size: of file contents, in bytes, before compression.
        fragments: number of fragment blocks.
        compressor: number of the compressor.
        ids: number of owners.
        root: reference of the root directory's inode.
        id_table: place of that table's index, like the next ones; NO_TABLE for none.
        xattr_table: the same.
        inode_table: place of that table's first block.
        directory_table: the same.
        fragment_table: place of that table's index.
        export_table: the same.
    """

    inodes: int
    block_size: int
    fragments: int
    compressor: int
    ids: int
    root: int
    id_table: int
    xattr_table: int
    inode_table: int
    directory_table: int
    fragment_table: int
    export_table: int


def decode_superblock(data: bytes, size_bytes: int) -> Superblock:
    """Decode an image's superblock.

    Args:
        data: at least SUPERBLOCK_BYTES from the start of the file, or all of a shorter one.
        size_bytes: of the file.

    Raises:
        Corrupt: it is not a squashfs of version 4.0, truncated or damaged.
    """
    if find_tables(data, size_bytes) is None:
        raise Corrupt("the image is no squashfs")
    _, inodes, _, block, fragments, *rest = _SUPERBLOCK.unpack_from(data)
    compressor, block_log, _, ids, major, minor, root, _, *tables = rest
    if (major, minor) != _VERSION:
        raise Corrupt(f"the image is a squashfs of version {major}.{minor}, not 4.0")
    if block != 1 << min(block_log, 31) or not MIN_BLOCK_BYTES <= block <= MAX_BLOCK_BYTES:
        raise Corrupt(f"the image's superblock has impossible blocks of {block} bytes")
    found = Superblock(inodes, block, fragments, compressor, ids, root, *tables)
    later = (found.id_table, found.xattr_table, found.fragment_table, found.export_table)
    if found.id_table == NO_TABLE or found.inode_table >= found.directory_table:
        raise Corrupt("the image's superblock has no table of owners, or tables out of order")
    if any(found.directory_table > start for start in later):
        raise Corrupt("the image's superblock has tables out of order")
    return found

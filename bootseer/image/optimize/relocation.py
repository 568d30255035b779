"""The tables of a squashfs whose data has moved: the same inodes and directories, other places.

Nothing in a table changes its length, and all blocks of the new tables are stored as they are:
where each will begin is known before the first is written, though inodes name places in the
directories' table and directories places in the inodes'.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from bootseer.image.optimize.moves import DataMoves
from bootseer.squashfs.inodes import Fragment, MetadataTable, SquashfsInode, header_places
from bootseer.squashfs.superblock import BLOCK_RAW, METADATA_BYTES, METADATA_RAW
from bootseer.squashfs.xattrs import SET, read_xattrs

_LENGTH = struct.Struct("<H")
_PLACE = struct.Struct("<I")
_LONG_PLACE = struct.Struct("<Q")
_FRAGMENT = struct.Struct("<QII")

# Where fields begin in an inode.
_FILE_START = 16
_DIRECTORY_BLOCK, _LONG_DIRECTORY_BLOCK = 16, 24
_INDEX_BLOCK = 4
_EMPTY_LIST = 3


def encode_table(data: bytes) -> Iterator[bytes]:
    """Yield a table's blocks as they are to be stored."""
    for at in range(0, len(data), METADATA_BYTES):
        block = data[at : at + METADATA_BYTES]
        yield _LENGTH.pack(len(block) | METADATA_RAW) + block


def relocate_reference(table: MetadataTable, reference: int) -> int:
    """Return the new reference to a place in a table; raises Corrupt if there is none."""
    return _place(table, reference >> 16) << 16 | reference & 0xFFFF


def relocate_fragments(fragments: Iterable[Fragment], moves: DataMoves) -> bytes:
    """Return the new table of fragments."""
    rows = []
    for start, length in fragments:
        if length & ~BLOCK_RAW:
            start, length = moves.find(start, length)
        rows.append(_FRAGMENT.pack(start, length, 0))
    return b"".join(rows)


def relocate_inodes(
    inodes: MetadataTable,
    directories: MetadataTable,
    found: Iterable[SquashfsInode],
    moves: DataMoves,
) -> bytes:
    """Return the new table of inodes.

    Args:
        inodes: the table as it was.
        directories: the same.
        found: all inodes.
        moves: where all files' blocks are now.

    Raises:
        Corrupt: a directory's place is none.
    """
    data = bytearray(inodes.data)
    for inode in found:
        if inode.is_file:
            at, first = inode.start, 0
            for number, length in enumerate(inode.blocks):
                if length:
                    start, now = moves.find(at, length)
                    first = first or start
                    _PLACE.pack_into(data, inode.blocks_at + 4 * number, now)
                    at += length & ~BLOCK_RAW
            form = _LONG_PLACE if inode.long else _PLACE
            form.pack_into(data, inode.at + _FILE_START, first)
        elif inode.is_directory:
            if inode.size > _EMPTY_LIST:
                field = _LONG_DIRECTORY_BLOCK if inode.long else _DIRECTORY_BLOCK
                _PLACE.pack_into(data, inode.at + field, _place(directories, inode.start))
            for index in inode.indexes_at:
                (block,) = _PLACE.unpack_from(data, index + _INDEX_BLOCK)
                _PLACE.pack_into(data, index + _INDEX_BLOCK, _place(directories, block))
    return bytes(data)


def relocate_directories(
    inodes: MetadataTable, directories: MetadataTable, found: Iterable[SquashfsInode]
) -> bytes:
    """Return the new table of directories; raises Corrupt if an entry has no inode."""
    data = bytearray(directories.data)
    for inode in found:
        if inode.is_directory:
            for at in header_places(directories, inode):
                (block,) = _PLACE.unpack_from(directories.data, at)
                _PLACE.pack_into(data, at, _place(inodes, block))
    return bytes(data)


def relocate_xattrs(values: MetadataTable, sets: bytes) -> tuple[bytes, bytes]:
    """Return the new tables of extended attributes: of their values, and of the sets of them.

    Raises:
        Corrupt: one refers to a place that does not exist.
    """
    data, rows = bytearray(values.data), bytearray(sets)
    for at in range(0, len(sets), SET.size):
        reference, count, _ = SET.unpack_from(sets, at)
        _LONG_PLACE.pack_into(rows, at, relocate_reference(values, reference))
        for xattr in read_xattrs(values, reference, count):
            if xattr.reference_at is not None:
                (reference,) = _LONG_PLACE.unpack_from(values.data, xattr.reference_at)
                new = relocate_reference(values, reference)
                _LONG_PLACE.pack_into(data, xattr.reference_at, new)
    return bytes(data), bytes(rows)


def _place(table: MetadataTable, block: int) -> int:
    """Return where a table's block will begin, given where it began."""
    return table.locate(block, 0) // METADATA_BYTES * (_LENGTH.size + METADATA_BYTES)

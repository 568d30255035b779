"""The inodes and directories of a squashfs, from the bytes of its tables.

Source: the on-disk format 4.0 as documented in the kernel's Documentation/filesystems/squashfs
and in "Squashfs Binary Format" (dr-emann.github.io/squashfs). A reference to an inode is the place
of its block in the stored table, and its offset in that block.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bootseer.errors import Corrupt
from bootseer.squashfs.superblock import BLOCK_RAW, METADATA_BYTES, NO_FRAGMENT

_HEADER = struct.Struct("<4H2I")  # type, mode, owner, group, mtime, number
_DIRECTORY = struct.Struct("<2I2HI")  # block, links, size, offset, parent
_FILE = struct.Struct("<4I")  # start, fragment, offset in it, size
_LINKS = struct.Struct("<I")
_XATTRS = struct.Struct("<I")  # at the end of the longer types
_PAIR = struct.Struct("<2I")  # links and length of the target, or device
_LONG_DIRECTORY = struct.Struct("<4I2HI")  # links, size, block, parent, index, offset, attributes
_LONG_FILE = struct.Struct("<3Q4I")  # start, size, sparse, links, fragment, offset, attributes
_INDEX = struct.Struct("<3I")  # offset, block, length of the name less one
_LIST_HEADER = struct.Struct("<3I")  # entries less one, inodes' block, inode number
_LIST_ENTRY = struct.Struct("<HhHH")  # offset, inode number, type, length of the name less one

_KINDS = (
    *(0, stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK),
    *(stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK),
)
_LONG = 7
"""From this number on the types repeat, with more fields."""

_EMPTY_LIST = 3
"""A directory's size includes three bytes that are not stored, for . and .."""


class Fragment(NamedTuple):
    """A fragment block: its place, and its stored length with BLOCK_RAW."""

    start: int
    length: int


class MetadataTable(NamedTuple):
    """A table: its blocks' concatenated contents, and where each was stored.

    ``places`` has each block's place, relative to the table's start, and its number.
    """

    data: bytes
    places: dict[int, int]

    def locate(self, block: int, offset: int) -> int:
        """Return the offset in ``data`` of a place in a block.

        Raises:
            Corrupt: there is no such block.
        """
        number = self.places.get(block)
        if number is None or offset >= METADATA_BYTES:
            raise Corrupt("the image's tables refer to a place outside them")
        return number * METADATA_BYTES + offset


@dataclass(frozen=True, slots=True)
class SquashfsInode:
    """One inode. Fields that do not apply are 0, () or NO_FRAGMENT.

    Attributes:
        at: offset in the table's data.
        mode: type and permissions, as in stat.
        size: size of a file or directory, in bytes.
        start: of a file's first block in the image; of a directory's list, its block in the table.
        blocks: a file's blocks: stored lengths, with BLOCK_RAW; 0 for a hole of zeros.
        fragment: number of the fragment block with a file's end.
        offset: offset of a file's end in the fragment, or of a directory's list in its block.
    """

    at: int
    mode: int
    size: int = 0
    start: int = 0
    blocks: tuple[int, ...] = ()
    fragment: int = NO_FRAGMENT
    offset: int = 0

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


class DirectoryEntry(NamedTuple):
    """A name in a directory, and its inode's offset in the inode table's data."""

    name: bytes
    at: int


def read_inodes(table: MetadataTable, block_size: int) -> Iterator[SquashfsInode]:
    """Yield all inodes in the order in which they are stored.

    Raises:
        Corrupt: the table is damaged.
    """
    at = 0
    while at < len(table.data):
        try:
            inode, at = _read_inode(table.data, at, block_size)
        except struct.error as error:
            raise Corrupt("the image's table of inodes is cut short") from error
        yield inode


def read_directory(
    directories: MetadataTable, inodes: MetadataTable, inode: SquashfsInode
) -> Iterator[DirectoryEntry]:
    """Yield a directory's entries, in order.

    Raises:
        Corrupt: the directory is damaged.
    """
    at, stop = _extent(directories, inode)
    for header_at, count in _headers(directories, at, stop):
        _, block, _ = _LIST_HEADER.unpack_from(directories.data, header_at)
        at = header_at + _LIST_HEADER.size
        for _ in range(count):
            try:
                offset, _, _, length = _LIST_ENTRY.unpack_from(directories.data, at)
            except struct.error as error:
                raise Corrupt("a directory of the image is cut short") from error
            at += _LIST_ENTRY.size
            name = directories.data[at : at + length + 1]
            at += length + 1
            if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
                raise Corrupt(f"a directory of the image has an impossible name: {name!r}")
            yield DirectoryEntry(name, inodes.locate(block, offset))


def _extent(directories: MetadataTable, inode: SquashfsInode) -> tuple[int, int]:
    if inode.size <= _EMPTY_LIST:
        return 0, 0
    at = directories.locate(inode.start, inode.offset)
    stop = at + inode.size - _EMPTY_LIST
    if stop > len(directories.data):
        raise Corrupt("a directory of the image goes past the table's end")
    return at, stop


def _headers(directories: MetadataTable, at: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the offset of each part of a list, and its number of entries."""
    try:
        while at < stop:
            count = _LIST_HEADER.unpack_from(directories.data, at)[0] + 1
            if count > (stop - at) // (_LIST_ENTRY.size + 1):
                break
            yield at, count
            at += _LIST_HEADER.size
            for _ in range(count):
                at += _LIST_ENTRY.size + _LIST_ENTRY.unpack_from(directories.data, at)[3] + 1
    except struct.error as error:
        raise Corrupt("a directory of the image is cut short") from error
    if at != stop:
        raise Corrupt("a directory of the image is damaged")


def _read_inode(data: bytes, at: int, block_size: int) -> tuple[SquashfsInode, int]:
    """Read the inode at an offset; return it and the offset of the next one."""
    kind, mode, *_ = _HEADER.unpack_from(data, at)
    long = kind > _LONG
    try:
        form = _KINDS[kind - _LONG if long else kind]
    except IndexError:
        form = 0
    if not form:
        raise Corrupt(f"the image has an inode of unknown type {kind}")
    mode = form | (mode & 0o7777)
    if form == stat.S_IFDIR:
        return _read_directory_inode(data, at, mode, long)
    if form == stat.S_IFREG:
        return _read_file_inode(data, at, mode, long, block_size)
    return SquashfsInode(at, mode), _end_of_other_inode(data, at, form, long)


def _read_directory_inode(data: bytes, at: int, mode: int, long: bool) -> tuple[SquashfsInode, int]:
    stop = at + _HEADER.size
    if not long:
        block, _, size, offset, _ = _DIRECTORY.unpack_from(data, stop)
        stop += _DIRECTORY.size
    else:
        _, size, block, _, count, offset, _ = _LONG_DIRECTORY.unpack_from(data, stop)
        stop += _LONG_DIRECTORY.size
        for _ in range(count):
            stop += _INDEX.size + _INDEX.unpack_from(data, stop)[2] + 1
    return SquashfsInode(at, mode, size=size, start=block, offset=offset), stop


def _read_file_inode(
    data: bytes, at: int, mode: int, long: bool, block_size: int
) -> tuple[SquashfsInode, int]:
    stop = at + _HEADER.size
    if long:
        start, size, _, _, fragment, offset, _ = _LONG_FILE.unpack_from(data, stop)
        stop += _LONG_FILE.size
    else:
        start, fragment, offset, size = _FILE.unpack_from(data, stop)
        stop += _FILE.size
    count = size // block_size if fragment != NO_FRAGMENT else -(-size // block_size)
    if count > (len(data) - stop) // 4:
        raise Corrupt("a file of the image has more blocks than the table holds")
    blocks = struct.unpack_from(f"<{count}I", data, stop)
    if any(length & ~BLOCK_RAW > block_size for length in blocks):
        raise Corrupt("a file of the image has a block larger than the superblock allows")
    return SquashfsInode(at, mode, size, start, blocks, fragment, offset), stop + 4 * count


def _end_of_other_inode(data: bytes, at: int, form: int, long: bool) -> int:
    """Return where the inode of a link, device, pipe or socket ends."""
    stop = at + _HEADER.size
    if form in (stat.S_IFIFO, stat.S_IFSOCK):
        stop += _LINKS.size
    else:
        _, target_bytes = _PAIR.unpack_from(data, stop)
        stop += _PAIR.size + (target_bytes if form == stat.S_IFLNK else 0)
    if long:
        stop += _XATTRS.size
    if stop > len(data):
        raise Corrupt("an inode of the image goes past the table's end")
    return stop

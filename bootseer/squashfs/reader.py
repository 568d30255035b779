"""Read a squashfs image without mounting it: its tree, and the places of its files' data.

The image is untrusted: it may be damaged or malicious. All tables are held in memory, so their
sizes are limited: by the MAX_… below, and each by `MAX_TABLE_BYTES`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt
from bootseer.squashfs.image_file import ImageFile
from bootseer.squashfs.inodes import (
    DirectoryEntry,
    Fragment,
    SquashfsInode,
    read_directory,
    read_inodes,
)
from bootseer.squashfs.superblock import BLOCK_RAW, NO_FRAGMENT, NO_TABLE

MAX_INODES = 600_000
MAX_NAMES = 1_000_000
MAX_BLOCKS = 1_000_000
"""Limit of all files' blocks: 130 GB of content in blocks of 128 KiB."""

MAX_SHARED = 4
"""How often directories may share the table's content; no known writer shares any."""

_FRAGMENT = struct.Struct("<QII")
_ID_BYTES = 4
_REFERENCE_BYTES = 8


class Squashfs(ImageFile):
    """An open image. Not thread-safe.

    Attributes:
        inode_table: all inodes.
        directory_table: all directories' lists.
        fragments: the blocks with files' ends.
        inodes: inodes, by offset in the inode table's data.
    """

    def __init__(self, path: Path) -> None:
        """Open an image and read its tables; close it with `close`, or as a context.

        Raises:
            NotFound: there is no such file.
            Unavailable: the file cannot be read, or its compressor is unknown.
            Corrupt: it is not a squashfs, damaged, or too large.
        """
        super().__init__(path)
        with self._closed_on_error():
            self._read_tables()

    def __enter__(self) -> Squashfs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def root(self) -> SquashfsInode:
        root = self.superblock.root
        return self.inode_at(self.inode_table.locate(root >> 16, root & 0xFFFF))

    def inode_at(self, at: int) -> SquashfsInode:
        """Return the inode at an offset in the inode table's data.

        Raises:
            Corrupt: there is no inode.
        """
        inode = self.inodes.get(at)
        if inode is None:
            raise Corrupt("the image's tables refer to an inode that does not exist")
        return inode

    def walk(self) -> Iterator[tuple[bytes, SquashfsInode]]:
        """Yield every path and its inode, in the order of the paths' parts; the root's is b"/".

        Raises:
            Corrupt: the directories do not form a tree, or have too many names.
        """
        seen = {self.root.at}
        yield b"/", self.root
        found = self._sorted(self.root, MAX_NAMES)
        names = MAX_NAMES - len(found)
        left = [(b"", iter(found))]
        while left:
            folder, entries = left[-1]
            entry = next(entries, None)
            if entry is None:
                left.pop()
                continue
            path, inode = folder + b"/" + entry.name, self.inode_at(entry.at)
            yield path, inode
            if inode.is_directory:
                if inode.at in seen:
                    raise Corrupt(f"a directory of {self.path} occurs twice in its tree")
                seen.add(inode.at)
                found = self._sorted(inode, names)
                names -= len(found)
                left.append((path, iter(found)))

    def _sorted(self, directory: SquashfsInode, most: int) -> list[DirectoryEntry]:
        entries = read_directory(self.directory_table, self.inode_table, directory)
        found = sorted(islice(entries, most + 1))
        if len(found) > most:
            raise Corrupt(f"the image {self.path} has more than {MAX_NAMES} names")
        return found

    def stored(self, inode: SquashfsInode) -> Iterator[tuple[ByteRange, int]]:
        """Yield the range and content length of each of a file's blocks."""
        at, left = inode.start, inode.size
        for length in inode.blocks:
            part = ByteRange(at, at + (length & ~BLOCK_RAW))
            content = min(left, self.superblock.block_size)
            yield part, content
            at = part.stop
            left -= content

    def _read_tables(self) -> None:
        block = self.superblock
        fragments = self._indexed(block.fragment_table, block.fragments, _FRAGMENT.size)
        export = self._indexed(block.export_table, block.inodes, _REFERENCE_BYTES)
        ids = self._indexed(block.id_table, block.ids, _ID_BYTES)
        later = (block.id_table, block.xattr_table, block.fragment_table, block.export_table)
        behind = [start for start in later if start != NO_TABLE]
        behind += [table[0] for table in (fragments, export, ids) if table]
        stop = min(behind)
        if stop < block.directory_table:
            raise Corrupt("the image's tables are out of order")
        self.inode_table = self.table(ByteRange(block.inode_table, block.directory_table))
        self.directory_table = self.table(ByteRange(block.directory_table, stop))
        count = block.fragments if fragments else 0
        rows = _FRAGMENT.iter_unpack(self.gather(fragments, count * _FRAGMENT.size))
        self.fragments = [Fragment(start, length) for start, length, _ in rows]
        if count != block.fragments or any(
            length & ~BLOCK_RAW > block.block_size for _, length in self.fragments
        ):
            raise Corrupt("the image's table of fragments is damaged")
        self.inodes = self._read_inodes()

    def _read_inodes(self) -> dict[int, SquashfsInode]:
        block = self.superblock
        if block.inodes > MAX_INODES:
            raise Corrupt(f"the image has {block.inodes} inodes: more than {MAX_INODES}")
        inodes: dict[int, SquashfsInode] = {}
        blocks = listed_bytes = 0
        for inode in read_inodes(self.inode_table, block.block_size):
            if inode.fragment != NO_FRAGMENT and inode.fragment >= len(self.fragments):
                raise Corrupt("a file of the image ends in a fragment that does not exist")
            inodes[inode.at] = inode
            blocks += len(inode.blocks)
            listed_bytes += inode.size if inode.is_directory else 0
            if len(inodes) > block.inodes or blocks > MAX_BLOCKS:
                break
        if len(inodes) != block.inodes or blocks > MAX_BLOCKS:
            raise Corrupt(
                "the image has more files or blocks than allowed, or fewer than it declares"
            )
        if listed_bytes > MAX_SHARED * (len(self.directory_table.data) + 3 * len(inodes)):
            raise Corrupt("the image's directories overlap")
        return inodes

    def _indexed(self, start: int, count: int, row_bytes: int) -> list[int]:
        return [] if start == NO_TABLE else self.index(start, count, row_bytes)

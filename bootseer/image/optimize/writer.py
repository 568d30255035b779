"""Write an image's data in another order, and tables that tell of it.

The tree is not unpacked. Blocks go to their new places, as they are or stored in another way, and
the tables get the new places written in. So nothing of the tree can get lost, no more rights are
needed than to read the image, and equal input gives equal bytes.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bootseer.core.ranges import ByteRange, split
from bootseer.errors import Unavailable
from bootseer.image.optimize.layout import (
    NEAR_BYTES,
    DataPiece,
    ImageLayout,
)
from bootseer.image.optimize.moves import DataMove, DataMoves
from bootseer.image.optimize.relocation import (
    encode_table,
    relocate_directories,
    relocate_fragments,
    relocate_inodes,
    relocate_reference,
    relocate_xattrs,
)
from bootseer.squashfs.codec import LZ4, LZ4_OPTIONS, lz4_compress
from bootseer.squashfs.inodes import Fragment, SquashfsInode
from bootseer.squashfs.reader import Squashfs
from bootseer.squashfs.superblock import (
    BLOCK_RAW,
    HAS_OPTIONS,
    IDS_RAW,
    INODES_RAW,
    NO_TABLE,
    SUPERBLOCK_BYTES,
    XATTRS_RAW,
)
from bootseer.squashfs.xattrs import SET
from bootseer.units import MIB


class BlockStorage(Enum):
    """How the new image stores blocks that are compressed. What is not stays so."""

    AS_THEY_ARE = "as they are"
    """Copied: smallest, and done soonest."""

    LZ4 = "lz4"
    """All recompressed with lz4: larger than zstd, and decompressed much faster."""

    HOT_UNCOMPRESSED = "hot uncompressed"
    """Hot ones decompressed, others copied: fastest where reading is faster than any processor."""


_COPY_BYTES = 4 * MIB
_AHEAD = 64  # blocks in memory that wait for their turn to be written, of 1 MiB at most
_PAD_BYTES = 4096  # loop devices want whole sectors; mksquashfs pads to this
_PLACE = struct.Struct("<Q")
_XATTRS = struct.Struct("<QII")  # where the values begin, number of sets, unused


@dataclass(frozen=True, slots=True)
class OptimizedImage:
    """What became of an image.

    Attributes:
        size_bytes: of the new image.
        front: range of the new image in which all is hot.
        front_files: pieces of data in it, mostly one of each file.
        scattered: range behind it, of large files with some hot blocks.
        scattered_files: pieces of data in that.
        storing: how blocks are stored that were compressed.
        moves: where everything is now, which also tells the new image's hot set.
    """

    size_bytes: int
    front: ByteRange
    front_files: int
    scattered: ByteRange
    scattered_files: int
    storing: BlockStorage
    moves: DataMoves


class LayoutTooLarge(Unavailable):
    """The image cannot be arranged like this."""

    def __init__(self, image: Path) -> None:
        """Say so of the image at a path."""
        super().__init__(
            f"{image} cannot be rearranged: its small files' data would begin behind the first "
            "4 GiB, and their inodes have no room to say so"
        )


class _Recoded(NamedTuple):
    """A block as it is to be stored, and what its inode is to say of that."""

    data: bytes
    length: int


class ImageWriter:
    """Writes one image."""

    def __init__(
        self,
        source: Squashfs,
        out: BinaryIO,
        layout: ImageLayout,
        storing: BlockStorage,
        advance: Callable[[int], None],
    ) -> None:
        """Prepare.

        Args:
            source: the image as it is.
            out: an empty file.
            layout: of all data of the image.
            storing: how to store blocks.
            advance: is told how many more bytes of the image have been written.
        """
        self._source = source
        self._out = out
        self._layout = layout
        self._storing = storing
        self._advance = advance
        self._moves: list[DataMove] = []
        self._content = {
            extent.start: size_bytes
            for inode in source.inodes.values()
            if inode.is_file and storing is not BlockStorage.AS_THEY_ARE
            for extent, length, size_bytes in source.stored(inode)
            if length
        }

    def write(self) -> OptimizedImage:
        """Write the image from front to back, and its superblock last.

        Raises:
            TooFar: a piece that is to be near comes out too far.
            Corrupt: the image is damaged, or has changed.
            OSError: it cannot be written.
        """
        out, layout = self._out, self._layout
        out.write(bytes(SUPERBLOCK_BYTES))
        if self._storing is BlockStorage.LZ4:
            out.write(LZ4_OPTIONS)
        else:
            options = self._source.data_start - SUPERBLOCK_BYTES
            out.write(self._source.pread(SUPERBLOCK_BYTES, options))
        ends = [out.tell()]
        # As many as there are processors: they decompress and compress.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for pieces in (layout.dense, layout.sparse, layout.cold):
                self._write_pieces(pieces, pool)
                ends.append(out.tell())
        moves = DataMoves(self._moves)
        self._write_tables(moves)
        return OptimizedImage(
            size_bytes=out.seek(0, os.SEEK_END),
            front=ByteRange(ends[0], ends[1]),
            front_files=len(layout.dense),
            scattered=ByteRange(ends[1], ends[2]),
            scattered_files=len(layout.sparse),
            storing=self._storing,
            moves=moves,
        )

    def _write_pieces(self, pieces: Sequence[DataPiece], pool: ThreadPoolExecutor) -> None:
        waiting: deque[tuple[ByteRange, DataPiece | None, Future[_Recoded | None]]] = deque()
        try:
            for piece in pieces:
                begins: DataPiece | None = piece
                for extent, recoded in self._parts(piece):
                    work = self._recode if recoded else self._leave
                    waiting.append((extent, begins, pool.submit(work, extent)))
                    begins = None
                    if len(waiting) >= _AHEAD:
                        self._write_part(*waiting.popleft())
            while waiting:
                self._write_part(*waiting.popleft())
        finally:
            for _, _, future in waiting:
                future.cancel()

    def _parts(self, piece: DataPiece) -> Iterator[tuple[ByteRange, bool]]:
        """Cut a piece into blocks that are stored anew, and what lies between them."""
        every = self._storing is BlockStorage.LZ4
        unmoved = piece.start
        for block, compressed in piece.blocks():
            if (every and compressed) or block.start in self._layout.growing:
                if unmoved < block.start:
                    yield ByteRange(unmoved, block.start), False
                yield block, True
                unmoved = block.stop
        if unmoved < piece.stop:
            yield ByteRange(unmoved, piece.stop), False

    def _write_part(
        self, extent: ByteRange, begins: DataPiece | None, future: Future[_Recoded | None]
    ) -> None:
        start = self._out.tell()
        if begins is not None and begins.near and start >= NEAR_BYTES:
            raise LayoutTooLarge(self._source.path)
        recoded = future.result()
        if recoded is None:
            for part in split(extent, _COPY_BYTES):
                self._out.write(self._source.pread(part.start, part.size_bytes))
        else:
            self._out.write(recoded.data)
        new = ByteRange(start, self._out.tell())
        self._moves.append(DataMove(extent, new, None if recoded is None else recoded.length))
        self._advance(extent.size_bytes)

    def _leave(self, extent: ByteRange) -> None:
        """Do nothing: a stretch without blocks to store anew is copied when it is written."""

    def _recode(self, block: ByteRange) -> _Recoded:
        size_bytes = self._content.get(block.start)
        if size_bytes is None:
            data = self._source.whole_fragment(Fragment(block.start, block.size_bytes))
        else:
            data = self._source.block(block.start, block.size_bytes, size_bytes)
        if self._storing is BlockStorage.LZ4:
            smaller = lz4_compress(data)
            if len(smaller) < len(data):
                return _Recoded(smaller, len(smaller))
        return _Recoded(data, len(data) | BLOCK_RAW)

    def _write_tables(self, moves: DataMoves) -> None:
        """Write the tables in mksquashfs' order, which Linux insists on."""
        source, out, old = self._source, self._out, self._source.superblock
        inodes, directories = source.inode_table, source.directory_table
        found: list[SquashfsInode] = [*source.inodes.values()]
        inode_table = out.tell()
        self._table(relocate_inodes(inodes, directories, found, moves))
        directory_table = out.tell()
        self._table(relocate_directories(inodes, directories, found))
        fragment_table, export_table = old.fragment_table, old.export_table
        if fragment_table != NO_TABLE:
            fragment_table = self._indexed(relocate_fragments(source.fragments, moves))
        if export_table != NO_TABLE:
            references = (relocate_reference(inodes, one) for one in source.export)
            export_table = self._indexed(b"".join(_PLACE.pack(one) for one in references))
        id_table = self._indexed(source.ids)
        xattr_table = old.xattr_table
        if xattr_table != NO_TABLE:
            xattr_table = self._xattrs()
        options = HAS_OPTIONS if self._storing is BlockStorage.LZ4 else 0
        new = replace(
            old,
            flags=old.flags | INODES_RAW | IDS_RAW | XATTRS_RAW | options,
            compressor=LZ4 if self._storing is BlockStorage.LZ4 else old.compressor,
            root=relocate_reference(inodes, old.root),
            bytes_used=out.tell(),
            id_table=id_table,
            xattr_table=xattr_table,
            inode_table=inode_table,
            directory_table=directory_table,
            fragment_table=fragment_table,
            export_table=export_table,
        )
        out.write(bytes(-out.tell() % _PAD_BYTES))
        out.seek(0)
        out.write(new.encode())

    def _table(self, data: bytes) -> list[int]:
        """Write a table; return where its blocks begin."""
        places = []
        for block in encode_table(data):
            places.append(self._out.tell())
            self._out.write(block)
        return places

    def _indexed(self, data: bytes) -> int:
        """Write a table and its index; return where the index begins."""
        places = self._table(data)
        start = self._out.tell()
        self._out.write(b"".join(_PLACE.pack(place) for place in places))
        return start

    def _xattrs(self) -> int:
        """Write the tables of extended attributes; return where their index begins."""
        values, sets = relocate_xattrs(self._source.xattr_values, self._source.xattr_sets)
        values_start = self._out.tell()
        self._table(values)
        places = self._table(sets)
        start = self._out.tell()
        self._out.write(_XATTRS.pack(values_start, len(sets) // SET.size, 0))
        self._out.write(b"".join(_PLACE.pack(place) for place in places))
        return start

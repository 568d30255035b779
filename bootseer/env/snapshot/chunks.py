"""The content of a snapshot's files in chunks, which are consecutive blocks of its squashfs.

Several chunks can be fetched, decompressed and unpacked in parallel, each in bounded memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from bootseer._io import ffi, lib
from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.snapshot.index import Index
from bootseer.errors import Corrupt
from bootseer.squashfs.superblock import BLOCK_RAW
from bootseer.units import MIB

CHUNK_BYTES = 8 * MIB
"""Enough for the threads to share, little enough for each to hold one in memory."""

Stored: TypeAlias = bytes | bytearray | memoryview


class FilePiece(NamedTuple):
    """A piece of a file in a chunk: whole blocks, but for the file's last one.

    Attributes:
        path: of the file.
        offset: in the file.
        start: offset in the chunk's content.
        size_bytes: its length.
    """

    path: bytes
    offset: int
    start: int
    size_bytes: int


@dataclass(slots=True)
class Chunk:
    """Consecutive blocks of the squashfs.

    Attributes:
        start: offset of the first block in the squashfs.
        stored_bytes: length of all blocks in the squashfs.
        size_bytes: length of their content.
        pieces: of files, in order.
        lengths: stored length of each block, as squashfs has it.
        sizes: length of each block's content.
    """

    start: int
    stored_bytes: int = 0
    size_bytes: int = 0
    pieces: list[FilePiece] = field(default_factory=list)
    lengths: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("I"))

    @property
    def stop(self) -> int:
        """Offset in the squashfs behind the last block."""
        return self.start + self.stored_bytes


def split(index: Index, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """Divide the content of all files into chunks.

    A chunk ends where a file ends, if it is at least half full by then, so that few files are in
    two chunks.

    Args:
        index: of the snapshot.
        chunk_bytes: most content that a chunk holds, but at least one block.
    """
    return list(_split(index, chunk_bytes))


def content(chunk: Chunk, stored: Stored, buffer: bytearray | None = None) -> memoryview:
    """Decompress a chunk.

    Args:
        chunk: from `split`.
        stored: its blocks, which were compared with the digests of the squashfs.
        buffer: memory to use, of `chunk.size_bytes` or more.

    Raises:
        Corrupt: the blocks are not what the index says.
    """
    data = memoryview(bytearray(chunk.size_bytes) if buffer is None else buffer)
    data = data[: chunk.size_bytes]
    status = lib.bs_extract_blocks(
        ffi.from_buffer("uint32_t[]", chunk.lengths),
        ffi.from_buffer("uint32_t[]", chunk.sizes),
        *(len(chunk.lengths), ffi.from_buffer("uint8_t[]", stored), len(stored)),
        *(ffi.from_buffer("uint8_t[]", data), len(data)),
    )
    if status < 0:
        raise Corrupt(
            f"the snapshot's squashfs holds at byte {chunk.start} something else than its index "
            "says; capture the environment again"
        )
    return data


def _split(index: Index, chunk_bytes: int) -> Iterator[Chunk]:
    chunk = Chunk(0)
    for path, place in index.places.items():
        size_bytes, at, offset = index.tree[path].size_bytes, place.start, 0
        is_half_full = 2 * chunk.size_bytes >= chunk_bytes
        is_too_long = chunk.size_bytes + size_bytes > chunk_bytes
        if size_bytes and (at != chunk.stop or (is_half_full and is_too_long)):
            if chunk.pieces:
                yield chunk
            chunk = Chunk(at)
        while offset < size_bytes:
            room, left = chunk_bytes - chunk.size_bytes, size_bytes - offset
            if room < min(left, BLOCK_BYTES) and chunk.pieces:
                yield chunk
                chunk = Chunk(at)
                continue
            count = -(-left // BLOCK_BYTES) if left <= room else max(1, room // BLOCK_BYTES)
            first = offset // BLOCK_BYTES
            lengths = place.blocks[first : first + count]
            taken = min(left, count * BLOCK_BYTES)
            _append(chunk, FilePiece(path, offset, chunk.size_bytes, taken), lengths)
            offset += taken
            at = chunk.stop
    if chunk.pieces:
        yield chunk


def _append(chunk: Chunk, piece: FilePiece, lengths: tuple[int, ...]) -> None:
    chunk.pieces.append(piece)
    chunk.lengths.extend(lengths)
    chunk.sizes.extend([BLOCK_BYTES] * (len(lengths) - 1))
    chunk.sizes.append(piece.size_bytes - BLOCK_BYTES * (len(lengths) - 1))
    chunk.size_bytes += piece.size_bytes
    chunk.stored_bytes += sum(length & ~BLOCK_RAW for length in lengths)

"""The tar stream of a snapshot in frames, each compressed by itself.

Several frames can be compressed, fetched and unpacked at once, and one can be read without the
others. Concatenated, they are an ordinary .tar.lz4.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import TypeAlias

import lz4.frame
from blake3 import blake3

from bootseer._io import ffi, lib
from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.errors import Corrupt
from bootseer.units import MIB

MAGIC = b"BSFRAMES"
VERSION = 1
MAX_BYTES = 64 * MIB
"""Of a table."""
FRAME_BYTES = 8 * MIB
"""Enough for the threads to share, little enough for each to hold one in memory."""
MAX_FRAME_BYTES = 64 * MIB
_ROW = struct.Struct("<QIQI32s")
_MAX_RATIO = 255
_MAX_OVERHEAD_BYTES = 64

Stored: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Frame:
    """A piece of the stream.

    Attributes:
        start: offset in the stream.
        size_bytes: length in the stream.
        stored_start: offset in the stored frames.
        stored_bytes: compressed length.
        digest: BLAKE3 of the compressed bytes.
    """

    start: int
    size_bytes: int
    stored_start: int
    stored_bytes: int
    digest: bytes


def cut(starts: Sequence[int], size_bytes: int, frame_bytes: int = FRAME_BYTES) -> Iterator[int]:
    """Divide a stream into frames.

    A frame ends at the end of a member, if it is half full by then, so that few files are in two
    frames.

    Args:
        starts: offsets of its members, in order.
        size_bytes: of the stream.
        frame_bytes: most that a frame may have.

    Yields:
        The length of each frame.
    """
    at = 0
    while at < size_bytes:
        stop = min(at + frame_bytes, size_bytes)
        if stop < size_bytes:
            number = bisect_right(starts, stop)
            if number and starts[number - 1] >= at + (frame_bytes + 1) // 2:
                stop = starts[number - 1]
        yield stop - at
        at = stop


def compress(
    chunks: Iterable[bytes | memoryview], lengths: Iterable[int], threads: int = 2
) -> Iterator[tuple[Frame, bytes]]:
    """Compress a stream.

    Args:
        chunks: pieces of it of any length; each is used up before the next is taken.
        lengths: lengths of its frames, from `cut`.
        threads: number of threads that compress; each has up to two frames in memory.

    Yields:
        Frames in order, with their compressed bytes.
    """
    start = stored_start = 0
    waiting: deque[Future[tuple[int, bytes, bytes]]] = deque()
    pool = ThreadPoolExecutor(threads)

    def done() -> tuple[Frame, bytes]:
        nonlocal start, stored_start
        size_bytes, stored, digest = waiting.popleft().result()
        frame = Frame(start, size_bytes, stored_start, len(stored), digest)
        start += size_bytes
        stored_start += len(stored)
        return frame, stored

    try:
        for data in _filled(chunks, lengths):
            waiting.append(pool.submit(_compressed, data))
            if len(waiting) == 2 * threads:
                yield done()
        while waiting:
            yield done()
    finally:
        pool.shutdown(cancel_futures=True)


def encode(frames: Iterable[Frame]) -> bytes:
    """Encode the table of all frames of a stream, in order."""
    rows = [astuple(frame) for frame in frames]
    header = {
        "frames": len(rows),
        "size_bytes": sum(row[1] for row in rows),
        "stored_bytes": sum(row[3] for row in rows),
    }
    return table.encode(MAGIC, VERSION, header, _ROW, rows)


def decode(data: bytes, name: str) -> tuple[Frame, ...]:
    """Decode a table of frames, which may be hostile.

    Args:
        data: the encoded table.
        name: for messages.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged, or its frames do not follow each other.
    """
    header, rows = table.open_table(MAGIC, VERSION, _ROW.size, data, name)
    fields = Fields(header, name)
    start = stored_start = 0
    frames: list[Frame] = []
    for row in _ROW.iter_unpack(rows):
        frame = Frame(*row)
        if (frame.start, frame.stored_start) != (start, stored_start):
            raise Corrupt(f"{name}: frame {len(frames)} is not behind the one before it")
        if not 0 < frame.size_bytes <= MAX_FRAME_BYTES or not _is_possible(frame):
            raise Corrupt(f"{name}: frame {len(frames)} has an impossible length")
        start += frame.size_bytes
        stored_start += frame.stored_bytes
        frames.append(frame)
    said = fields.count("frames"), fields.count("size_bytes"), fields.count("stored_bytes")
    if said != (len(frames), start, stored_start):
        raise Corrupt(f"{name}: its frames are others than its header says")
    return tuple(frames)


def content(frame: Frame, stored: Stored, buffer: bytearray | None = None) -> memoryview:
    """Return the content of a frame.

    Args:
        frame: from the table.
        stored: the compressed bytes; not checked yet.
        buffer: memory to use, of `frame.size_bytes` or more.

    Raises:
        Corrupt: it does not have the digest, or is not one LZ4 frame of that length.

    Memory: no more than the content takes, whatever the LZ4 frame says.
    """
    where = f"the snapshot's frame at byte {frame.stored_start}"
    if len(stored) != frame.stored_bytes or blake3(stored).digest() != frame.digest:
        raise Corrupt(f"{where} is damaged: it has another digest; capture the environment again")
    data = memoryview(bytearray(frame.size_bytes) if buffer is None else buffer)
    data = data[: frame.size_bytes]
    status = lib.bs_lz4_frame(
        ffi.from_buffer("uint8_t[]", stored),
        *(len(stored), ffi.from_buffer("uint8_t[]", data), len(data)),
    )
    if status < 0 or len(data) != frame.size_bytes:
        raise Corrupt(f"{where} is not one LZ4 frame of {frame.size_bytes} bytes")
    return data


def _is_possible(frame: Frame) -> bool:
    """Whether LZ4 can compress so many bytes to so few."""
    most = frame.size_bytes + frame.size_bytes // _MAX_RATIO + _MAX_OVERHEAD_BYTES
    return frame.stored_bytes <= most and frame.size_bytes <= frame.stored_bytes * _MAX_RATIO


def _filled(chunks: Iterable[bytes | memoryview], lengths: Iterable[int]) -> Iterator[bytearray]:
    """Join and cut chunks to pieces of given lengths."""
    source = iter(chunks)
    rest = memoryview(b"")
    for length in lengths:
        data = bytearray(length)
        at = 0
        while at < length:
            if not rest:
                chunk = next(source, None)
                if chunk is None:
                    raise ValueError("the stream is shorter than its frames")
                rest = memoryview(chunk)
            part = rest[: length - at]
            data[at : at + len(part)] = part
            at += len(part)
            rest = rest[len(part) :]
        yield data


def _compressed(data: bytearray) -> tuple[int, bytes, bytes]:
    """Return length, compressed bytes, and their digest."""
    stored = lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX256KB, block_linked=False, store_size=True
    )
    return len(data), stored, blake3(stored).digest()

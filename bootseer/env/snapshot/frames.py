"""The tar stream of a snapshot in frames, each compressed by itself.

So several are made, fetched and unpacked at once, and one can be read without the others. One
behind the other they are an ordinary .tar.lz4.
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
        start: in the stream.
        size_bytes: of the stream.
        stored_start: where it is stored, compressed.
        stored_bytes: of it there.
        digest: BLAKE3 of what is stored.
    """

    start: int
    size_bytes: int
    stored_start: int
    stored_bytes: int
    digest: bytes


def cut(starts: Sequence[int], size_bytes: int, frame_bytes: int = FRAME_BYTES) -> Iterator[int]:
    """Divide a stream into frames.

    A frame ends where a member does, if it is half full by then: what belongs to a file is in two
    frames only if it has to be.

    Args:
        starts: of its members, in order.
        size_bytes: of the stream.
        frame_bytes: that a frame has at most.

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
        chunks: of it, of any length; each is used up before the next is taken.
        lengths: of its frames, as `cut` gives them; together that of the stream.
        threads: that compress; each has one frame in memory, and another waits for it.

    Yields:
        Frames in their order, with what is to be stored.
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
    """Decode a table of frames, which may be made to harm.

    Args:
        data: the encoded table.
        name: for messages.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged, or its frames are not one behind the other.
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
    """Return what is in a frame.

    Args:
        frame: as the table has it.
        stored: what was read; it may be anything.
        buffer: of `frame.size_bytes` or more, to be used instead of new memory.

    Raises:
        Corrupt: it is not what was stored, or not one LZ4 frame with just that content.

    Memory: no more than the content takes, whatever the LZ4 frame says of itself.
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
    """Whether LZ4 can have made that much of that much."""
    most = frame.size_bytes + frame.size_bytes // _MAX_RATIO + _MAX_OVERHEAD_BYTES
    return frame.stored_bytes <= most and frame.size_bytes <= frame.stored_bytes * _MAX_RATIO


def _filled(chunks: Iterable[bytes | memoryview], lengths: Iterable[int]) -> Iterator[bytearray]:
    """Put chunks together to pieces of given lengths."""
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
    """Return length, what is to be stored, and its digest."""
    stored = lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX256KB, block_linked=False, store_size=True
    )
    return len(data), stored, blake3(stored).digest()

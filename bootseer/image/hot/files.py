"""Find and read the files that a hot set covers, through a mount of the image's tree."""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

import trio

from bootseer._io import ffi, lib
from bootseer.core.ranges import ByteRange, coalesce, total_bytes
from bootseer.rate_limit import RateLimit
from bootseer.squashfs.inodes import SquashfsInode
from bootseer.squashfs.reader import Squashfs
from bootseer.squashfs.superblock import BLOCK_RAW, NO_FRAGMENT
from bootseer.units import MIB

_STREAMS = 2
"""More are not faster: most kernels decompress one block of a mount at a time."""
_PIECE_BYTES = MIB


@dataclass(frozen=True, slots=True)
class HotFile:
    """A file with hot ranges.

    Attributes:
        path: below the image's root, as bytes.
        ranges: of its content, in order.
    """

    path: bytes
    ranges: tuple[ByteRange, ...]


class HotRanges:
    """Hot ranges of an image, to look up which of them a part of the image touches."""

    def __init__(self, hot: Sequence[ByteRange]) -> None:
        """Take ranges that do not overlap, in the order of first touch."""
        ordered = sorted((r.start, r.stop, number) for number, r in enumerate(hot))
        self._ranges = ordered
        self._starts = [start for start, _, _ in ordered]

    def first(self, part: ByteRange) -> int | None:
        """Return the index of the first hot range that overlaps a part; None if none does."""
        first = max(0, bisect_right(self._starts, part.start) - 1)
        touched = self._ranges[first : bisect_left(self._starts, part.stop)]
        return min((number for _, stop, number in touched if stop > part.start), default=None)


def hot_files(image: Path, hot: Sequence[ByteRange]) -> list[HotFile]:
    """List the files that have blocks in a hot set, in the order of first touch.

    Args:
        image: a squashfs.
        hot: ranges of it that do not overlap, in the order of first touch.

    Raises:
        NotFound: there is no such image.
        Unavailable: it cannot be read.
        Corrupt: it is damaged.
    """
    index = HotRanges(hot)
    found: list[tuple[int, HotFile]] = []
    seen: set[int] = set()
    with Squashfs(image) as squashfs:
        for path, inode in squashfs.walk():
            if not inode.is_file or inode.at in seen:
                continue
            seen.add(inode.at)
            touched = [
                (number, content)
                for part, content in _parts(squashfs, inode)
                if part.size_bytes and (number := index.first(part)) is not None
            ]
            if touched:
                ranges = tuple(content for _, content in touched)
                found.append((min(n for n, _ in touched), HotFile(path.lstrip(b"/"), ranges)))
    return [file for _, file in sorted(found, key=lambda pair: pair[0])]


def _parts(squashfs: Squashfs, inode: SquashfsInode) -> Iterator[tuple[ByteRange, ByteRange]]:
    """Yield the place of each block of a file in the image, and the range of content in it."""
    at = 0
    for part, size_bytes in squashfs.stored(inode):
        yield part, ByteRange(at, at + size_bytes)
        at += size_bytes
    if inode.fragment != NO_FRAGMENT and at < inode.size:
        start, length = squashfs.fragments[inode.fragment]
        yield ByteRange(start, start + (length & ~BLOCK_RAW)), ByteRange(at, inode.size)


class FilesPrefetch:
    """The read-ahead of files of a mounted image.

    Attributes:
        files: number of files read so far.
        read_bytes: read so far.
        pinned_bytes: of these, locked in memory until this process ends.
    """

    def __init__(
        self,
        root: str,
        files: Sequence[HotFile],
        limit_bytes: int,
        budget: RateLimit,
        flags: int = 0,
    ) -> None:
        """Prepare.

        Args:
            root: where the image is mounted.
            files: in the order in which they are read.
            limit_bytes: no file is begun after so many bytes.
            budget: the rate.
            flags: for open(2), beside those for reading.
        """
        self.files = 0
        self.read_bytes = 0
        self.pinned_bytes = 0
        self._root = os.fsencode(root)
        self._left = iter(files)
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._flags = flags | os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._pin = True
        self._scratch = ffi.new("uint8_t[]", _PIECE_BYTES)
        self._lock = Lock()  # guards the files left, and the counters

    async def run(self) -> None:
        """Read all files.

        Cancellation: returns at once; threads stop after the file that they are in.
        """
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(_STREAMS):
                    nursery.start_soon(
                        partial(trio.to_thread.run_sync, self._stream, abandon_on_cancel=True)
                    )
        finally:
            with self._lock:
                self._left = iter(())

    def _stream(self) -> None:
        while True:
            with self._lock:
                file = next(self._left, None) if self.read_bytes < self._limit_bytes else None
            if file is None:
                return
            size_bytes = total_bytes(file.ranges)
            time.sleep(self._budget.take(size_bytes, time.monotonic()))
            with suppress(OSError):  # the user may not read all files of an image
                self._read(file)

    def _read(self, file: HotFile) -> None:
        path = os.path.join(self._root, file.path)
        fd = os.open(path, self._flags)
        try:
            size_bytes = os.fstat(fd).st_size
            handle = ffi.new("bs_window **")
            if lib.bs_window_open(fd, size_bytes, handle) < 0:
                return
            for start, stop in coalesce(file.ranges):
                read = lib.bs_window_read(
                    handle[0], start, min(stop, size_bytes), self._scratch, _PIECE_BYTES, ffi.NULL
                )
                if read <= 0:
                    return
                # The mapping stays, and with it what is locked, when the descriptor is closed.
                pinned = lib.bs_window_pin(handle[0], start, start + read) if self._pin else 0
                with self._lock:
                    self.read_bytes += read
                    self.pinned_bytes += max(0, pinned)
                    self._pin = self._pin and pinned >= 0
        finally:
            os.close(fd)
        with self._lock:
            self.files += 1

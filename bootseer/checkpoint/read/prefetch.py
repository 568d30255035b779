"""Prefetch a mounted checkpoint into memory: read what the job is going to read."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

import trio

from bootseer.core.access_log import FileReads, expand
from bootseer.core.ranges import ByteRange, total_bytes
from bootseer.large_buffers import page_buffer
from bootseer.rate_limit import RateLimit
from bootseer.units import MIB

_READ_BYTES = 4 * MIB
_FILES_AT_ONCE = 4
"""For each of them, the mount reads from all machines of the store."""


@dataclass(eq=False)
class CheckpointPrefetch:
    """The prefetch of the files of one node.

    Attributes:
        root: where the checkpoint is mounted.
        budget: the rate.
        left_bytes: the most that is still to be read.
        on_open: called with path and ranges of every file before it is opened.
        read_bytes: read so far.
        files: number of files read so far.
        want_bytes: to be read, of all files that exist now.
        error: the first error as text, with the path of its file; "" without one.
    """

    root: str
    budget: RateLimit
    left_bytes: int
    on_open: Callable[[str, tuple[ByteRange, ...]], Awaitable[None]]
    read_bytes: int = 0
    files: int = 0
    want_bytes: int = 0
    error: str = ""
    # Guards what is left and the counters.
    _lock: Lock = field(default_factory=Lock)
    _stopped: bool = False
    _listings: dict[str, list[str]] = field(default_factory=dict)

    async def run(self, files: Sequence[FileReads]) -> None:
        """Read files in order; returns when all are read or the limit is reached.

        Cancellation: returns at once; threads stop after the read that they are in.
        """
        in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
        found: dict[str, tuple[ByteRange, ...]] = {}
        for file in files:
            found.setdefault(await in_thread(expand, file, self._list), file.ranges)
        self.want_bytes = sum(map(total_bytes, found.values()))
        waiting = deque(found.items())

        async def stream() -> None:
            while waiting:
                path, ranges = waiting.popleft()
                await self.on_open(path, ranges)
                await in_thread(self._read, path, ranges)

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(_FILES_AT_ONCE):
                    nursery.start_soon(stream)
        finally:
            self._stopped = True

    def _list(self, folder: str) -> list[str]:
        if folder not in self._listings:
            try:
                self._listings[folder] = os.listdir(os.path.join(self.root, folder))
            except OSError:
                self._listings[folder] = []
        return self._listings[folder]

    def _read(self, path: str, ranges: tuple[ByteRange, ...]) -> None:
        try:
            fd = os.open(os.path.join(self.root, path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                for byte_range in ranges:
                    self._read_range(fd, byte_range)
            finally:
                os.close(fd)
        except OSError as error:
            with self._lock:
                self.error = self.error or f"{path}: {error.strerror}"
            return
        with self._lock:
            self.files += 1

    def _read_range(self, fd: int, byte_range: ByteRange) -> None:
        buffer = page_buffer(min(_READ_BYTES, byte_range.size_bytes))
        at = byte_range.start
        while self._may_read(want := min(byte_range.stop - at, len(buffer))):
            got = os.preadv(fd, [buffer[:want]], at)
            if not got:
                return  # the file is shorter now
            at += got
            with self._lock:
                self.read_bytes += got

    def _may_read(self, size_bytes: int) -> bool:
        with self._lock:
            if self._stopped or not 0 < size_bytes <= self.left_bytes:
                return False
            self.left_bytes -= size_bytes
        time.sleep(self.budget.take(size_bytes, time.monotonic()))
        return True

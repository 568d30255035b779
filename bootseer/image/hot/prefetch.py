"""Read an image's hot ranges ahead, in order, with parallel reads, and pin what was read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import ceil, inf
from threading import Condition, Event, Lock

import trio

from bootseer._io import ffi, lib
from bootseer.core.ranges import ByteRange
from bootseer.errors import Unavailable
from bootseer.rate_limit import RateLimit
from bootseer.units import KIB, MIB

_USERS_PART = 0.5
"""Of what may be pinned, for one user."""
PIECE_BYTES = MIB
"""Pinned together, and the largest read."""
_SMALL_BYTES = 256 * KIB
"""The smallest read of a store that others read meanwhile: smaller ones cost more processor."""
_READ_S = 0.002
"""For one read, of a store that is near: who reads meanwhile waits for no more than two."""
_GAIN = 2.0
"""Under way, of what keeps the store busy. Source: BBR (Cardwell and others, 2016)."""
_WINDOW_S = 0.005
"""In which the store's rate is measured, at least; longer where a read takes longer."""
_MEMORY_S = 0.0001
"""A quicker read comes out of memory, and says nothing of the store."""


class UnderWay:
    """What is being read at the same time: what keeps the store busy, and little beyond that.

    Whoever else reads waits behind what waits there. What keeps the store busy is its rate times
    what a read takes that waits behind nothing, as the quickest one did.

    Concurrency: any number of threads.

    Attributes:
        limit_bytes: of what is read at the same time.
        read_bytes: of one read.
    """

    def __init__(
        self, streams: int, *, is_limited: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with nothing.

        Args:
            streams: that read at the same time.
            is_limited: others read of the same store; else all streams read large pieces at once.
            now: a clock, in seconds.
        """
        self._streams = streams
        self._is_limited = is_limited
        self.read_bytes = _SMALL_BYTES if is_limited else PIECE_BYTES
        self.limit_bytes = (2 if is_limited else streams) * self.read_bytes
        self._bytes = 0
        self._done_bytes = 0
        self._now = now
        self._since_s = now()
        self._quickest_s = inf
        self._changed = Condition()

    @contextmanager
    def piece(self, size_bytes: int) -> Iterator[None]:
        """Wait until a piece may be read; it is under way within the context."""
        with self._changed:
            while self._bytes and self._bytes + size_bytes > self.limit_bytes:
                self._changed.wait()
            begun_s = self._now()
            if not self._bytes:  # nothing was asked for
                self._done_bytes, self._since_s = 0, begun_s
            self._bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._bytes -= size_bytes
                self._done_bytes += size_bytes
                if self._is_limited:
                    self._note(size_bytes, self._now() - begun_s)
                # Not all of them: most would only wait again, and use the job's processors for it.
                room_bytes = self.limit_bytes - self._bytes
                self._changed.notify(max(1, room_bytes // self.read_bytes))

    def _note(self, size_bytes: int, took_s: float) -> None:
        """Look at what a read took, and from time to time at the rate."""
        if size_bytes >= _SMALL_BYTES and took_s > _MEMORY_S:
            self._quickest_s = min(self._quickest_s, took_s)
        passed_s = self._now() - self._since_s
        if passed_s < _WINDOW_S or passed_s < 2 * self._quickest_s < inf:
            return
        rate = self._done_bytes / passed_s
        self._done_bytes, self._since_s = 0, self._now()
        busy_bytes = min(_GAIN * rate * self._quickest_s, self._streams * PIECE_BYTES)
        read_bytes = max(rate * _READ_S, busy_bytes / self._streams)
        self.read_bytes = min(ceil(read_bytes / _SMALL_BYTES) * _SMALL_BYTES, PIECE_BYTES)
        self.limit_bytes = max(int(busy_bytes), 2 * self.read_bytes)


class Prefetch:
    """The read-ahead of one image.

    Attributes:
        read_bytes: brought into the page cache so far.
        pinned_bytes: of these, locked in memory until this process ends.
        error: first failed read as text, "" while there is none. Others go on.
    """

    def __init__(
        self,
        fd: int,
        size_bytes: int,
        streams: int,
        budget: RateLimit | None = None,
        *,
        others_wait: bool = False,
    ) -> None:
        """Prepare; ``fd`` stays the caller's and must outlive this object.

        Args:
            fd: of the image.
            size_bytes: of the image.
            streams: parallel reads.
            budget: how fast to read, together with whoever shares it; None for freely.
            others_wait: who reads of the same store meanwhile has to wait behind it.

        Raises:
            Unavailable: the file cannot be mapped.
        """
        handle = ffi.new("bs_window **")
        result = lib.bs_window_open(fd, size_bytes, handle)
        if result < 0:
            raise Unavailable(f"cannot map the image: {os.strerror(-result)}")
        self._handle = handle[0]
        self._streams = streams
        self._budget = budget or RateLimit(0)
        self._under_way = UnderWay(streams, is_limited=others_wait)
        # One for all streams: nobody looks at what lands in it.
        self._scratch = ffi.new("uint8_t[]", PIECE_BYTES)
        self._lock = Lock()  # guards the pieces and the counters below
        self._pieces: Iterator[ByteRange] = iter(())
        self._pin = True
        self._idle = False
        self._held_since: float | None = None
        self._may_read = Event()
        self._may_read.set()
        self.read_bytes = 0
        self.pinned_bytes = 0
        self.error = ""

    async def run(self, pieces: Iterator[ByteRange]) -> None:
        """Read all pieces; returns when the last is there.

        Concurrency: ``streams`` threads, each with one read under way.
        Cancellation: returns at once; threads stop after the read they are in.
        """
        self._pieces = pieces
        limiter = trio.CapacityLimiter(self._streams)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self._streams):
                    nursery.start_soon(
                        partial(
                            trio.to_thread.run_sync,
                            self._stream,
                            limiter=limiter,
                            abandon_on_cancel=True,
                        )
                    )
        finally:
            self.stop()

    def hold(self, *, is_held: bool) -> None:
        """Read nothing for the time being, or go on."""
        if is_held:
            self._held_since = time.monotonic()
            self._may_read.clear()
        else:
            self._held_since = None
            self._may_read.set()

    @property
    def held_s(self) -> float:
        """For how many seconds nothing has been read now."""
        since = self._held_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self) -> None:
        """Read no more pieces."""
        with self._lock:
            self._pieces = iter(())
        self.hold(is_held=False)

    def yield_to_others(self) -> None:
        """Go on with idle I/O priority: the job is no longer waiting for this."""
        self._idle = True

    def stop_pinning(self) -> None:
        """Read on, and leave it to the kernel to keep what is read from now on."""
        self._pin = False

    def _stream(self) -> None:
        idle = False
        while True:
            self._may_read.wait()
            with self._lock:
                piece = next(self._pieces, None)
            if piece is None:
                return
            if self._idle and not idle:
                idle = True
                lib.bs_io_idle()
            time.sleep(self._budget.take(piece.size_bytes, time.monotonic()))
            read = self._read(piece)
            pinned = 0
            if read > 0 and self._pin:
                pinned = lib.bs_window_pin(self._handle, piece.start, piece.start + read)
            with self._lock:
                if read < 0:
                    self.error = self.error or f"{os.strerror(-read)} at byte {piece.start}"
                self.read_bytes += max(0, read)
                self.pinned_bytes += max(0, pinned)
                # Out of lockable memory or mappings: later pieces are read all the same.
                self._pin = self._pin and pinned >= 0

    def _read(self, piece: ByteRange) -> int:
        """Read a piece, in as many reads as it takes; returns its bytes, or a negative errno."""
        at = piece.start
        while at < piece.stop:
            stop = min(piece.stop, at + self._under_way.read_bytes)
            with self._under_way.piece(stop - at):
                read = int(lib.bs_window_read(self._handle, at, stop, self._scratch, PIECE_BYTES))
            if read < 0:
                return read
            if not read:
                break  # the image has become shorter
            at += read
        return at - piece.start


def available_bytes() -> int:
    """Return how much memory could be had now without anything being written out."""
    return _meminfo().get("MemAvailable", 0)


def pinnable_bytes(share: float) -> int:
    """Return how much more may be pinned now, so that no more than ``share`` is.

    The share is of what was available before anybody locked memory, and what others hold counts
    against it. One user's processes get a part of it, with many jobs as with one: something is left
    for whoever comes next.
    """
    most_bytes, locked_bytes = _pinning(share)
    own_bytes = locked_by(os.getuid()) if locked_bytes else 0
    return max(0, int(min(most_bytes - locked_bytes, _USERS_PART * most_bytes - own_bytes)))


def may_pin(share: float) -> bool:
    """Whether any more may be pinned now, see `pinnable_bytes`; for who asks again and again.

    One user can have too much of it only if all together have as much: until then no process is
    looked at.
    """
    most_bytes, locked_bytes = _pinning(share)
    part_bytes = _USERS_PART * most_bytes
    if locked_bytes < part_bytes:
        return True
    return locked_bytes < most_bytes and locked_by(os.getuid()) < part_bytes


def _pinning(share: float) -> tuple[float, int]:
    """Return how many bytes may be pinned by all together, and how many are locked already."""
    memory = _meminfo()
    locked_bytes = memory.get("Mlocked", 0)
    return share * (memory.get("MemAvailable", 0) + locked_bytes), locked_bytes


def locked_by(uid: int) -> int:
    """Return how much memory the processes of a user have locked."""
    found = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # it has ended
            if entry.name.isdecimal() and entry.stat().st_uid == uid:
                with open(f"/proc/{entry.name}/status", "rb") as file:
                    status = dict(line.split(b":", 1) for line in file if b":" in line)
                if int(status[b"Uid"].split()[0]) == uid:
                    found += int(status.get(b"VmLck", b"0").split()[0]) * 1024
    return found


def _meminfo() -> dict[str, int]:
    # Not psutil's: its import takes 13 ms that a starting job waits for.
    with open("/proc/meminfo") as file:
        lines = [line.split() for line in file]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}

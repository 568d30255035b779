"""Read an image's hot ranges ahead, in order, with parallel reads, and pin what was read."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
"""Of the memory that may be pinned, for one user."""
PIECE_BYTES = MIB
"""Is pinned at once; also the largest read."""
_SMALL_BYTES = 256 * KIB
"""The smallest read while others use the store: smaller ones cost more processor time."""
_READ_S = 0.002
"""For one read of a near store: a start that reads meanwhile waits for two of them at most."""
_GAIN = 3.0
"""Times the bytes that keep the store busy. BBR (Cardwell and others, 2016) takes 2; a kernel that
makes several requests of a read, one after another, has fewer under way than are counted."""
_WINDOW_S = 0.005
_WINDOW_READS = 8
_WINDOW_LATENCIES = 4
"""At least so long the store's rate is measured: with fewer reads it is a matter of chance."""
_WINDOWS = 10
"""The rate is the highest of so many, as BBR's. The last alone would be low after reads that were
late, with fewer reads under way it would stay low, and the limit would go down to two reads."""
_PROBE_S = 1.0
"""Now and then a read has the store to itself. BBR's ProbeRTT, more often: a prefetch is short."""


@dataclass(slots=True)
class Read:
    """A read under way.

    Attributes:
        waited: for the store; what was in memory already says nothing about it.
    """

    waited: bool = True


class UnderWay:
    """Limits the reads under way to what keeps the store busy, and little beyond that.

    Other readers of the store wait behind these reads. The store is busy with its rate times the
    time of a read that waits behind no other; that of the quickest read is taken. As reads that are
    always under way would hide it, one is alone each second.

    Concurrency: any number of threads.

    Attributes:
        limit_bytes: of all reads under way.
        read_bytes: the size of one read.
    """

    def __init__(
        self, streams: int, *, is_limited: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with no reads.

        Args:
            streams: number of threads that read.
            is_limited: others read from the same store; if not, all streams read large pieces.
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
        self._reads = 0
        self._rates: deque[float] = deque(maxlen=_WINDOWS)
        self._quickest_s = inf
        self._probe_at_s = now() + _PROBE_S if is_limited else inf
        self._changed = Condition()

    @contextmanager
    def piece(self, size_bytes: int) -> Iterator[Read]:
        """Wait until a piece may be read; its read is under way within the context."""
        read = Read()
        with self._changed:
            while not self.has_room(size_bytes):
                self._changed.wait()
            begun_s = self._now()
            probes = begun_s >= self._probe_at_s
            if not self._bytes:  # the store was idle
                self._begin_window(begun_s)
            self._bytes += size_bytes
        try:
            yield read
        finally:
            with self._changed:
                self._bytes -= size_bytes
                if self._is_limited and read.waited:
                    self._note(size_bytes, self._now() - begun_s)
                if probes and read.waited:
                    self._begin_window(self._now())
                    self._probe_at_s = self._since_s + _PROBE_S
                # Not all threads: most would only wait again, and use the job's processors for it.
                room_bytes = self.limit_bytes - self._bytes
                self._changed.notify(max(1, room_bytes // self.read_bytes))

    def has_room(self, size_bytes: int) -> bool:
        """Whether one more read may begin now."""
        is_probed = self._now() >= self._probe_at_s
        return not self._bytes or (self._bytes + size_bytes <= self.limit_bytes and not is_probed)

    def _note(self, size_bytes: int, took_s: float) -> None:
        """Adapt to the time of a read, and now and then to the rate."""
        self._done_bytes += size_bytes
        self._reads += 1
        if size_bytes >= _SMALL_BYTES:
            self._quickest_s = min(self._quickest_s, took_s)
        now_s = self._now()
        passed_s = now_s - self._since_s
        if self._reads < _WINDOW_READS or passed_s < _WINDOW_S:
            return
        if passed_s < _WINDOW_LATENCIES * self._quickest_s < inf:
            return
        self._rates.append(self._done_bytes / passed_s)
        rate = max(self._rates)
        self._begin_window(now_s)
        busy_bytes = min(_GAIN * rate * self._quickest_s, self._streams * PIECE_BYTES)
        read_bytes = max(rate * _READ_S, busy_bytes / self._streams)
        self.read_bytes = min(ceil(read_bytes / _SMALL_BYTES) * _SMALL_BYTES, PIECE_BYTES)
        self.limit_bytes = max(int(busy_bytes), 2 * self.read_bytes)

    def _begin_window(self, now_s: float) -> None:
        self._done_bytes, self._reads, self._since_s = 0, 0, now_s


class Prefetch:
    """The read-ahead of one image.

    Attributes:
        read_bytes: brought into the page cache so far.
        pinned_bytes: of these, locked in memory until this process ends.
        error: the first failed read as text, "" without one. Other reads go on.
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
        """Map the image.

        Args:
            fd: of the image; the caller closes it, after this object is not used any more.
            size_bytes: of the image.
            streams: number of parallel reads.
            budget: a rate that others may share; None for no limit.
            others_wait: other readers of the same store have to wait behind these reads.

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
        # One for all streams: its content is not used.
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
        """Read all pieces; returns when the last one has been read.

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
        if is_held:
            self._held_since = time.monotonic()
            self._may_read.clear()
        else:
            self._held_since = None
            self._may_read.set()

    @property
    def held_s(self) -> float:
        """How long the reads have been paused by now, in seconds."""
        since = self._held_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self) -> None:
        with self._lock:
            self._pieces = iter(())
        self.hold(is_held=False)

    def yield_to_others(self) -> None:
        """Go on with idle I/O priority: the job does not wait for the prefetch any more."""
        self._idle = True

    def stop_pinning(self) -> None:
        """Go on without pinning what is read from now on."""
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
                # Without lockable memory or mappings, later pieces are only read.
                self._pin = self._pin and pinned >= 0

    def _read(self, piece: ByteRange) -> int:
        """Read a piece, in as many reads as it takes; returns its bytes, or a negative errno."""
        at = piece.start
        while at < piece.stop:
            stop = min(piece.stop, at + self._under_way.read_bytes)
            waited = ffi.new("int *")
            with self._under_way.piece(stop - at) as under_way:
                read = int(
                    lib.bs_window_read(self._handle, at, stop, self._scratch, PIECE_BYTES, waited)
                )
                under_way.waited = bool(waited[0])
            if read < 0:
                return read
            if not read:
                break  # the image has become shorter
            at += read
        return at - piece.start


def available_bytes() -> int:
    """Return how much memory is available now without writing anything out."""
    return _meminfo().get("MemAvailable", 0)


def pinnable_bytes(share: float) -> int:
    """Return how much more memory may be pinned now, so that no more than ``share`` is pinned.

    It is a share of the memory that would be available if nothing were locked, and all processes'
    locked memory counts. All processes of one user get a part of it, so that something is left for
    the next user.
    """
    most_bytes, locked_bytes = _pinning(share)
    own_bytes = locked_by(os.getuid()) if locked_bytes else 0
    return max(0, int(min(most_bytes - locked_bytes, _USERS_PART * most_bytes - own_bytes)))


def may_pin(share: float) -> bool:
    """Whether any more memory may be pinned now, see `pinnable_bytes`; cheap enough for polling.

    A user can have locked too much only if all users together have locked as much: until then, no
    processes are looked at.
    """
    most_bytes, locked_bytes = _pinning(share)
    part_bytes = _USERS_PART * most_bytes
    if locked_bytes < part_bytes:
        return True
    return locked_bytes < most_bytes and locked_by(os.getuid()) < part_bytes


def _pinning(share: float) -> tuple[float, int]:
    """Return how many bytes all users together may pin, and how many are locked already."""
    memory = _meminfo()
    locked_bytes = memory.get("Mlocked", 0)
    return share * (memory.get("MemAvailable", 0) + locked_bytes), locked_bytes


def locked_by(uid: int) -> int:
    """Return how many bytes of memory the processes of a user have locked."""
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

"""Fetch the pieces of files: on demand, ahead of it, each once, in bounded memory.

get(piece) ────────────┐                       ┌─► who asked for it
read_ahead(range) ─► lanes ─► source.fetch ─► held in memory, or
                                               └─► sink: the kernel's page cache, a local file

What is fetched ahead is held until it is asked for; when memory runs short, what comes in then goes
to the sink at once, and that is what is needed last. A file that holds nothing has all of it sunk.
"""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

import trio

from bootseer.checkpoint.files.source import FileSource
from bootseer.checkpoint.files.stripe_manifest import units_between
from bootseer.checkpoint.read.lanes import Lanes
from bootseer.core.meter import Meter
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, Closed, Conflict, NotFound
from bootseer.units import MIB

Sink = Callable[[int, bytes], Awaitable[None]]
"""Takes the bytes at an offset of the file that were fetched ahead."""

_ATTEMPTS = 3
"""Of one piece, each with readers of its own."""
_HEDGE_FACTOR = 4
_HEDGE_LEAST_S = 0.5
_HEDGE_FIRST_S = 3.0


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much at once.

    Attributes:
        memory_bytes: of what is being fetched or held; at most half of it waits to be asked for.
            One piece is fetched ahead however large it is, and who asks for one never waits for
            memory.
        streams: fetches at once of all files together.
        streams_per_lane: and of one lane.
    """

    memory_bytes: int = 256 * MIB
    streams: int = 24
    streams_per_lane: int = 2


@dataclass(slots=True, eq=False)
class _Piece:
    """A piece on its way, or there."""

    size_bytes: int
    done: trio.Event = field(default_factory=trio.Event)
    data: bytes | None = None
    error: BootseerError | None = None
    users: int = 0
    is_unread: bool = False


class Fetcher:
    """What all files that are being read have in common: memory, streams, and who waits.

    Concurrency: the tasks of one trio run.
    """

    def __init__(self, nursery: trio.Nursery, limits: FetchLimits | None = None) -> None:
        """Run the fetches as tasks of `nursery`."""
        self.limits = limits or FetchLimits()
        self.nursery = nursery
        self.fetched = Meter(time.time_ns)
        self.hedged = 0
        self._used_bytes = 0
        self._unread_bytes = 0
        self._streams = 0
        self._idle: OrderedDict[tuple[FileFetch, int], _Piece] = OrderedDict()
        self._waiting: deque[FileFetch] = deque()
        self._demand = trio.CapacityLimiter(self.limits.streams)

    def open(
        self,
        source: FileSource,
        sink: Sink | None = None,
        *,
        sunk: set[int] | None = None,
        hold: bool = False,
    ) -> FileFetch:
        """Read a file.

        Args:
            source: its content.
            sink: gets what is fetched ahead and not held.
            sunk: pieces that the sink has, which are not fetched ahead; those that it gets are
                added.
            hold: keep what is fetched ahead until it is asked for, as long as there is room.
        """
        return FileFetch(self, source, sink, set() if sunk is None else sunk, hold)

    # Memory: what is held for nobody in particular gives way.

    def _make_room(self, size_bytes: int) -> bool:
        while self._used_bytes + size_bytes > self.limits.memory_bytes and self._idle:
            (file, number), piece = self._idle.popitem(last=False)
            file._drop(number, piece)
            self._used_bytes -= piece.size_bytes
        return not self._used_bytes or self._used_bytes + size_bytes <= self.limits.memory_bytes

    def _pump(self) -> None:
        """Start fetches ahead, in turn for each file that has some waiting."""
        in_vain = 0
        while in_vain < len(self._waiting) and self._streams < self.limits.streams:
            file = self._waiting.popleft()
            started = file._start_one()
            if file._queued:
                self._waiting.append(file)
            # A file that has nothing waiting any more counts for nothing.
            in_vain = 0 if started else in_vain + bool(file._queued)


class FileFetch:
    """The pieces of one file, as they are needed."""

    def __init__(
        self, shared: Fetcher, source: FileSource, sink: Sink | None, sunk: set[int], hold: bool
    ) -> None:
        """Use `Fetcher.open`."""
        self.source = source
        self._sunk = sunk
        self._shared = shared
        self._sink = sink
        self._holds = hold
        self._pieces: dict[int, _Piece] = {}
        self._lanes = Lanes(shared.limits.streams_per_lane)
        self._queued: set[int] = set()
        self._scopes: set[trio.CancelScope] = set()
        self._took_s: deque[float] = deque(maxlen=32)
        self._ahead = 0
        self._quiet = trio.Event()
        self._quiet.set()
        self._closed = False
        self.failed: BootseerError | None = None

    async def get(self, number: int, *, to_end: bool = True) -> bytes:
        """Return a piece, which may be on its way already; what is needed goes before all else.

        Args:
            number: of the piece.
            to_end: its end is asked for; if not, it stays held as what is still to be asked for.

        Raises:
            Corrupt, Conflict: see `FileSource.fetch`.
            BootseerError: the store cannot be read.
        """
        piece = self._pieces.get(number)
        if piece is None:
            was_queued = number in self._queued
            piece = self._begin(number)
            self._ahead += was_queued
            self._shared._make_room(piece.size_bytes)
            self._shared._used_bytes += piece.size_bytes
            self._shared.nursery.start_soon(self._on_demand, number, piece, was_queued)
        self._shared._idle.pop((self, number), None)
        if to_end:
            self._mark_read(piece)
        piece.users += 1
        try:
            await piece.done.wait()
        finally:
            self._let_go(number, piece)
        if piece.error is not None:
            raise piece.error.again() from piece.error
        assert piece.data is not None
        return piece.data

    async def read(self, offset: int, size_bytes: int) -> bytes | memoryview:
        """Return bytes of the file; fewer than asked for only at its end."""
        stop = min(self.source.size_bytes, offset + size_bytes)
        numbers = units_between(offset, stop, self.source.piece_bytes)
        views = []
        for number in numbers:
            start, end = self.source.piece_range(number)
            view = memoryview(await self.get(number, to_end=stop >= end))
            views.append(view[max(0, offset - start) : min(stop, end) - start])
        return views[0] if len(views) == 1 else b"".join(views)

    def read_ahead(self, wanted: ByteRange) -> None:
        """Have the pieces of a range fetched and sunk, as soon as there are streams and memory."""
        if self._closed:
            return
        for number in units_between(wanted.start, wanted.stop, self.source.piece_bytes):
            if number in self._sunk or number in self._queued or number in self._pieces:
                continue
            self._queued.add(number)
            self._lanes.add(number, self.source.lane(number))
        if self._queued and self._quiet.is_set():
            self._quiet = trio.Event()
        if self._queued and self not in self._shared._waiting:
            self._shared._waiting.append(self)
        self._shared._pump()

    def forget_ahead(self) -> None:
        """Fetch nothing more ahead than what is under way."""
        self._queued.clear()
        self._lanes.clear()
        self._check_quiet()

    async def drained(self) -> None:
        """Wait until nothing is left to be fetched ahead.

        Raises:
            BootseerError: what was fetched ahead has failed.
        """
        await self._quiet.wait()
        if self.failed is not None:
            raise self.failed

    async def close(self) -> None:
        """End what is under way and close the source."""
        self._closed = True
        self.forget_ahead()
        for scope in self._scopes:
            scope.cancel()
        for number, piece in list(self._pieces.items()):
            self._mark_read(piece)
            self._shared._idle.pop((self, number), None)
            if not piece.users:
                self._shared._used_bytes -= piece.size_bytes
                del self._pieces[number]
        with trio.move_on_after(1, shield=True):
            await self.source.close()
        self._shared._pump()

    # Tasks

    def _begin(self, number: int) -> _Piece:
        if self._closed:
            raise Closed("the file was closed, and cannot be read any more")
        self._queued.discard(number)
        piece = self._pieces[number] = _Piece(self.source.piece_range(number).size_bytes)
        piece.users += 1  # the task's
        return piece

    def _start_one(self) -> bool:
        """Start one fetch ahead, if there is room and a lane is free; returns whether it has."""
        if not self._shared._make_room(self.source.piece_bytes):
            return False
        while (taken := self._lanes.take()) is not None:
            number, lane = taken
            if number in self._queued and number not in self._pieces:
                piece = self._begin(number)
                self._shared._used_bytes += piece.size_bytes
                self._shared._streams += 1
                self._ahead += 1
                self._shared.nursery.start_soon(self._fetch_ahead, number, lane, piece)
                return True
            self._lanes.done(lane)
        return False

    async def _on_demand(self, number: int, piece: _Piece, was_queued: bool) -> None:
        await self._fill(number, piece, self._shared._demand)
        if not self._holds:
            await self._to_sink(number, piece)
        if was_queued:
            self._end_ahead(piece)
        self._let_go(number, piece)

    async def _fetch_ahead(self, number: int, lane: Hashable, piece: _Piece) -> None:
        try:
            await self._fill(number, piece, nullcontext())
        finally:
            self._lanes.done(lane)
            self._shared._streams -= 1
        self._shared._pump()
        is_asked_for = self._holds and piece.users > 1
        if not is_asked_for and not self._hold(piece):
            await self._to_sink(number, piece)
        self._end_ahead(piece)
        self._let_go(number, piece)

    def _end_ahead(self, piece: _Piece) -> None:
        self._ahead -= 1
        if piece.error is not None:
            self._stop_ahead(piece.error)
        self._check_quiet()

    def _stop_ahead(self, error: BootseerError) -> None:
        self.failed = error
        self.forget_ahead()

    def _hold(self, piece: _Piece) -> bool:
        """Keep a piece until it is asked for, if there is room for that."""
        room = self._shared.limits.memory_bytes // 2 - self._shared._unread_bytes
        if not self._holds or piece.data is None or piece.size_bytes > room or self._closed:
            return False
        piece.is_unread = True
        self._shared._unread_bytes += piece.size_bytes
        return True

    def _mark_read(self, piece: _Piece) -> None:
        if piece.is_unread:
            piece.is_unread = False
            self._shared._unread_bytes -= piece.size_bytes

    def _check_quiet(self) -> None:
        if not self._queued and not self._ahead:
            self._quiet.set()

    async def _to_sink(self, number: int, piece: _Piece) -> None:
        if self._sink is not None and piece.data is not None and not self._closed:
            start = self.source.piece_range(number).start
            try:
                await self._sink(start, piece.data)
            except BootseerError as error:
                # Who asked for the piece has it all the same.
                self._stop_ahead(error)
            else:
                self._sunk.add(number)

    async def _fill(
        self, number: int, piece: _Piece, turn: AbstractAsyncContextManager[None]
    ) -> None:
        """Fetch a piece within `turn`, unless the file is closed meanwhile."""
        scope = trio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                async with turn:
                    with self._shared.fetched.transfer():
                        piece.data = await self._fetch(number)
                    self._shared.fetched.size_bytes += piece.size_bytes
        except BootseerError as error:
            piece.error = error
        finally:
            self._scopes.discard(scope)
            if piece.data is None and piece.error is None:
                piece.error = Closed("the file was closed while it was being read")
            piece.done.set()

    async def _fetch(self, number: int) -> bytes:
        for attempt in range(_ATTEMPTS - 1):
            name = self.source.name
            try:
                return await self._hedged(number, attempt)
            except (Conflict, NotFound, Closed):
                if self.source.name == name:  # if not, it was moved while it was looked for
                    raise
            except BootseerError:
                continue
        return await self._hedged(number, _ATTEMPTS - 1)

    async def _hedged(self, number: int, attempt: int) -> bytes:
        """Fetch a piece, and once more beside it when it takes much longer than others do."""
        answers: list[bytes] = []
        errors: list[BootseerError] = []
        began = trio.current_time()

        async def one(which: int, scope: trio.CancelScope) -> None:
            try:
                answers.append(await self.source.fetch(number, which))
                scope.cancel()
            except BootseerError as error:
                errors.append(error)
                if which == attempt:
                    scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, attempt, nursery.cancel_scope)
            await trio.sleep(self._patience_s())
            self._shared.hedged += 1
            nursery.start_soon(one, attempt + _ATTEMPTS, nursery.cancel_scope)
        if answers:
            self._took_s.append(trio.current_time() - began)
            return answers[0]
        raise errors[0]

    def _patience_s(self) -> float:
        if len(self._took_s) < 4:
            return _HEDGE_FIRST_S
        return max(_HEDGE_LEAST_S, _HEDGE_FACTOR * statistics.median(self._took_s))

    # Who holds a piece

    def _let_go(self, number: int, piece: _Piece) -> None:
        """Keep what nobody uses any more until its memory is needed; an error is not kept."""
        piece.users -= 1
        if piece.users:
            return
        if piece.data is None or self._closed:
            self._shared._used_bytes -= piece.size_bytes
            self._drop(number, piece)
        elif not piece.is_unread:
            self._shared._idle[self, number] = piece
        self._shared._pump()

    def _drop(self, number: int, piece: _Piece) -> None:
        if self._pieces.get(number) is piece:
            del self._pieces[number]

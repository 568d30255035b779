"""Fetch the pieces of files: on demand and ahead of it, each once, in bounded memory.

get(piece) ────────────┐                       ┌─► readers
read_ahead(range) ─► lanes ─► source.fetch ─► held in memory, or
                                               └─► sink: the kernel's page cache, a local file

What is fetched ahead is held until it is read; when memory runs short, what comes in then goes to
the sink at once, and that is what is needed last. A file that holds nothing has all of it sunk.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import trio

from bootseer.checkpoint.files.source import FileSource
from bootseer.checkpoint.files.stripe_manifest import units_between
from bootseer.checkpoint.read.lanes import Lanes
from bootseer.checkpoint.read.late_pieces import LatePieces
from bootseer.core.meter import Meter
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, Closed, Conflict, NotFound
from bootseer.fetch_scheduler import Fetch, FetchScheduler
from bootseer.pace import Pace
from bootseer.units import MIB

Sink = Callable[[int, bytes], Awaitable[None]]
"""Takes bytes that were fetched ahead; the number is their offset in the file."""

_ATTEMPTS = 3
"""To fetch a piece, each with readers of its own."""
_FIRST_STREAMS = 4
_QUICK_S = 1.0
_LATE_S = 2.0


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much is fetched at once.

    Attributes:
        memory_bytes: of pieces that are being fetched or are held; at most half of it holds pieces
            that are still to be read. One piece is fetched ahead however large it is, and readers
            never wait for memory.
        streams: fetches at once, of all files together: up to so many ahead, fewer while they take
            long, and so many on demand.
        streams_per_lane: fetches ahead at once, of one lane of a file.
    """

    memory_bytes: int = 256 * MIB
    streams: int = 24
    streams_per_lane: int = 2


@dataclass(eq=False, slots=True)
class _Piece(Fetch):
    """A piece that is being fetched, or is held.

    Attributes:
        file: that it belongs to.
        number: its place in the file.
        size_bytes: its length.
        lane: that its fetch keeps busy, if it is fetched ahead.
        is_ahead: `FileFetch.drained` waits for it.
        data: its bytes, once they are fetched.
        error: why it could not be fetched.
        users: readers that wait for it, and its fetch. Without any, it may be dropped.
        is_unread: it was fetched ahead, and is held for a reader that is still to come.
    """

    file: FileFetch
    number: int
    size_bytes: int
    lane: Hashable
    is_ahead: bool
    data: bytes | None = None
    error: BootseerError | None = None
    users: int = 1
    is_unread: bool = False


class Fetcher:
    """What all files that are read share: memory and streams.

    Concurrency: the tasks of one trio run.

    Attributes:
        limits: how much is fetched at once.
        nursery: runs the fetches.
        fetched: what was fetched so far.
        late: fetches late pieces twice.
    """

    def __init__(self, nursery: trio.Nursery, limits: FetchLimits | None = None) -> None:
        self.limits = limits or FetchLimits()
        self.nursery = nursery
        self.fetched = Meter(time.time_ns)
        self._used_bytes = 0
        self._unread_bytes = 0
        self._idle: OrderedDict[_Piece, None] = OrderedDict()
        self._waiting: deque[FileFetch] = deque()
        streams = self.limits.streams
        first = min(_FIRST_STREAMS, streams)
        self._pace = Pace(requests=first, most=streams, quick_s=_QUICK_S, late_s=_LATE_S)
        self._scheduler = FetchScheduler(nursery, self._run, self._next_ahead, first, first)
        self._demand = trio.CapacityLimiter(streams)
        self.late = LatePieces(first, lambda: sum(self._scheduler.running.values()))

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
            hold: keep what is fetched ahead until it is read, as long as there is room.
        """
        return FileFetch(self, source, sink, set() if sunk is None else sunk, hold)

    async def _run(self, piece: _Piece) -> None:
        await piece.file._run(piece)

    def _next_ahead(self) -> _Piece | None:
        """Take the next piece to fetch ahead, from each file in turn."""
        for _ in range(len(self._waiting)):
            file = self._waiting.popleft()
            piece = file._next_ahead()
            if file._lanes:
                self._waiting.append(file)
            if piece is not None:
                return piece
        return None

    def _note_time(self, took_s: float) -> None:
        """Fetch more at once, or less, by how long a piece took.

        Nodes that start together fill the store's link: with all their streams, each piece would
        pass its deadline, and be asked for again.
        """
        self._pace.note(took_s)
        streams = self._pace.requests
        self._scheduler.streams = self._scheduler.streams_beside_urgent = streams
        self.late.set_streams(streams)

    def _make_room(self, size_bytes: int) -> bool:
        """Drop pieces that nobody uses, the least recently used first, until others fit.

        Returns:
            Whether they fit; they always do where there is nothing else.
        """
        while self._used_bytes + size_bytes > self.limits.memory_bytes and self._idle:
            piece, _ = self._idle.popitem(last=False)
            piece.file._drop(piece)
        return not self._used_bytes or self._used_bytes + size_bytes <= self.limits.memory_bytes


class FileFetch:
    """The pieces of one file, fetched as readers need them."""

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
        self._scopes: set[trio.CancelScope] = set()
        self._took_s: deque[float] = deque(maxlen=32)
        self._ahead = 0
        self._quiet = trio.Event()
        self._quiet.set()
        self._closed = False
        self.failed: BootseerError | None = None

    async def get(self, number: int, *, to_end: bool = True) -> bytes:
        """Return a piece, before everything that is fetched ahead; join its fetch if there is one.

        Args:
            number: of the piece.
            to_end: it is read to its end; if not, it is held on for a later read.

        Raises:
            Closed: the file was closed.
            Corrupt, Conflict: see `FileSource.fetch`.
            BootseerError: the store cannot be read.

        Cancellation: the fetch continues.
        """
        piece = self._pieces.get(number)
        if piece is None:
            piece = self._start(number, None, is_ahead=number in self._lanes)
            self._lanes.remove(number)
            self._shared._scheduler.promote(piece)
        self._shared._idle.pop(piece, None)
        if to_end:
            self._mark_read(piece)
        piece.users += 1
        try:
            await piece.ended.wait()
        finally:
            self._let_go(piece)
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
        """Fetch the pieces of a range as soon as there are streams and memory."""
        if self._closed:
            return
        for number in units_between(wanted.start, wanted.stop, self.source.piece_bytes):
            if number in self._sunk or number in self._lanes or number in self._pieces:
                continue
            self._lanes.add(number, self.source.lane(number))
        if self._lanes and self._quiet.is_set():
            self._quiet = trio.Event()
        if self._lanes and self not in self._shared._waiting:
            self._shared._waiting.append(self)
        self._shared._scheduler.start_ahead()

    def forget_ahead(self) -> None:
        """Start no more fetches ahead."""
        self._lanes.clear()
        self._check_quiet()

    async def drained(self) -> None:
        """Wait until nothing is left to be fetched ahead.

        Raises:
            BootseerError: a fetch ahead has failed.
        """
        await self._quiet.wait()
        if self.failed is not None:
            raise self.failed

    async def close(self) -> None:
        """Cancel all fetches and close the source; readers that wait get `Closed`."""
        self._closed = True
        self.forget_ahead()
        for scope in self._scopes:
            scope.cancel()
        for piece in list(self._pieces.values()):
            self._mark_read(piece)
            self._shared._idle.pop(piece, None)
            if not piece.users:
                self._drop(piece)
        with trio.move_on_after(1, shield=True):
            await self.source.close()
        self._shared._scheduler.start_ahead()

    # Start and end of a fetch

    def _start(self, number: int, lane: Hashable, *, is_ahead: bool) -> _Piece:
        """Take up memory for a piece that is about to be fetched.

        Raises:
            Closed: the file was closed.
        """
        if self._closed:
            raise Closed("the file was closed, and cannot be read any more")
        size_bytes = self.source.piece_range(number).size_bytes
        self._shared._make_room(size_bytes)
        self._shared._used_bytes += size_bytes
        self._ahead += is_ahead
        piece = self._pieces[number] = _Piece(self, number, size_bytes, lane, is_ahead)
        return piece

    def _next_ahead(self) -> _Piece | None:
        """Take the next piece to fetch ahead; None without memory or a lane that is free."""
        if not self._shared._make_room(self.source.piece_bytes):
            return None
        taken = self._lanes.take()
        return None if taken is None else self._start(*taken, is_ahead=True)

    async def _run(self, piece: _Piece) -> None:
        """Fetch a piece, and hold it or give it to the sink."""
        try:
            await self._fill(piece, self._shared._demand if piece.is_urgent else nullcontext())
        finally:
            if not piece.is_urgent:
                self._lanes.done(piece.lane)
        self._shared._scheduler.release(piece)
        has_reader = piece.is_urgent or piece.users > 1
        if not (self._holds and has_reader) and not self._hold(piece):
            await self._to_sink(piece)
        if piece.is_ahead:
            self._end_ahead(piece)
        self._let_go(piece)

    def _end_ahead(self, piece: _Piece) -> None:
        self._ahead -= 1
        if piece.error is not None:
            self._stop_ahead(piece.error)
        self._check_quiet()

    def _stop_ahead(self, error: BootseerError) -> None:
        self.failed = error
        self.forget_ahead()

    def _hold(self, piece: _Piece) -> bool:
        """Hold a piece for a reader that is still to come; returns whether there is room."""
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
        if not self._lanes and not self._ahead:
            self._quiet.set()

    async def _to_sink(self, piece: _Piece) -> None:
        if self._sink is not None and piece.data is not None and not self._closed:
            start = self.source.piece_range(piece.number).start
            try:
                await self._sink(start, piece.data)
            except BootseerError as error:
                # Readers have the piece all the same.
                self._stop_ahead(error)
            else:
                self._sunk.add(piece.number)

    async def _fill(self, piece: _Piece, turn: AbstractAsyncContextManager[None]) -> None:
        """Fetch a piece within `turn`, unless the file is closed meanwhile."""
        scope = trio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                async with turn:
                    with self._shared.fetched.transfer():
                        piece.data = await self._fetch(piece.number)
                    self._shared.fetched.size_bytes += piece.size_bytes
        except BootseerError as error:
            piece.error = error
        finally:
            self._scopes.discard(scope)
            if piece.data is None and piece.error is None:
                piece.error = Closed("the file was closed while it was being read")
            piece.ended.set()

    async def _fetch(self, number: int) -> bytes:
        for attempt in range(_ATTEMPTS - 1):
            name = self.source.name
            try:
                return await self._attempt(number, attempt)
            except (Conflict, NotFound, Closed):
                if self.source.name == name:  # if not, it was moved while it was looked for
                    raise
            except BootseerError:
                continue
        return await self._attempt(number, _ATTEMPTS - 1)

    async def _attempt(self, number: int, attempt: int) -> bytes:
        began_s = trio.current_time()
        fetch = partial(self.source.fetch, number)
        second = attempt + _ATTEMPTS
        data = await self._shared.late.fetch(fetch, attempt, second, self._took_s)
        took_s = trio.current_time() - began_s
        self._took_s.append(took_s)
        self._shared._note_time(took_s)
        return data

    # Memory of a piece

    def _let_go(self, piece: _Piece) -> None:
        """Have one user less: without any, a piece stays until its memory is needed."""
        piece.users -= 1
        if piece.users:
            return
        if piece.data is None or self._closed:
            self._drop(piece)
        elif not piece.is_unread:
            self._shared._idle[piece] = None
        self._shared._scheduler.start_ahead()

    def _drop(self, piece: _Piece) -> None:
        self._shared._used_bytes -= piece.size_bytes
        if self._pieces.get(piece.number) is piece:
            del self._pieces[piece.number]

"""What becomes of each piece that is fetched: held, sunk, dropped, or fetched once more."""

import os
from functools import partial

import pytest
import trio
import trio.testing

from bootseer.checkpoint.files.source import PLAIN_PIECE_BYTES, FileSource
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.core.ranges import ByteRange
from bootseer.errors import Closed, Conflict, Corrupt, NoSpace, NotFound, Transient
from bootseer.parallel import for_each
from bootseer.store.api.base import ObjectInfo

UNIT = 100


class Told(FileSource):
    """A file whose pieces come when a test says, or fail.

    Attributes:
        asked: piece and attempt of each fetch.
        takes_s: how long a fetch takes.
        fails: the error of a fetch, if it fails.
    """

    def __init__(self, pieces, piece_bytes=UNIT):
        self.size_bytes = pieces * piece_bytes - 17
        self.piece_bytes = piece_bytes
        self._info = ObjectInfo("file", self.size_bytes, 0)
        self.content = os.urandom(self.size_bytes)
        self.asked = []
        self.takes_s = lambda piece, attempt: 0
        self.fails = lambda piece, attempt: None
        self.closes_s = 0
        self.is_closed = False

    def lane(self, piece):
        return 0

    async def fetch(self, piece, attempt=0):
        self.asked.append((piece, attempt))
        await trio.sleep(self.takes_s(piece, attempt))
        if (error := self.fails(piece, attempt)) is not None:
            raise error.again()
        start, stop = self.piece_range(piece)
        return self.content[start:stop]

    async def close(self):
        await trio.sleep(self.closes_s)
        self.is_closed = True

    @property
    def asked_pieces(self):
        return [piece for piece, _ in self.asked]


def pieces(start, stop):
    return ByteRange(start * UNIT, stop * UNIT)


class Sunk:
    """Notes the pieces that it gets."""

    def __init__(self):
        self.pieces = []

    async def __call__(self, offset, data):
        await trio.lowlevel.checkpoint()
        assert offset % UNIT == 0 and len(data) <= UNIT
        self.pieces.append(offset // UNIT)


@pytest.fixture
def fetcher(nursery):
    """One that has room for four pieces, and fetches one at a time ahead."""
    return Fetcher(nursery, FetchLimits(memory_bytes=4 * UNIT, streams=1))


# How many at once


def test_there_is_memory_for_a_piece_of_every_stream():
    limits = FetchLimits()
    assert limits.streams * PLAIN_PIECE_BYTES <= limits.memory_bytes


async def test_two_pieces_of_a_lane_are_fetched_at_once(nursery, autojump_clock):
    source = Told(6)
    source.takes_s = lambda piece, attempt: 1
    file = Fetcher(nursery).open(source)
    file.read_ahead(pieces(0, 6))
    await file.drained()
    assert trio.current_time() == 3


async def test_no_more_is_fetched_on_demand_at_once_than_there_are_streams(nursery, autojump_clock):
    source = Told(6)
    source.takes_s = lambda piece, attempt: 1
    file = Fetcher(nursery, FetchLimits(streams=2)).open(source)
    async with trio.open_nursery() as readers:
        for number in range(6):
            readers.start_soon(file.get, number)
    assert trio.current_time() == 3


# What is held


async def test_what_was_read_last_is_held_as_long_as_there_is_room(fetcher):
    source = Told(9)
    file = fetcher.open(source)
    for number in (0, 1, 2, 3, 0):
        await file.get(number)
    assert source.asked_pieces == [0, 1, 2, 3]
    for number in (4, 0, 2, 3):
        await file.get(number)
    assert source.asked_pieces == [0, 1, 2, 3, 4]
    await file.get(1)
    assert source.asked_pieces == [0, 1, 2, 3, 4, 1]


@pytest.mark.parametrize(("offset", "size"), [(883, 1), (883, 0), (1000, 5), (10, 0)])
async def test_nothing_is_read_where_there_is_nothing(fetcher, offset, size):
    source = Told(9)
    assert await fetcher.open(source).read(offset, size) == b""
    assert source.asked == []


async def test_half_of_the_memory_holds_what_was_not_asked_for_yet(fetcher):
    source, sink = Told(9), Sunk()
    file = fetcher.open(source, sink, hold=True)
    file.read_ahead(pieces(0, 4))
    await file.drained()
    assert sink.pieces == [2, 3]
    for number in (5, 6, 7, 8, 0, 1):
        await file.get(number)
    assert source.asked_pieces == [0, 1, 2, 3, 5, 6, 7, 8], "the first two are held for that"
    assert sink.pieces == [2, 3]


@pytest.mark.parametrize(("size", "sunk"), [(UNIT - 1, [2]), (UNIT, []), (UNIT + 1, [])])
async def test_what_was_read_to_its_end_makes_room_for_what_was_not_asked_for(fetcher, size, sunk):
    source, sink = Told(9), Sunk()
    file = fetcher.open(source, sink, hold=True)
    file.read_ahead(pieces(0, 2))
    await file.drained()
    assert await file.read(0, size) == source.content[:size]
    file.read_ahead(pieces(2, 3))
    await file.drained()
    assert sink.pieces == sunk


async def test_what_was_held_and_read_gives_way(fetcher, autojump_clock):
    source = Told(9)
    file = fetcher.open(source, hold=True)
    for start in (0, 2, 4, 6):
        file.read_ahead(pieces(start, start + 2))
        with trio.fail_after(10):
            await file.drained()
        for number in (start, start + 1):
            await file.read(number * UNIT, UNIT)
    assert source.asked_pieces == list(range(8))


async def test_a_file_that_was_closed_holds_nothing(fetcher):
    for _ in range(3):
        source, sink = Told(9), Sunk()
        file = fetcher.open(source, sink, hold=True)
        file.read_ahead(pieces(0, 2))
        await file.drained()
        assert sink.pieces == []
        await file.close()


async def test_what_failed_takes_no_memory(nursery):
    source = Told(3)
    source.fails = lambda piece, attempt: Conflict("x") if piece == 0 else None
    file = Fetcher(nursery, FetchLimits(memory_bytes=UNIT)).open(source)
    with pytest.raises(Conflict):
        await file.get(0)
    with trio.fail_after(10):
        file.read_ahead(pieces(1, 3))
        await file.drained()


async def test_who_waits_for_memory_has_it_when_a_file_is_closed(nursery):
    fetcher = Fetcher(nursery, FetchLimits(memory_bytes=2 * UNIT))
    held = fetcher.open(Told(2), Sunk(), hold=True)
    held.read_ahead(pieces(0, 1))
    await held.drained()
    large = Told(1, 2 * UNIT)
    file = fetcher.open(large)
    file.read_ahead(ByteRange(0, large.size_bytes))
    await trio.testing.wait_all_tasks_blocked()
    assert large.asked == []
    with trio.fail_after(10):
        await held.close()
        await file.drained()
    assert large.asked_pieces == [0]


# What is sunk


async def test_what_the_sink_has_is_not_fetched_for_it(fetcher):
    source, sink, sunk = Told(9), Sunk(), {1}
    file = fetcher.open(source, sink, sunk=sunk)
    await file.get(3)
    file.read_ahead(pieces(0, 5))
    await file.drained()
    assert source.asked_pieces == [3, 0, 2, 4]
    assert sink.pieces == source.asked_pieces
    assert sunk == {0, 1, 2, 3, 4}


async def test_what_is_demanded_of_a_file_that_holds_is_not_sunk(fetcher):
    source, sink, sunk = Told(9), Sunk(), set()
    file = fetcher.open(source, sink, sunk=sunk, hold=True)
    await file.get(3)
    await trio.testing.wait_all_tasks_blocked()
    assert (sink.pieces, sunk) == ([], set())


@pytest.mark.parametrize("hold", [False, True])
async def test_what_is_asked_for_while_it_comes_need_not_be_sunk_where_it_can_be_held(
    fetcher, autojump_clock, hold
):
    source, sink = Told(9), Sunk()
    source.takes_s = lambda piece, attempt: 1
    file = fetcher.open(source, sink, hold=hold)
    file.read_ahead(pieces(0, 3))
    await trio.sleep(2.5)
    assert await file.get(2) == source.content[2 * UNIT : 3 * UNIT]
    await file.drained()
    await trio.testing.wait_all_tasks_blocked()
    assert sink.pieces == ([] if hold else [0, 1, 2])
    assert len(source.asked) == 3


async def test_where_nothing_is_fetched_ahead_nothing_is_waited_for(fetcher, autojump_clock):
    file = fetcher.open(Told(3))
    with trio.fail_after(10):
        await file.drained()
        file.read_ahead(pieces(1, 1))
        await file.drained()


# What was to be fetched ahead and is demanded


async def test_what_was_demanded_keeps_no_lane_busy(fetcher, autojump_clock):
    source = Told(9)
    source.takes_s = lambda piece, attempt: 1
    file = fetcher.open(source)
    file.read_ahead(pieces(0, 9))
    async with trio.open_nursery() as readers:
        for number in (1, 2, 3, 4):
            readers.start_soon(file.get, number)
    with trio.fail_after(60):
        await file.drained()
    assert sorted(source.asked) == [(number, 0) for number in range(9)]


@pytest.mark.parametrize("where", ["source", "sink"])
async def test_nothing_more_is_fetched_ahead_once_something_failed(fetcher, where):
    async def full(offset, data):
        raise NoSpace("full")

    source = Told(9)
    if where == "source":
        source.fails = lambda piece, attempt: NoSpace("full") if attempt == 2 else Transient("x")
    file = fetcher.open(source, full)
    file.read_ahead(pieces(0, 9))
    with pytest.raises(NoSpace):
        await file.drained()
    assert set(source.asked_pieces) <= {0, 1}


# Attempts


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (Conflict("x"), [0]),
        (NotFound("x"), [0]),
        (Closed("x"), [0]),
        (Transient("x"), [0, 1, 2]),
        (Corrupt("x"), [0, 1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_may_pass_is_tried_again(fetcher, error, attempts):
    source = Told(1)
    source.fails = lambda piece, attempt: error
    with pytest.raises(type(error)):
        await fetcher.open(source).get(0)
    assert source.asked == [(0, attempt) for attempt in attempts]


async def test_a_second_fetch_that_fails_takes_nothing_from_the_first(fetcher, autojump_clock):
    source = Told(1)
    source.takes_s = lambda piece, attempt: 0 if attempt else 4
    source.fails = lambda piece, attempt: Transient("x") if attempt else None
    assert await fetcher.open(source).get(0) == source.content
    assert trio.current_time() == 4
    assert source.asked == [(0, 0), (0, 3)]


async def test_a_fetch_that_fails_does_not_wait_for_the_second(fetcher, autojump_clock):
    source = Told(1)
    source.takes_s = lambda piece, attempt: {0: 4, 1: 0, 3: 60}[attempt]
    source.fails = lambda piece, attempt: None if attempt else Transient("x")
    assert await fetcher.open(source).get(0) == source.content
    assert trio.current_time() == 4
    assert source.asked == [(0, 0), (0, 3), (0, 1)]


@pytest.mark.parametrize(("known", "after_s"), [(3, 3), (4, 8)])
async def test_a_piece_is_late_when_others_took_a_fourth_of_its_time(
    fetcher, autojump_clock, known, after_s
):
    source = Told(9)
    source.takes_s = lambda piece, attempt: 100 if (piece, attempt) == (known, 0) else 2
    file = fetcher.open(source)
    for number in range(known):
        await file.get(number)
    began = trio.current_time()
    await file.get(known)
    assert trio.current_time() - began == after_s + 2
    assert fetcher.late.fetched_twice == 1


@pytest.mark.parametrize(("takes_s", "most"), [(8, 0), (30, 1)])
async def test_where_all_pieces_are_late_few_are_fetched_twice(
    nursery, autojump_clock, takes_s, most
):
    """As behind a link that all nodes of a job have filled: each second fetch fills it more."""
    source = Told(24)
    source.takes_s = lambda piece, attempt: takes_s
    fetcher = Fetcher(nursery, FetchLimits(streams=24))
    file = fetcher.open(source)
    await for_each(range(24), file.get, 24)
    assert fetcher.late.fetched_twice == most
    assert trio.current_time() == takes_s


async def test_pieces_that_hang_twice_leave_room_for_others(nursery, autojump_clock):
    """With a machine that is dead, a second fetch may ask that one, too."""
    source = Told(24)
    source.takes_s = lambda piece, attempt: 1000 if piece < (3 if attempt else 8) else 0.1
    file = Fetcher(nursery, FetchLimits(streams=24)).open(source)
    answered = set()

    async def get(piece):
        await file.get(piece)
        answered.add(piece)

    with trio.move_on_after(20):
        await for_each(range(24), get, 24)
    assert answered == set(range(3, 24))


# Closing


async def test_a_source_that_does_not_close_is_waited_for_no_longer_than_a_second(
    fetcher, autojump_clock
):
    source = Told(1)
    source.closes_s = 100
    await fetcher.open(source).close()
    assert trio.current_time() == 1 and not source.is_closed


async def test_a_source_is_closed_though_whoever_closes_it_is_cancelled(fetcher, autojump_clock):
    source = Told(1)
    source.closes_s = 0.5
    with trio.CancelScope() as scope:
        scope.cancel()
        await fetcher.open(source).close()
    assert source.is_closed


async def test_nothing_is_read_of_a_file_that_was_closed(fetcher):
    source = Told(3)
    file = fetcher.open(source)
    await file.get(0)
    await file.close()
    for call in (partial(file.get, 0), partial(file.get, 1), partial(file.read, 0, UNIT)):
        with pytest.raises(Closed):
            await call()
    file.read_ahead(pieces(0, 3))
    await file.drained()
    assert source.asked == [(0, 0)]


@pytest.mark.parametrize("error", [Conflict("replaced"), NotFound("gone")])
async def test_what_is_moved_while_it_is_looked_for_is_looked_for_once_more(fetcher, error):
    source = Told(1)
    source.takes_s = lambda piece, attempt: 1
    source.fails = lambda piece, attempt: error if attempt == 0 else None
    file = fetcher.open(source)
    fetcher.nursery.start_soon(move_soon, source)
    assert await file.get(0) == source.content
    assert source.asked == [(0, 0), (0, 1)]


async def move_soon(source):
    await trio.testing.wait_all_tasks_blocked()
    source.move("moved")

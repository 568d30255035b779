"""Units are dealt to parts: each to whichever can take one, and again when a part has broken."""

import os

import pytest
import trio
import trio.testing

from bootseer.checkpoint.write import stripe_writer as stripe_writer_module
from bootseer.checkpoint.write.options import WriteContext, WriteOptions
from bootseer.checkpoint.write.stripe_writer import StripeWriter
from bootseer.errors import Closed, Denied, NoSpace, Transient, Unavailable
from bootseer.store.api.base import BlockLocation
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore

UNIT = 4096


class Timed(WrappedStore):
    """Notes what is done with which part and when; it may take a while, or fail.

    Attributes:
        calls: operation, part and time of each.
        options: with which parts were made.
        takes_s: how long an operation on a part takes.
        fails: the error of an operation on a part, if it fails.
        hosts: the machines of a part's blocks.
    """

    def __init__(self):
        super().__init__(MemoryStore())
        self.calls = []
        self.options = []
        self.takes_s = lambda operation, part: 0
        self.fails = lambda operation, part: None
        self.hosts = lambda part: ()

    async def around(self, operation, name, call):
        part = int(name.rpartition("/")[2])
        self.calls.append((operation, part, trio.current_time()))
        await trio.sleep(self.takes_s(operation, part))
        if (error := self.fails(operation, part)) is not None:
            raise error
        return await call()

    def append(self, name, **options):
        self.options.append(options)
        return super().append(name, **options)

    async def block_locations(self, name):
        part = int(name.rpartition("/")[2])
        await self.around("look", name, trio.lowlevel.checkpoint)
        return [BlockLocation(0, UNIT, (host,)) for host in self.hosts(part)]

    def times(self, operation, part=None):
        return [at for name, of, at in self.calls if name == operation and part in (None, of)]


def made(store, nursery, **options):
    few = {"unit_bytes": UNIT, "width": 4, "streams": 8, "memory_bytes": 64 * UNIT}
    context = WriteContext(store, nursery, WriteOptions(**few | options))
    return StripeWriter(context, "parts", 0o640), context


async def deal(writer, *units):
    """Deal units of random bytes, and return what they are."""
    contents = {unit: os.urandom(UNIT) for unit in units}
    for unit, content in contents.items():
        await writer.deal(unit, bytearray(content))
    return contents


@pytest.fixture
def store():
    return Timed()


async def test_every_unit_is_placed_and_can_be_read(store, nursery, autojump_clock):
    writer, context = made(store, nursery)
    contents = await deal(writer, *range(9))
    contents[9] = b"the last is shorter"
    await writer.deal(9, bytearray(contents[9]))
    await writer.drain()
    assert {unit: await writer.read(unit) for unit in writer.placed} == contents
    assert sorted(unit for part in writer.parts for unit in part.units) == list(range(10))
    for part in writer.parts:
        info = await store.stat(f"parts/{part.index:04d}")
        assert (info.size_bytes, info.mode) == (part.size_bytes, 0o640)
        assert part.is_whole and not part.is_open and not part.in_doubt
    assert context.written.size_bytes == 9 * UNIT + len(contents[9])
    assert (context.open, context.broken, context.moved) == (0, 0, 0)


async def test_a_unit_is_had_from_when_it_is_dealt_until_it_is_taken_back(
    store, nursery, autojump_clock
):
    store.takes_s = lambda operation, part: 1
    writer, _ = made(store, nursery)
    assert not writer.has(0)
    await deal(writer, 0)
    assert writer.has(0) and not writer.placed
    await writer.forget(0)
    assert not writer.has(0)
    await deal(writer, 0)
    await writer.drain()
    assert writer.has(0) and list(writer.placed) == [0]


async def test_parts_are_made_as_the_options_say(store, nursery):
    writer, _ = made(store, nursery, replication=2, block_bytes=3 * UNIT)
    await deal(writer, 0)
    await writer.drain()
    assert store.options == [{"mode": 0o640, "replication": 2, "block_bytes": 3 * UNIT}]


@pytest.mark.parametrize(("width", "streams", "parts"), [(2, 8, 2), (4, 3, 3)])
async def test_no_more_parts_are_written_at_once_than_allowed(
    store, nursery, autojump_clock, width, streams, parts
):
    store.takes_s = lambda operation, part: 10 if operation == "grow" else 0
    writer, _ = made(store, nursery, width=width, streams=streams)
    await deal(writer, *range(8))
    await writer.drain()
    assert len(writer.parts) == parts


async def test_each_file_has_a_part_however_few_streams_there_are(store, nursery, autojump_clock):
    first, context = made(store, nursery, streams=1)
    second = StripeWriter(context, "others", None)
    with trio.fail_after(10):
        for writer in (first, second):
            await deal(writer, 0)
        assert context.open == 2
        for writer in (first, second):
            await writer.drain()
    assert context.open == 0


async def test_a_part_is_synced_at_first_and_when_it_holds_back_its_share(store, nursery):
    writer, _ = made(store, nursery, width=1, memory_bytes=4 * UNIT)
    await deal(writer, *range(8))
    await writer.drain()
    written = [name for name, _, _ in store.calls if name in ("grow", "sync", "finish")]
    assert written == [
        *("grow", "sync"),
        *("grow", "grow", "grow", "sync"),
        *("grow", "grow", "grow", "sync"),
        *("grow", "finish"),
    ]


# Parts that end before the file does


async def test_where_parts_have_broken_each_ends_with_its_block(store, nursery, monkeypatch):
    """But one of the last that there may be goes on."""
    monkeypatch.setattr(stripe_writer_module, "_MANY_PARTS", 3)
    writer, context = made(store, nursery, width=1, block_bytes=2 * UNIT)
    context.broke_s = trio.current_time()
    await deal(writer, *range(9))
    await writer.drain()
    assert [part.size_bytes for part in writer.parts] == [2 * UNIT, 2 * UNIT, 5 * UNIT]
    assert all(part.is_whole for part in writer.parts)


async def test_a_part_that_is_full_is_followed_by_none_when_no_more_units_come(
    store, nursery, autojump_clock
):
    store.takes_s = lambda operation, part: 1
    writer, context = made(store, nursery, block_bytes=UNIT)
    context.broke_s = trio.current_time()
    await deal(writer, 0)
    await writer.drain()
    assert len(writer.parts) == 1 and writer.parts[0].is_whole


class TestWhereThePartsAre:
    @pytest.fixture(autouse=True)
    def one_after_another(self, store):
        """Have each part ready for its next unit a little later than the one before it."""
        store.takes_s = lambda operation, part: 10 + part if operation == "grow" else 0

    def made(self, store, nursery, width=4):
        return made(store, nursery, width=width, memory_bytes=UNIT)  # so each unit is synced

    async def test_is_asked_once_for_each_block(self, store, nursery, autojump_clock, monkeypatch):
        monkeypatch.setattr(stripe_writer_module, "_LOCATE_AGAIN_BYTES", 4 * UNIT)
        looked = []
        store.hosts = lambda part: looked.append(writer.parts[part].size_bytes) or "abc"
        writer, _ = self.made(store, nursery, width=1)
        await deal(writer, *range(10))
        await writer.drain()
        assert looked == [UNIT, 5 * UNIT, 9 * UNIT]
        assert writer.parts[0].hosts == ("c",), "of the last block"

    async def test_is_not_needed_to_write_them(self, store, nursery, autojump_clock):
        store.fails = lambda operation, part: Unavailable("x") if operation == "look" else None
        writer, context = self.made(store, nursery)
        await deal(writer, *range(9))
        await writer.drain()
        assert len(writer.placed) == 9
        assert (context.broken, context.moved) == (0, 0)

    async def test_is_known_to_be_one_machine(self, store, nursery, autojump_clock):
        store.hosts = lambda part: "a"
        writer, context = self.made(store, nursery)
        await deal(writer, *range(12))
        await writer.drain()
        assert (context.moved, len(writer.parts)) == (0, 4)

    async def test_is_left_by_one_that_crowds_on_a_machine(self, store, nursery, autojump_clock):
        """Three of four are on the one of two machines: the first of them that notices ends."""
        store.hosts = lambda part: "b" if part == 3 else "a"
        writes_s = store.takes_s
        store.takes_s = lambda operation, part: (
            100 if operation == "finish" else writes_s(operation, part)
        )
        writer, context = self.made(store, nursery)
        await deal(writer, *range(4))
        await trio.sleep(20)
        assert context.moved == 0
        await deal(writer, 4)
        await trio.sleep(20)
        assert context.moved == 1
        assert [part.is_open for part in writer.parts] == [False, True, True, True, True]
        await deal(writer, 5)  # two of four, though the first has not quite ended
        await trio.sleep(20)
        assert context.moved == 1
        await writer.drain()
        assert writer.parts[0].units == [0, 4] and writer.parts[0].is_whole
        assert len(writer.placed) == 6

    async def test_is_not_left_for_a_part_that_nothing_would_be_written_to(
        self, store, nursery, autojump_clock
    ):
        store.hosts = lambda part: "b" if part == 3 else "a"
        writer, context = self.made(store, nursery)
        await deal(writer, *range(4))
        await trio.sleep(20)
        await deal(writer, 4)
        await writer.drain()
        assert (context.moved, len(writer.parts)) == (0, 4)

    async def test_is_left_so_many_times_and_no_more(self, store, nursery, autojump_clock):
        """On a machine that all new ones are put on."""
        store.hosts = lambda part: "b" if part == 0 else "a"
        writer, context = self.made(store, nursery)
        await deal(writer, *range(60))
        await writer.drain()
        assert (context.moved, len(writer.placed)) == (8, 60)


# Parts that break


async def test_a_part_of_which_nothing_was_stored_is_followed_after_a_pause(
    store, nursery, autojump_clock
):
    store.fails = lambda operation, part: Transient("x") if (operation, part) == gone else None
    gone = ("sync", 0)
    writer, context = made(store, nursery, width=1)
    contents = await deal(writer, 0)
    await trio.testing.wait_all_tasks_blocked()
    contents |= await deal(writer, 1)
    await writer.drain()
    assert store.times("append") == [0, 1]
    assert {unit: await writer.read(unit) for unit in writer.placed} == contents
    assert (context.broken, context.broke_s, context.open) == (1, 0, 0)
    assert not writer.parts[0].in_doubt and not writer.parts[0].is_whole


async def test_a_part_of_which_something_was_stored_is_followed_at_once(
    store, nursery, autojump_clock
):
    store.fails = lambda operation, part: (
        Transient("x") if operation == "grow" and not part and writer.placed else None
    )
    writer, _ = made(store, nursery, width=1)
    contents = await deal(writer, 0)
    await trio.testing.wait_all_tasks_blocked()
    contents |= await deal(writer, 1)
    await trio.testing.wait_all_tasks_blocked()
    await writer.drain()
    assert store.times("append") == [0, 0]
    assert [part.units for part in writer.parts] == [[0], [1]]
    assert {unit: await writer.read(unit) for unit in writer.placed} == contents


@pytest.mark.parametrize("error", [NoSpace("full"), Denied("not yours"), Closed("ended")])
async def test_what_cannot_pass_ends_it_at_once(store, nursery, autojump_clock, error):
    store.fails = lambda operation, part: error.again() if operation == "sync" else None
    writer, _ = made(store, nursery)
    await deal(writer, 0)
    with pytest.raises(type(error), match=str(error)):
        await writer.drain()
    assert store.times("append") == [0]


async def test_what_has_not_passed_for_long_ends_it(store, nursery, autojump_clock):
    store.fails = lambda operation, part: Transient("x") if operation == "sync" else None
    writer, _ = made(store, nursery, width=1, stuck_s=3)
    with pytest.raises(Transient):
        await deal(writer, *range(20))
    assert store.times("append") == [0, 1, 2, 3, 4]


async def test_what_has_not_passed_is_tried_after_pauses_when_no_more_units_come(
    store, nursery, autojump_clock
):
    store.fails = lambda operation, part: Transient("x") if operation == "sync" else None
    writer, _ = made(store, nursery, stuck_s=3)
    await deal(writer, 0)
    with pytest.raises(Transient):
        await writer.drain()
    assert store.times("append") == [0, 1, 2, 3, 4]


async def test_one_pause_is_enough_for_all_that_broke_when_no_more_units_came(
    store, nursery, autojump_clock
):
    errors = [Transient("x")] * 2
    store.fails = lambda operation, part: errors.pop() if operation == "sync" and errors else None
    store.takes_s = lambda operation, part: 10 if operation == "grow" else 0
    writer, _ = made(store, nursery)
    await deal(writer, 0, 1)
    await writer.drain()
    assert store.times("append") == [0, 0, 11, 11]
    assert set(writer.placed) == {0, 1}


async def test_what_has_not_passed_for_long_ends_it_though_units_came_all_the_time(
    store, nursery, autojump_clock
):
    store.fails = lambda operation, part: Transient("x") if operation == "sync" else None
    store.takes_s = lambda operation, part: 50 if operation == "sync" and part else 0
    writer, _ = made(store, nursery, width=2, stuck_s=60)
    await deal(writer, 0)
    await trio.sleep(40)
    await deal(writer, 1)
    await trio.sleep(40)
    with pytest.raises(Transient):
        await deal(writer, 2)
    assert trio.current_time() == 90


async def test_a_part_that_breaks_after_others_were_stored_has_all_the_time(
    store, nursery, autojump_clock
):
    store.fails = lambda operation, part: (
        Transient("x") if operation == "sync" and trio.current_time() in (0, 5) else None
    )
    writer, context = made(store, nursery, width=1, stuck_s=3, memory_bytes=UNIT)
    for unit in range(8):
        await deal(writer, unit)
        await trio.sleep(1)
    await writer.drain()
    assert context.broken == 2
    assert set(writer.placed) == set(range(8))


async def test_what_is_resumed_has_all_the_time_again(store, nursery, autojump_clock):
    errors = [Transient("x")] * 4
    store.fails = lambda operation, part: errors.pop() if operation == "sync" and errors else None
    store.takes_s = lambda operation, part: 2 if operation == "sync" else 0
    writer, _ = made(store, nursery, width=1, stuck_s=3)
    await deal(writer, 0)
    await trio.sleep(3)
    with pytest.raises(Transient):
        await deal(writer, 1)
    await writer.resume()
    await writer.drain()
    assert set(writer.placed) == {0, 1}


async def test_more_parts_than_a_manifest_takes_end_it(store, nursery, autojump_clock, monkeypatch):
    monkeypatch.setattr(stripe_writer_module, "MAX_PARTS", 4)
    store.fails = lambda operation, part: Transient("x") if operation == "sync" else None
    writer, _ = made(store, nursery, width=1)
    with pytest.raises(Transient):
        await deal(writer, *range(20))
    assert len(writer.parts) == 4


class TestAPartInDoubt:
    """One that did not end as it should, after something of it was acknowledged."""

    @pytest.fixture(autouse=True)
    def doubt(self, store):
        self.reads_fail = 0
        store.fails = self.fails

    def fails(self, operation, part):
        if operation == "finish" and part == 0:
            return Transient("no answer")
        if operation == "pread" and part == 0:
            self.reads_fail -= 1
            if self.reads_fail >= 0:
                return Transient("not yet")
        return None

    async def test_is_read_until_it_is_known_to_be_there(self, store, nursery, autojump_clock):
        self.reads_fail = 3
        writer, _ = made(store, nursery)
        await deal(writer, 0)
        await writer.drain()
        assert len(store.times("pread")) == 4
        assert not writer.parts[0].in_doubt and not writer.parts[0].is_whole
        await writer.drain()
        assert len(store.times("pread")) == 4, "once is enough"

    async def test_ends_the_file_when_it_stays_away(self, store, nursery, autojump_clock):
        self.reads_fail = 10**6
        writer, _ = made(store, nursery, recovery_s=30)
        await deal(writer, 0)
        with pytest.raises(Unavailable, match="lost with its machine"):
            await writer.drain()
        assert trio.current_time() == 30

    @pytest.mark.parametrize("again", [False, True])
    async def test_is_not_needed_for_what_was_taken_back(
        self, store, nursery, autojump_clock, again
    ):
        self.reads_fail = 10**6
        writer, _ = made(store, nursery, width=1)
        await deal(writer, 0)
        await trio.testing.wait_all_tasks_blocked()
        store.fails = lambda operation, part: (
            Transient("gone") if part == 0 and operation in ("grow", "pread") else None
        )
        contents = await deal(writer, 1)
        await trio.testing.wait_all_tasks_blocked()
        await writer.forget(0)
        contents |= await deal(writer, 0) if again else {}
        await writer.drain()
        assert {unit: await writer.read(unit) for unit in writer.placed} == contents


async def test_what_is_not_given_back_as_it_was_written_is_an_error(store, nursery):
    class Lying(Timed):
        async def around(self, operation, name, call):
            done = await super().around(operation, name, call)
            return bytes(len(done)) if operation == "pread" else done

    writer, _ = made(Lying(), nursery)
    await deal(writer, 0)
    with pytest.raises(Unavailable, match=r"parts/0000.*does not return the data"):
        await writer.read(0)


# Giving up


async def test_the_first_error_is_what_is_told(store, nursery):
    writer, _ = made(store, nursery)
    writer.check()
    writer.fail(Unavailable("the first"))
    writer.fail(Closed("the second"))
    for call in (writer.drain, lambda: deal(writer, 0)):
        with pytest.raises(Unavailable, match="the first"):
            await call()
    assert store.calls == []


async def test_what_was_not_acknowledged_is_dealt_again_after_it_was_given_up(
    store, nursery, autojump_clock
):
    store.takes_s = lambda operation, part: 1 if operation == "grow" else 0
    writer, _ = made(store, nursery, width=1)
    contents = {}
    for unit in (0, 1):
        contents |= await deal(writer, unit)
        await trio.sleep(1.5 - unit)
    writer.fail(Unavailable("away"))
    content = os.urandom(UNIT)
    with pytest.raises(Unavailable):
        await writer.deal(2, bytearray(content))
    with trio.fail_after(10):
        await writer.ended()
    assert set(writer.placed) == {0}
    assert writer.parts[0].in_doubt and not writer.parts[0].is_open
    await writer.resume()
    await writer.drain()
    assert {unit: await writer.read(unit) for unit in writer.placed} == contents | {2: content}


async def test_a_part_that_waits_has_all_that_it_got_when_the_file_is_given_up(store, nursery):
    """Nothing of it has to be written or read again."""
    writer, _ = made(store, nursery, width=1)
    for unit in (0, 1):
        await deal(writer, unit)
        await trio.testing.wait_all_tasks_blocked()
    writer.fail(Unavailable("away"))
    await writer.ended()
    assert set(writer.placed) == {0, 1}
    assert writer.parts[0].is_whole and not writer.parts[0].in_doubt


async def test_a_file_is_resumed_when_nothing_goes_on_from_before(store, nursery, autojump_clock):
    errors = [Transient("x")]
    store.fails = lambda operation, part: errors.pop() if operation == "sync" and errors else None
    writer, _ = made(store, nursery, width=1)
    await deal(writer, 0)
    await trio.testing.wait_all_tasks_blocked()  # and a pause before the next part
    writer.fail(Unavailable("away"))
    with trio.fail_after(10):
        await writer.resume()
        await writer.drain()
    assert store.times("append") == [0, 1]
    assert [part.size_bytes for part in writer.parts] == [0, 0, UNIT]


async def test_no_part_is_begun_once_the_file_is_given_up(store, nursery, autojump_clock):
    store.fails = lambda operation, part: Transient("x") if operation == "sync" else None
    writer, _ = made(store, nursery, width=1)
    await deal(writer, 0)
    await trio.testing.wait_all_tasks_blocked()  # and a pause before the next part
    writer.fail(Closed("given up"))
    await writer.ended()
    assert store.times("append") == [0]


async def test_who_waits_for_parts_whose_writing_was_ended_is_told(store, nursery, autojump_clock):
    store.takes_s = lambda operation, part: 5

    async def host(task_status):
        async with trio.open_nursery() as writers:
            task_status.started(writers)
            await trio.sleep_forever()

    writers = await nursery.start(host)
    writer, context = made(store, writers)
    await deal(writer, 0)
    writers.cancel_scope.cancel()
    with trio.fail_after(10), pytest.raises(Closed, match="parts/0000"):
        await writer.drain()
    assert context.open == 0


# How files are striped


def context(**options):
    return WriteContext(MemoryStore(), None, WriteOptions(**options))


@pytest.mark.parametrize("unit_bytes", [0, UNIT - 1, UNIT + 1, 3 * UNIT])
def test_a_unit_that_is_none_is_refused(unit_bytes):
    with pytest.raises(ValueError, match="power of two"):
        WriteOptions(unit_bytes=unit_bytes)


def test_there_is_memory_for_a_unit_of_every_stream_and_room_to_spill_more():
    options = WriteOptions()
    assert options.streams * options.unit_bytes <= options.memory_bytes < options.spill_bytes


@pytest.mark.parametrize(("parts", "units"), [(0, 11), (1, 11), (2, 5), (4, 2), (12, 0)])
def test_parts_share_the_memory(parts, units):
    shared = context(unit_bytes=UNIT, memory_bytes=12 * UNIT)
    assert shared.open == 0
    shared.open = parts
    assert shared.unsynced_bytes() == units * UNIT


@pytest.mark.parametrize(
    ("size_bytes", "is_full"),
    [
        (0, True),
        (UNIT, False),
        (7 * UNIT, False),
        (7 * UNIT + 1, True),
        (8 * UNIT, True),
        (8 * UNIT + 1, False),
    ],
)
async def test_a_part_is_full_when_its_block_has_no_room_for_a_unit(
    autojump_clock, size_bytes, is_full
):
    shared = context(unit_bytes=UNIT, block_bytes=8 * UNIT)
    assert not shared.is_full(size_bytes), "as long as none has broken"
    shared.broke_s = trio.current_time()
    assert shared.is_full(size_bytes) == is_full
    await trio.sleep(600)
    assert shared.is_full(size_bytes) == is_full
    await trio.sleep(1)
    assert not shared.is_full(size_bytes)


async def test_blocks_are_those_of_hdfs_where_nothing_is_said():
    shared = context()
    shared.broke_s = trio.current_time()
    assert [shared.is_full(mib * 2**20) for mib in (64, 124, 125, 128)] == [
        *(False, False),
        *(True, True),
    ]

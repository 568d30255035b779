"""Fetching: each piece once, what is needed first, in bounded memory, whatever machines do."""

import os
from collections import Counter

import pytest
import trio
import trio.testing
import xxhash

from bootseer.checkpoint.files.source import StripedSource
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, UnitPlace, part_name
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.core.ranges import ByteRange
from bootseer.errors import Closed, Conflict, Corrupt, NoSpace, Transient
from bootseer.store.api.base import publish
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import OpenCountingStore, SlowStore

UNIT = 4096
ID = "0" * 32
LATENCY_S = 0.01


class Watched(OpenCountingStore):
    """Counts, and has a test do something before each operation, or instead of it."""

    def __init__(self, inner, instead=None):
        super().__init__(inner)
        self.calls = Counter()
        self.instead = instead

    async def around(self, operation, name, call):
        self.calls[operation, name] += 1
        if self.instead is not None:
            return await self.instead(operation, name, call)
        return await call()

    def count(self, operation):
        return sum(n for (found, _), n in self.calls.items() if found == operation)


async def striped(units, parts, latency_s=0.0):
    """Make a striped file, unit after unit in one part after another."""
    store = MemoryStore()
    content = os.urandom(units * UNIT - 17)
    pieces = [content[at : at + UNIT] for at in range(0, len(content), UNIT)]
    places = [
        UnitPlace(number % parts, number // parts * UNIT, xxhash.xxh3_128_intdigest(piece))
        for number, piece in enumerate(pieces)
    ]
    for part in range(parts):
        await publish(
            store, f".bootseer-parts/{ID}/{part_name(part)}", b"".join(pieces[part::parts])
        )
    layout = StripeManifest(len(content), UNIT, ID, parts, tuple(places))
    await publish(store, "file", layout.encode())
    watched = Watched(SlowStore(store, latency_s) if latency_s else store)
    return watched, StripedSource(watched, await store.stat("file"), layout), content


def piece_of(name):
    """The number of the piece that is all of a part."""
    return int(name.rpartition("/")[2])


def everything(source):
    return ByteRange(0, source.size_bytes)


class Sunk:
    """Takes what is fetched ahead, in its own time."""

    def __init__(self, takes_s=0.0):
        self.content = {}
        self.takes_s = takes_s

    async def __call__(self, offset, data):
        await trio.sleep(self.takes_s)
        assert offset not in self.content
        self.content[offset] = data

    def whole(self):
        return b"".join(data for _, data in sorted(self.content.items()))


# Each piece once


async def test_a_piece_is_fetched_once_for_all_who_read_it(nursery, autojump_clock):
    store, source, content = await striped(12, 3, LATENCY_S)
    file = Fetcher(nursery, FetchLimits(streams=2)).open(source)
    got = []

    async def read(at):
        got.append((at, await file.read(at, 3 * UNIT)))

    async with trio.open_nursery() as readers:
        file.read_ahead(ByteRange(0, 9 * UNIT))
        for at in [*range(0, 12 * UNIT, UNIT // 2)] * 5:
            readers.start_soon(read, at)
    assert all(data == content[at : at + 3 * UNIT] for at, data in got) and len(got) == 120
    assert store.count("pread") == 12
    file.read_ahead(everything(source))
    await file.drained()
    assert store.count("pread") == 12, "what is held is not fetched again"
    await file.close()


async def test_a_reader_that_gives_up_takes_nothing_from_others(nursery, autojump_clock):
    store, source, content = await striped(1, 1, 1.0)
    file = Fetcher(nursery).open(source)
    got = []

    async def read():
        got.append(await file.read(0, UNIT))

    async with trio.open_nursery() as readers:
        readers.start_soon(read)
        with trio.move_on_after(0.5) as patience:
            await file.get(0)
        assert patience.cancelled_caught
    assert got == [content] and store.count("pread") == 1
    await file.close()


# Memory and streams


@pytest.mark.parametrize("takes_s", [0.0, 5 * LATENCY_S], ids=["fast sink", "slow sink"])
@pytest.mark.parametrize("memory_units", [1, 5, 8])
async def test_memory_is_bounded(nursery, autojump_clock, memory_units, takes_s):
    store, source, content = await striped(64, 64, LATENCY_S)
    begun = most = 0
    sunk = Sunk(takes_s)

    async def note_begun(operation, name, call):
        nonlocal begun, most
        if operation == "pread":
            begun += 1
            most = max(most, begun - len(sunk.content))
        return await call()

    store.instead = note_begun
    fetcher = Fetcher(nursery, FetchLimits(memory_bytes=memory_units * UNIT, streams=6))
    file = fetcher.open(source, sunk)
    file.read_ahead(everything(source))
    await file.drained()
    assert sunk.whole() == content
    # Slow sinks hold as much as there is room for; fast ones leave the streams at work.
    assert most == min(memory_units, 6 if not takes_s else 64)
    assert fetcher.fetched.size_bytes == source.size_bytes
    await file.close()


async def test_a_piece_larger_than_the_memory_is_fetched_alone(nursery, autojump_clock):
    store, source, content = await striped(5, 5, LATENCY_S)
    sunk = Sunk()
    file = Fetcher(nursery, FetchLimits(memory_bytes=UNIT // 2)).open(source, sunk)
    file.read_ahead(everything(source))
    with trio.fail_after(60):
        await file.drained()
    assert sunk.whole() == content
    assert trio.current_time() >= 0 and store.count("pread") == 5
    await file.close()


async def test_no_more_streams_than_allowed(nursery, autojump_clock):
    """Of all files together, and of each lane."""
    sources = []
    busy, most = Counter(), Counter()

    async def count(operation, name, call):
        if operation != "pread":
            return await call()
        for key in ("all", name):
            busy[key] += 1
            most[key] = max(most[key], busy[key])
        try:
            return await call()
        finally:
            for key in ("all", name):
                busy[key] -= 1

    fetcher = Fetcher(nursery, FetchLimits(streams=5, streams_per_lane=2))
    files = []
    for _ in range(2):
        store, source, _ = await striped(40, 4, LATENCY_S)
        store.instead = count
        sources.append(source)
        files.append(fetcher.open(source))
        files[-1].read_ahead(everything(source))
    for file in files:
        await file.drained()
        await file.close()
    assert most.pop("all") == 5
    # The parts of both files have the same names: two lanes of two.
    assert max(most.values()) <= 4


# What is needed first


async def test_demand_does_not_wait_for_what_is_read_ahead(nursery, autojump_clock):
    store, source, content = await striped(64, 4, 1.0)
    file = Fetcher(nursery, FetchLimits(streams=2)).open(source)
    file.read_ahead(everything(source))
    await trio.testing.wait_all_tasks_blocked()
    began = trio.current_time()
    assert await file.get(63) == content[63 * UNIT :]
    # Open the part and read: all of it would take 32 times as long.
    assert trio.current_time() - began <= 2.0
    await file.drained()
    assert store.count("pread") == 64
    await file.close()


async def test_files_are_read_ahead_in_turn(nursery, autojump_clock):
    fetcher = Fetcher(nursery, FetchLimits(streams=2))
    ends = []

    async def whole(file):
        await file.drained()
        ends.append(trio.current_time())

    async with trio.open_nursery() as waiters:
        for _ in range(2):
            _, source, _ = await striped(20, 20, 0.5)
            file = fetcher.open(source)
            file.read_ahead(everything(source))
            waiters.start_soon(whole, file)
    assert ends[1] - ends[0] <= 2.0, "the second has not waited for all of the first"


async def test_files_that_are_given_up_do_not_hold_up_another(nursery, autojump_clock):
    """All streams are busy when they are forgotten; they must not take the other's turn."""
    fetcher = Fetcher(nursery, FetchLimits(streams=1))
    given_up = []
    for _ in range(5):
        _, source, _ = await striped(4, 4, LATENCY_S)
        given_up.append(fetcher.open(source))
        given_up[-1].read_ahead(everything(source))
    for file in given_up:
        file.forget_ahead()
    _, source, content = await striped(4, 4, LATENCY_S)
    sunk = Sunk()
    file = fetcher.open(source, sunk)
    file.read_ahead(everything(source))
    with trio.fail_after(10):
        await file.drained()
        for file in given_up:
            await file.drained()
    assert sunk.whole() == content


async def test_who_waits_for_the_end_is_told_although_more_was_asked_for(nursery, autojump_clock):
    _, source, _ = await striped(4, 4, LATENCY_S)
    file = Fetcher(nursery).open(source)
    async with trio.open_nursery() as waiters:
        file.read_ahead(ByteRange(0, 2 * UNIT))
        waiters.start_soon(file.drained)
        await trio.testing.wait_all_tasks_blocked()
        file.read_ahead(everything(source))
        with trio.fail_after(10):
            await file.drained()
        await trio.testing.wait_all_tasks_blocked()
        assert not waiters.child_tasks
        waiters.cancel_scope.cancel()


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_to_be_read_ahead_is_waited_for_though_it_was_demanded(
    nursery, autojump_clock, fails
):
    store, source, content = await striped(6, 6, LATENCY_S)

    async def slow(operation, name, call):
        if operation == "pread" and piece_of(name) == 5:
            await trio.sleep(2)
            if fails:
                raise Transient("not now")
        return await call()

    store.instead = slow
    sunk = Sunk()
    file = Fetcher(nursery, FetchLimits(streams=1)).open(source, sunk)
    file.read_ahead(everything(source))
    with trio.move_on_after(LATENCY_S):
        await file.get(5)
    if fails:
        with pytest.raises(Transient):
            await file.drained()
    else:
        await file.drained()
        assert sunk.whole() == content


# Machines that hang, lie or fail


async def test_a_piece_that_hangs_is_fetched_a_second_time(nursery, autojump_clock):
    store, source, content = await striped(12, 12)

    async def hang(operation, name, call):
        if operation == "pread" and piece_of(name) in (0, 11) and store.calls["pread", name] == 1:
            await trio.sleep_forever()
        return await call()

    store.instead = hang
    fetcher = Fetcher(nursery)
    file = fetcher.open(source)
    began = trio.current_time()
    assert await file.get(0) == content[:UNIT]
    assert trio.current_time() - began == pytest.approx(3)
    assert fetcher.late.fetched_twice == 1
    for number in range(1, 11):
        await file.get(number)
    assert fetcher.late.fetched_twice == 1
    # By now it is known how long others take.
    began = trio.current_time()
    assert await file.get(11) == content[11 * UNIT :]
    assert trio.current_time() - began == pytest.approx(0.5)
    assert fetcher.late.fetched_twice == 2 and store.open_now == 14, "with a reader of its own"
    await file.close()
    assert store.open_now == 0


async def test_a_piece_that_is_slow_is_taken_from_whoever_has_it_first(nursery, autojump_clock):
    store, source, content = await striped(1, 1)

    async def slow(operation, name, call):
        if operation == "pread":
            await trio.sleep(4 if store.calls["pread", name] == 1 else 100)
        return await call()

    store.instead = slow
    fetcher = Fetcher(nursery)
    began = trio.current_time()
    assert await fetcher.open(source).get(0) == content
    assert trio.current_time() - began == pytest.approx(4)
    assert fetcher.late.fetched_twice == 1


@pytest.mark.parametrize("bad", [1, 2])
async def test_a_wrong_copy_leads_to_another(nursery, bad):
    store, source, content = await striped(3, 3)

    async def lie(operation, name, call):
        data = await call()
        if operation == "pread" and store.calls["pread", name] <= bad:
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    store.instead = lie
    file = Fetcher(nursery).open(source)
    assert b"".join([bytes(await file.read(at * UNIT, UNIT)) for at in range(3)]) == content
    assert store.count("open") == store.count("pread") == 3 * (bad + 1)
    await file.close()


async def test_what_has_no_right_copy_is_an_error_that_says_where(nursery):
    store, source, content = await striped(3, 3)
    lies = True

    async def lie(operation, name, call):
        data = await call()
        return data[:-1] if lies and operation == "pread" and piece_of(name) == 1 else data

    store.instead = lie
    file = Fetcher(nursery).open(source)
    with pytest.raises(Corrupt, match=r"'file': unit 1 .bytes 4096 on.*parts/0{32}/0001"):
        await file.read(0, 3 * UNIT)
    assert await file.get(0) == content[:UNIT]
    lies = False
    assert await file.read(0, len(content)) == content, "an error is not kept"
    await file.close()


async def test_an_error_ahead_does_not_poison_demand(nursery, autojump_clock):
    store, source, content = await striped(8, 8, LATENCY_S)
    fails = True

    async def fail(operation, name, call):
        if fails and operation == "pread" and piece_of(name) == 3:
            raise Transient("not now")
        return await call()

    store.instead = fail
    file = Fetcher(nursery).open(source)
    file.read_ahead(everything(source))
    with pytest.raises(Transient, match="not now"):
        await file.drained()
    assert store.calls["pread", f".bootseer-parts/{ID}/0003"] == 3
    fails = False
    assert await file.read(0, len(content)) == content
    await file.close()


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "on demand"])
async def test_a_sink_that_fails_takes_nothing_from_readers(nursery, autojump_clock, ahead):
    _, source, content = await striped(4, 4, LATENCY_S)

    async def full(offset, data):
        raise NoSpace("the disk is full")

    file = Fetcher(nursery).open(source, full)
    if ahead:
        file.read_ahead(everything(source))
        with pytest.raises(NoSpace):
            await file.drained()
    for _ in range(2):
        assert await file.read(0, len(content)) == content
    await file.close()


async def test_a_file_that_was_replaced_is_not_asked_for_again(nursery):
    store, source, _ = await striped(2, 2)
    await store.delete_tree(".bootseer-parts")
    await publish(store, "file", b"another one")
    file = Fetcher(nursery).open(source)
    with pytest.raises(Conflict, match="open it again"):
        await file.get(0)
    assert store.count("open") == 1
    await store.delete("file")
    with pytest.raises(Conflict, match="open it again"):
        await file.get(1)
    await file.close()


# Closing


@pytest.mark.parametrize("where", ["open", "pread"])
@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "on demand"])
async def test_closing_in_the_middle_leaves_nothing(autojump_clock, where, ahead):
    store, source, _ = await striped(16, 4, LATENCY_S)

    async def hang(operation, name, call):
        if operation == where:
            await trio.sleep_forever()
        return await call()

    async with trio.open_nursery() as nursery:
        fetcher = Fetcher(nursery, FetchLimits(memory_bytes=12 * UNIT, streams=4))
        file = fetcher.open(source, Sunk())
        assert await file.get(15)
        store.instead = hang
        refused = []

        async def read(number):
            with pytest.raises(Closed):
                await file.get(number)
            refused.append(number)

        with trio.fail_after(10):
            async with trio.open_nursery() as readers:
                if ahead:
                    file.read_ahead(everything(source))
                for number in range(3):
                    readers.start_soon(read, number)
                await trio.testing.wait_all_tasks_blocked()
                await file.close()
        assert sorted(refused) == [0, 1, 2]
        with pytest.raises(Closed):
            await file.get(15)
        file.read_ahead(everything(source))
        with trio.fail_after(10):
            if ahead:
                with pytest.raises(Closed):
                    await file.drained()
            while nursery.child_tasks:
                await trio.testing.wait_all_tasks_blocked()
                await trio.sleep(0.1)
        assert store.open_now == 0
        # What it had of streams and memory, others have now.
        _, source, content = await striped(64, 64, LATENCY_S)
        sunk = Sunk()
        other = fetcher.open(source, sunk)
        other.read_ahead(everything(source))
        with trio.fail_after(30):
            await other.drained()
        assert sunk.whole() == content
        await other.close()
        assert fetcher._used_bytes == 0 and not fetcher._idle
        assert fetcher._scheduler.running == {True: 0, False: 0}


async def test_a_part_that_is_opened_while_the_file_is_closed_is_closed_again(nursery):
    """As of a store whose answer is on its way when the file is closed."""
    store, source, _ = await striped(1, 1)
    answer = trio.Event()

    async def late(operation, name, call):
        if operation == "open":
            with trio.CancelScope(shield=True):
                await answer.wait()
                return await call()
        return await call()

    store.instead = late
    file = Fetcher(nursery).open(source)
    async with trio.open_nursery() as readers:

        async def read():
            with pytest.raises(Closed):
                await file.get(0)

        readers.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await file.close()
        answer.set()
    assert store.open_now == 0

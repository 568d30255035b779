"""Traces and hot sets in a store: many nodes, many starts, and what else may lie there."""

import random
import struct
from dataclasses import replace
from itertools import pairwise

import pytest
import trio

from bootseer.core.warm_plan import SAME_START_NS
from bootseer.errors import Corrupt, NotFound
from bootseer.image.hot.repository import (
    hot_set_name,
    is_among,
    is_to_merge,
    publish_trace,
    read_hot_set,
    rebuild,
    traces_of_start,
)
from bootseer.image.hot.trace import COMPLETE, MISSED, PARTIAL, Touch, Trace
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import SlowStore
from bootseer.units import NS_PER_S

DIGEST = "sqfs1-test"
FOLDER = f"traces/{DIGEST}"
PAGE = 4096
HOUR = 3600 * NS_PER_S


def page(number):
    return Touch(number * 100_000, number * 100_000 + PAGE, number)


def trace(start, pages, kind=COMPLETE, *, node="n1", run=None, digest=DIGEST):
    touches = tuple(page(number) for number in pages)
    run = run or f"my-cluster.{start}"
    return Trace(digest, 1 << 30, run, start * HOUR, node, kind, touches)


def pages(hot_set):
    return sorted(r.start // 100_000 for r in hot_set.ranges)


async def names(store):
    return [info.name.rpartition("/")[2] for info in await store.list(FOLDER)]


async def epilog(store, one, *, runs_kept=3):
    await publish_trace(store, one)
    return pages((await rebuild(store, DIGEST, runs_kept)).hot_set)


@pytest.mark.parametrize("first", [COMPLETE, PARTIAL])
async def test_warm_starts_add_and_never_forget(first):
    store = MemoryStore()
    assert await epilog(store, trace(1, range(5), first)) == [0, 1, 2, 3, 4]
    for start in range(2, 30):
        hot = await epilog(store, trace(start, [start + 10], MISSED))
        assert hot == [0, 1, 2, 3, 4, *range(12, start + 11)]
        assert len(await names(store)) <= 1 + 3 + 1 + 1
    assert pages(await read_hot_set(store, DIGEST)) == hot


async def test_a_later_recording_replaces_what_was_missed_before():
    store = MemoryStore()
    await epilog(store, trace(1, [0, 1]))
    await epilog(store, trace(2, [2], MISSED))
    assert await epilog(store, trace(3, [1, 3])) == [0, 1, 3]
    assert len(await names(store)) == 2


async def test_nodes_of_a_start_merge_at_once_and_all_is_in_it():
    store = MemoryStore()
    await epilog(store, trace(1, [0]))
    chance = random.Random(1)
    for start in range(2, 8):

        async def end(number, start=start):
            await trio.sleep(chance.random() / 1000)
            one = trace(start, [start * 10 + number], MISSED, node=f"n{number}")
            await publish_trace(store, one)
            await rebuild(store, DIGEST, 2)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(end, number)
        expected = [0, *(s * 10 + n for s in range(2, start + 1) for n in range(4))]
        assert pages(await read_hot_set(store, DIGEST)) == expected


class Busy(SlowStore):
    """As long as `tasks` are left, one of them publishes its trace whenever a hot set is."""

    def __init__(self, store, tasks):
        super().__init__(store, 0)
        self.tasks = tasks
        self.read = []
        self.merged = 0

    async def around(self, operation, name, call):
        result = await super().around(operation, name, call)
        if operation == "open" and name.startswith(FOLDER):
            self.read.append(name)
        if operation == "commit" and name.startswith("hot/"):
            self.merged += 1
            if self.tasks:
                self.tasks -= 1
                await publish_trace(self._inner, trace(2, [1], node=f"n{self.tasks}"))
        return result


async def test_what_was_read_is_not_read_again_when_others_come():
    store = MemoryStore()
    await publish_trace(store, trace(1, [0]))
    damaged = bytearray(trace(1, [0]).encode())
    for name, byte in (("damaged", 0), ("newer", 8)):  # the magic, and the version
        await publish(store, f"{FOLDER}/{name}", damaged[:byte] + b"\x7f" + damaged[byte + 1 :])
    busy = Busy(store, 5)
    merged = await rebuild(busy, DIGEST, 3)
    assert merged.traces == 6
    assert len(busy.read) == len(set(busy.read)) == 6 + 2
    assert busy.merged == 6, "once more for each that came"


async def test_a_trace_that_goes_while_others_are_merged_is_not_missed():
    store = MemoryStore()
    for start in (1, 2, 3):
        await publish_trace(store, trace(start, [start]))
    gone = (await store.list(FOLDER))[0].name

    class Going(SlowStore):
        async def around(self, operation, name, call):
            if (operation, name) == ("open", gone):
                await self._inner.delete(gone)
            return await super().around(operation, name, call)

    merged = await rebuild(Going(store, 0), DIGEST, 3)
    assert pages(merged.hot_set) == [2, 3] and merged.traces == 2
    assert pages(await read_hot_set(store, DIGEST)) == [2, 3]


async def test_a_merge_ends_even_if_others_come_all_the_time():
    store = MemoryStore()
    for start in range(1, 5):
        await publish_trace(store, trace(start, [0], run=f"my-cluster.{start}"))
    await rebuild(Busy(store, 1000), DIGEST, 3)
    assert pages(await read_hot_set(store, DIGEST)) == [0, 1]
    left = len(await names(store))
    assert left < 50
    await rebuild(store, DIGEST, 3)
    assert len(await names(store)) == left - 1, "the first has had its time"


async def test_the_first_and_the_last_node_of_a_start_merge():
    store = MemoryStore()
    traces = [trace(1, [0], node=f"n-{n}") for n in (2, 0, 1)]
    merged = []
    for one in traces:
        await publish_trace(store, one)
        merged.append(await is_to_merge(store, one, 3))
    assert merged == [True, False, True]
    assert [await is_to_merge(store, one, 3) for one in traces] == [True, False, True]
    assert [await is_to_merge(store, one, 4) for one in traces] == [True, False, False]
    assert not await is_to_merge(store, trace(1, [0], node="n-9"), 3), "a merge has removed it"


@pytest.mark.parametrize("apart_ns", [-SAME_START_NS - 1, -SAME_START_NS, 0, SAME_START_NS])
async def test_nodes_of_a_start_begin_within_a_minute(apart_ns):
    store = MemoryStore()
    first = trace(1, [0])
    await publish_trace(store, first)
    second = replace(first, node="n2", started_ns=first.started_ns + apart_ns)
    assert bool(await traces_of_start(store, second)) is (abs(apart_ns) <= SAME_START_NS)


async def test_what_is_no_trace_does_not_count_for_a_start():
    store = MemoryStore()
    one = trace(1, [0])
    for name in ("x", f"x-{one.run}-n1.trace", f"{HOUR:020d}", f"{HOUR:020d}-other-{one.run}-n1"):
        await publish(store, f"{FOLDER}/{name}", b"")
    assert not await traces_of_start(store, one)


@pytest.mark.parametrize("nodes", [1, 3, 4, 5, 17, 128])
@pytest.mark.parametrize("count", [1, 4, 64])
def test_nodes_that_publish_are_spread_over_the_job(nodes, count):
    chosen = [node for node in range(nodes) if is_among(count, nodes, node)]
    assert chosen[0] == 0
    assert len(chosen) == min(count, nodes)
    gaps = [b - a for a, b in pairwise([*chosen, nodes])]
    assert max(gaps) <= -(-nodes // count)
    assert set(chosen) <= {node for node in range(nodes) if is_among(4 * count, nodes, node)}


def test_a_node_of_a_job_whose_nodes_are_not_known_publishes():
    assert is_among(4, 0, 0)


async def test_a_requeued_job_is_another_start():
    store = MemoryStore()
    first = trace(1, [0], run="my-cluster.12")
    for number in range(4):
        await publish_trace(store, trace(1, [0], node=f"n{number}", run=first.run))
    later = Trace(
        *(first.digest, first.size_bytes, first.run, HOUR + SAME_START_NS + 1, "n1"),
        MISSED,
        (page(7),),
    )
    for other in (later, trace(1, [0], run="my-cluster.1")):
        assert not await traces_of_start(store, other)
        await publish_trace(store, other)
    assert pages((await rebuild(store, DIGEST, 3)).hot_set) == [0, 7]


async def test_what_else_lies_there_is_passed_over_or_cleared_away():
    store = MemoryStore()
    good = trace(1, [0])
    newer = bytearray(good.encode())
    struct.pack_into("<H", newer, 8, 2)
    await publish(store, f"{FOLDER}/newer.trace", bytes(newer))
    await publish(store, f"{FOLDER}/copy.trace", trace(2, [5]).encode())
    await publish(store, f"{FOLDER}/damaged.trace", good.encode()[:-1])
    other = trace(3, [6], digest="sqfs1-other")
    await publish(store, f"{FOLDER}/{other.started_ns:020d}-{other.run}-n1.trace", other.encode())
    evil = trace(4, [7], run="../../hot/x")
    await publish(store, f"{FOLDER}/evil.trace", evil.encode())
    await store.mkdir(f"{FOLDER}/folder")
    assert await epilog(store, good) == [0]
    assert sorted(await names(store)) == sorted(
        [f"{HOUR:020d}-{good.run}-n1.trace", "folder", "newer.trace"]
    )


async def test_the_hot_set_of_another_image_is_damage():
    store = MemoryStore()
    await epilog(store, trace(1, [0]))
    hot_set = await read_all(store, hot_set_name(DIGEST), 10_000)
    await publish(store, hot_set_name("sqfs1-other"), hot_set)
    with pytest.raises(Corrupt, match=f"another image, {DIGEST}"):
        await read_hot_set(store, "sqfs1-other")


async def test_without_a_trace_there_is_nothing_to_merge():
    store = MemoryStore()
    with pytest.raises(NotFound):
        await rebuild(store, DIGEST, 3)
    assert await read_hot_set(store, DIGEST) is None

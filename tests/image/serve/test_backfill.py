"""An image brought to a node: the rest in quiet times and at its rate, or all of it at once."""

import math

import pytest
import trio
from bootseer_dev.material.stored_image import manifest_of, readable, store_image

from bootseer.core import image_manifest
from bootseer.errors import NoSpace, Transient
from bootseer.image.library import catalog
from bootseer.image.serve.backfill import copy, fill, until_idle
from bootseer.image.serve.node_cache import NodeCache
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore, HangingStore, SlowStore
from bootseer.units import KIB, MIB

BLOCK = 64 * KIB
STEP = MIB // BLOCK
"""Blocks that are brought at once."""
CONTENT = bytes(2 * MIB + BLOCK + 77)
MANIFEST = manifest_of(CONTENT, BLOCK)
DIGEST = image_manifest.image_digest(MANIFEST.encode())


class Kept(NodeCache):
    """A node that has room for some blocks, and keeps them in no time."""

    def __init__(self, has=(), room=math.inf):
        super().__init__()
        self.has = set(has)
        self.room = room

    @property
    def grows(self):
        return len(self.has) < self.room

    def missing(self, blocks):
        return [index for index in blocks if index not in self.has]

    async def keep(self, blocks, data, *, is_checked):
        self.has.update(blocks)
        return True


class Noting(SlowStore):
    """Notes which parts are opened, and when."""

    def __init__(self, store, latency_s=0.0):
        super().__init__(store, latency_s)
        self.opened = []
        self.began = trio.current_time()

    async def around(self, operation, name, call):
        if operation == "open":
            self.opened.append((name.rpartition("/")[2], trio.current_time() - self.began))
        return await super().around(operation, name, call)


@pytest.fixture
async def store():
    store = MemoryStore()
    await store_image(store, CONTENT, "test", BLOCK)
    return store


async def test_the_rest_is_brought_from_the_beginning_on_and_at_its_rate(store, autojump_clock):
    slow, node = Noting(store, 1 / 32), Kept(has=range(3, 9))
    async with readable(slow, DIGEST, MANIFEST, node) as blocks:
        await fill(blocks, node, 0.5 * MIB)
        took_s = trio.current_time() - slow.began
        await blocks.settle()
        assert not node.missing(range(MANIFEST.blocks))
        assert blocks.stats.filled_bytes == blocks.stats.fetched_bytes == len(CONTENT) - 6 * BLOCK
    first_s = 2 * (MIB - 6 * BLOCK) / MIB
    assert slow.opened == [
        ("part-0000", 2.0),
        ("part-0001", pytest.approx(2.0 + first_s)),
        ("part-0002", pytest.approx(4.0 + first_s)),
    ]
    assert took_s == pytest.approx(4.0 + first_s + 2 * (BLOCK + 77) / MIB)


async def test_the_rest_waits_while_somebody_waits_for_the_store(store, autojump_clock):
    noting, node = Noting(store), Kept(has=set(range(MANIFEST.blocks)) - {0, STEP, 2 * STEP})
    async with readable(noting, DIGEST, MANIFEST, node) as blocks, trio.open_nursery() as nursery:
        nursery.start_soon(fill, blocks, node, 100 * BLOCK)
        for moment in (1.5, 3.0):
            await trio.sleep_until(noting.began + moment)
            await blocks.read(2 * MIB, 10)
            node.has.remove(2 * STEP)
        await trio.sleep_until(noting.began + 4.9)
        assert noting.opened == [("part-0002", 1.5)]
        await trio.sleep_until(noting.began + 5.1)
        assert noting.opened[1:] == [("part-0000", 5.0), ("part-0001", pytest.approx(5.01))]


async def test_who_waits_for_quiet_does_so_for_as_long_as_others_come(store, autojump_clock):
    async with readable(store, DIGEST, MANIFEST, Kept()) as blocks:
        began = trio.current_time()
        await until_idle(blocks)
        assert trio.current_time() == began + 2
        await until_idle(blocks)
        assert trio.current_time() == began + 2


async def test_nothing_is_brought_before_it_is_known_that_the_job_goes_on(store, autojump_clock):
    noting, node = Noting(store), Kept()
    async with readable(noting, DIGEST, MANIFEST, node) as blocks:
        await trio.sleep(10)  # nobody has waited for so long
        await fill(blocks, node, MIB)
    assert noting.opened[0] == ("part-0000", 12.0)


async def test_without_a_rate_nothing_is_brought(store, autojump_clock):
    noting, node = Noting(store), Kept()
    async with readable(noting, DIGEST, MANIFEST, node) as blocks:
        await fill(blocks, node, 0)
        assert trio.current_time() == noting.began
    assert not noting.opened


async def test_the_rest_of_a_complete_image_is_nothing(store, autojump_clock):
    noting, node = Noting(store), Kept(has=range(MANIFEST.blocks))
    async with readable(noting, DIGEST, MANIFEST, node) as blocks:
        await fill(blocks, node, MIB)
        assert await copy(blocks, node) == 0
    assert not noting.opened


async def test_a_node_that_is_full_gets_no_more(store, autojump_clock):
    noting, node = Noting(store), Kept(room=STEP)
    async with readable(noting, DIGEST, MANIFEST, node) as blocks:
        await fill(blocks, node, MIB)
    assert [name for name, _ in noting.opened] == ["part-0000"]


async def test_a_store_that_is_gone_ends_the_filling_and_fails_nobody(store, autojump_clock):
    flaky = FlakyStore(store, lambda count, operation, name: name.endswith("part-0001"))
    node = Kept()
    async with readable(flaky, DIGEST, MANIFEST, node) as blocks:
        await fill(blocks, node, MIB)
        assert blocks.stats.filled_bytes == MIB
    assert ("open", catalog.part_object(DIGEST, 2)) not in flaky.calls


async def test_a_copy_brings_all_that_is_missing_and_says_how_much(store, autojump_clock):
    node = Kept(has=[1, 20])
    async with readable(store, DIGEST, MANIFEST, node) as blocks:
        assert await copy(blocks, node) == len(CONTENT) - 2 * BLOCK
        await blocks.settle()
    assert not node.missing(range(MANIFEST.blocks))


@pytest.fixture
async def long():
    """An image of more parts than are copied at once."""
    content = bytes(19 * MIB)
    store = MemoryStore()
    digest = await store_image(store, content, "long", MIB)
    return store, digest, manifest_of(content, MIB)


async def test_a_copy_reads_many_parts_at_once(long, autojump_clock):
    store, digest, manifest = long
    noting, node = Noting(HangingStore(store, {"open"})), Kept()
    async with (
        readable(noting, digest, manifest, node) as blocks,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(copy, blocks, node)
        await trio.sleep(1)
        assert len(noting.opened) == 16
        nursery.cancel_scope.cancel()


async def test_a_copy_that_fails_says_why_and_asks_for_nothing_more(long, autojump_clock):
    store, digest, manifest = long
    flaky, node = FlakyStore(store, lambda *call: True), Kept()
    async with readable(flaky, digest, manifest, node) as blocks:
        with pytest.raises(Transient):
            await copy(blocks, node)
    assert len(flaky.calls) == 16


async def test_a_copy_of_which_one_part_fails_says_why(store, autojump_clock):
    flaky = FlakyStore(store, lambda count, operation, name: name.endswith("part-0001"))
    node = Kept()
    async with readable(flaky, DIGEST, MANIFEST, node) as blocks:
        with pytest.raises(Transient):
            await copy(blocks, node)


async def test_a_copy_that_there_is_no_room_for_is_told(long, autojump_clock):
    store, digest, manifest = long
    noting, node = Noting(store), Kept(room=2)
    async with readable(noting, digest, manifest, node) as blocks:
        with pytest.raises(NoSpace):
            await copy(blocks, node)
    assert len(noting.opened) < manifest.parts

"""An image read through cache and store: always its bytes, whatever is slow, damaged or gone."""

import errno
import os
import random
import tempfile
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from bootseer_dev.files.raw_kernel import raw_kernel
from bootseer_dev.material.stored_image import (
    cache_in,
    keeper_link,
    manifest_of,
    open_entry,
    readable,
    store_image,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from bootseer.core import image_manifest
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, Transient, Unavailable
from bootseer.image.hot import pack_store
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.hot.pack import plan_pack
from bootseer.image.library import catalog
from bootseer.image.serve.node_cache import NodeCache
from bootseer.image.serve.view import ImageView
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore, HangingStore, SlowStore, first
from bootseer.units import KIB, MIB

pytestmark = pytest.mark.root  # the cache's folder has to be root's
BLOCK = 4096
CONTENT = random.Random(2).randbytes(2 * MIB + 5 * BLOCK + 77)
MANIFEST = manifest_of(CONTENT)
DIGEST = image_manifest.image_digest(MANIFEST.encode())
HOT = HotSet(
    MANIFEST.identity,
    len(CONTENT),
    ("c.1",),
    tuple(HotRange(i * BLOCK, (i + 1) * BLOCK, n, 1) for n, i in enumerate(range(299, 0, -1))),
)


class Job:
    """One job's way to the image: what it has open of the cache, and what it was told."""

    def __init__(self, cache, store, has_room=lambda size_bytes: True):
        self.store = store
        self.entry = open_entry(cache, MANIFEST)
        self.cached = self.entry.blocks()
        self.has_room = has_room
        self.said = []

    @asynccontextmanager
    async def open(self, deadline_s=60.0):
        async with keeper_link(self.entry, self.has_room) as link:
            node = NodeCache(self.cached, link, self.said.append)
            async with readable(self.store, DIGEST, MANIFEST, node, deadline_s) as blocks:
                yield blocks

    def close(self):
        self.cached.close()
        self.entry.close()


@pytest.fixture
async def store():
    store = MemoryStore()
    await store_image(store, CONTENT, "test")
    return store


@pytest.fixture
def job_of(tmp_path):
    cache = cache_in(tmp_path)
    with ExitStack() as jobs:

        def make(store, **more):
            job = Job(cache, store, **more)
            jobs.callback(job.close)
            return job

        yield make


def content(offset, size_bytes):
    return CONTENT[offset : offset + size_bytes]


async def test_blocks_are_fetched_once_and_then_the_nodes(store, job_of):
    job = job_of(store)
    async with job.open() as blocks:
        assert await blocks.read(10, 3 * BLOCK) == content(10, 3 * BLOCK)
        assert blocks.stats.fetched_bytes == 4 * BLOCK and blocks.stats.fetches == 1
    async with job.open() as blocks:
        assert await blocks.read(BLOCK, 100) == content(BLOCK, 100)
        assert await blocks.read(2 * BLOCK, 3 * BLOCK) == content(2 * BLOCK, 3 * BLOCK)
        assert blocks.stats.fetched_bytes == BLOCK and blocks.stats.fetches == 1
    async with job_of(store).open() as blocks:
        assert await blocks.read(0, 5 * BLOCK) == content(0, 5 * BLOCK)
        assert blocks.stats.fetched_bytes == blocks.stats.fetches == 0
    assert job.said == []


async def test_a_reader_that_goes_on_finds_the_next_blocks_on_the_node(store, job_of):
    job = job_of(store)
    step = 128 * KIB
    async with job.open() as blocks:
        for offset in range(0, 5 * step, step):
            assert await blocks.read(offset, step) == content(offset, step)
            await blocks.settle()
        assert blocks.stats.fetches == 4  # three reads, and what is fetched ahead of the next
        assert blocks.stats.fetched_bytes == 5 * step
        assert blocks.stats.filled_bytes == 0


async def test_nothing_is_fetched_ahead_that_cannot_be_kept(store, job_of):
    step = 128 * KIB
    async with job_of(store, has_room=lambda size_bytes: False).open() as full:
        await full.read(0, step)
        await full.settle()
        for offset in range(step, 10 * step, step):
            assert await full.read(offset, step) == content(offset, step)
        assert full.stats.fetches == 10
    async with readable(store, DIGEST, MANIFEST, NodeCache()) as bare:
        for offset in range(0, 10 * step, step):
            assert await bare.read(offset, step) == content(offset, step)
        assert bare.stats.fetches == 10


async def test_neighbours_that_the_node_has_are_read_at_once(store, job_of, monkeypatch):
    job = job_of(store)
    async with job.open() as blocks:
        for first, count in ((1, 3), (5, 4)):
            await blocks.read(first * BLOCK, count * BLOCK)
        await blocks.settle()
        asked, read = [], job.cached.read
        monkeypatch.setattr(job.cached, "read", lambda *where: asked.append(where) or read(*where))
        assert await blocks.read(100, 10 * BLOCK) == content(100, 10 * BLOCK)
        assert asked == [(BLOCK, 3 * BLOCK), (5 * BLOCK, 4 * BLOCK)]


async def test_what_nobody_waits_for_is_counted_by_itself(store, autojump_clock):
    async with readable(store, DIGEST, MANIFEST, NodeCache()) as blocks:
        await trio.sleep(1)
        assert await blocks.fetch([0, 1, 7]) == 3 * BLOCK
        assert blocks.urgent_at == trio.current_time() - 1
        await blocks.read(0, BLOCK)
        assert blocks.urgent_at == trio.current_time()
        assert await blocks.fetch([8]) == BLOCK
        assert (blocks.stats.filled_bytes, blocks.stats.fetched_bytes) == (4 * BLOCK, 5 * BLOCK)


async def test_what_another_job_has_brought_meanwhile_is_not_brought(store, job_of):
    one, other = job_of(store), job_of(store)
    async with one.open() as first, other.open() as second:
        await first.read(2 * BLOCK, 2 * BLOCK)
        await first.settle()
        assert await second.fetch(list(range(6))) == 4 * BLOCK
        assert await second.fetch(list(range(6))) == 0


async def test_the_end_of_the_image(store, job_of):
    async with job_of(store).open() as blocks:
        for _ in range(2):
            assert await blocks.read(len(CONTENT) - 100, 4096) == CONTENT[-100:]
            assert await blocks.read(len(CONTENT), 4096) == b""
            assert await blocks.read(len(CONTENT) + 5000, 4096) == b""


async def test_a_block_is_fetched_once_for_all_who_wait(store, job_of):
    slow = SlowStore(store, 0.01)
    first, second = job_of(slow), job_of(slow)
    async with first.open() as one, second.open() as other, trio.open_nursery() as nursery:
        for blocks in (one, other) * 3:
            for offset in range(0, MIB, MIB // 4):

                async def read(blocks=blocks, offset=offset):
                    assert await blocks.read(offset, MIB) == content(offset, MIB)

                nursery.start_soon(read)
        # Leaving the nursery waits for them.
    assert one.stats.fetched_bytes + other.stats.fetched_bytes == MIB + 3 * MIB // 4
    assert first.said == second.said == []


async def test_another_job_that_claims_and_does_not_fetch_is_waited_for_but_not_for_ever(
    store, job_of
):
    hanging, job = job_of(store), job_of(store)
    keeper = hanging.entry.keeper(lambda size_bytes: True)
    keeper.claim(range(0, 3))
    async with job.open() as blocks:
        with trio.fail_after(20):
            assert await blocks.read(0, 4 * BLOCK) == content(0, 4 * BLOCK)
        began = trio.current_time()
        assert await blocks.read(8 * BLOCK, BLOCK) == content(8 * BLOCK, BLOCK)
        assert trio.current_time() - began < 2
    assert len(job.said) == 1
    keeper.close()


class Noting(SlowStore):
    """Notes which objects are read, in order."""

    def __init__(self, store, latency_s):
        super().__init__(store, latency_s)
        self.order = []

    async def around(self, operation, name, call):
        if operation == "pread":
            self.order.append(name)
        return await super().around(operation, name, call)


async def test_who_waits_goes_before_what_is_only_ahead(store, job_of, autojump_clock):
    big = random.Random(3).randbytes(40 * MIB)
    digest, manifest = await store_image(store, big, "big", 65536), manifest_of(big, 65536)
    noting = Noting(store, 1.0)
    order = noting.order
    async with (
        readable(noting, digest, manifest, NodeCache()) as blocks,
        trio.open_nursery() as nursery,
    ):

        async def read(offset, is_urgent):
            assert await blocks.read(offset, 65536, is_urgent=is_urgent) == big[offset:][:65536]

        for number in range(40):
            await read(number * MIB + 65536, True)  # all parts are open
        order.clear()
        for number in range(39):
            nursery.start_soon(read, number * MIB, False)
        await trio.sleep(0.5)  # the first are under way
        assert len(order) == 16
        nursery.start_soon(read, 39 * MIB, True)
        waiting = next(n for n in range(39) if catalog.part_object(digest, n) not in order)
        nursery.start_soon(read, waiting * MIB, True)
        await trio.sleep(0.1)
        urgent = {catalog.part_object(digest, number) for number in (waiting, 39)}
        assert set(order[16:]) == urgent


@pytest.mark.parametrize("what", ["new", "waiting for its turn"])
async def test_while_somebody_waits_little_else_begins(store, autojump_clock, what):
    noting = Noting(store, 1.0)
    async with (
        readable(noting, DIGEST, MANIFEST, NodeCache()) as blocks,
        trio.open_nursery() as nursery,
    ):

        async def read(index, is_urgent=False):
            where = index * BLOCK, BLOCK
            assert await blocks.read(*where, is_urgent=is_urgent) == content(*where)

        await read(200)  # the part is open
        noting.order.clear()
        for index in range(0, 32, 2):
            nursery.start_soon(read, index)
        await trio.sleep(0.1)
        nursery.start_soon(read, 32)
        await trio.sleep(0.1)
        for index in range(34, 80, 2):
            nursery.start_soon(read, index)
        await trio.sleep(0.3)
        assert len(noting.order) == 16
        nursery.start_soon(read, 100 if what == "new" else 32, True)
        await trio.sleep(0.4)
        assert len(noting.order) == 16 + 1
        await trio.sleep(0.4)  # the first have ended
        assert len(noting.order) == 16 + 1 + 4
        await trio.sleep(0.4)  # and nobody waits any more
        assert len(noting.order) == 16 + 1 + 16


class SlowDisk(NodeCache):
    """Keeps what it is given once it is let."""

    def __init__(self):
        super().__init__()
        self.may_keep = trio.Event()
        self.given, self.released = [], []

    async def keep(self, blocks, data, *, is_checked):
        self.given += blocks
        await self.may_keep.wait()

    async def release(self, blocks):
        self.released += blocks


async def test_a_disk_that_is_slow_holds_no_reader_up_and_does_not_fill_the_memory(
    store, monkeypatch
):
    monkeypatch.setattr("bootseer.image.serve.fetcher._KEEPING_BYTES", 8 * BLOCK)
    disk = SlowDisk()
    async with readable(store, DIGEST, MANIFEST, disk) as blocks:

        async def read(first, is_urgent=True):
            where = first * BLOCK, 4 * BLOCK
            assert await blocks.read(*where, is_urgent=is_urgent) == content(*where)
            await trio.testing.wait_all_tasks_blocked()

        for first in (0, 4, 8, 12):
            await read(first)
        assert disk.given == list(range(8)), "of more, nothing is kept"
        assert disk.released == list(range(8, 16)), "others may fetch and keep it"
        await read(16, is_urgent=False)
        assert disk.given[8:] == list(range(16, 20)), "who is only ahead can wait for the disk"
        disk.may_keep.set()
        await blocks.settle()
        await read(20)
        assert disk.given[12:] == list(range(20, 24))


class SlowKeeper:
    """A link whose keeper writes nothing until it is let."""

    def __init__(self, link):
        self.link = link
        self.asked = []
        self.may_keep = trio.Event()

    async def claim(self, blocks, *, replace):
        self.asked.append(("claim", list(blocks)))
        return await self.link.claim(blocks, replace=replace)

    async def keep(self, blocks, data):
        self.asked.append(("keep", list(blocks)))
        await self.may_keep.wait()
        await self.link.keep(blocks, data)


async def test_a_reader_waits_for_one_answer_of_the_keeper(store, job_of):
    job = job_of(store)
    async with keeper_link(job.entry) as link:
        keeper = SlowKeeper(link)
        node = NodeCache(job.cached, keeper, job.said.append)
        async with readable(store, DIGEST, MANIFEST, node) as blocks:
            with trio.fail_after(20):
                assert await blocks.read(10, 3 * BLOCK) == content(10, 3 * BLOCK)
            assert job.cached.missing(range(4)) == [0, 1, 2, 3]
            keeper.may_keep.set()
            await blocks.settle()
        assert keeper.asked == [("claim", [0, 1, 2, 3]), ("keep", [0, 1, 2, 3])]
        assert job.cached.missing(range(5)) == [4]


async def test_a_damaged_block_of_the_cache_is_fetched_again(store, job_of):
    job = job_of(store)
    async with job.open() as blocks:
        await blocks.read(0, 16 * BLOCK)
    with open(job.entry.path / "data", "r+b") as file:
        file.seek(5 * BLOCK + 9)
        file.write(b"?")
    later = job_of(store)
    async with later.open() as blocks:
        assert await blocks.read(0, 16 * BLOCK) == content(0, 16 * BLOCK)
        assert later.cached.damaged == 1
        assert blocks.stats.fetched_bytes == BLOCK
    async with job_of(store).open() as blocks:
        assert await blocks.read(0, 16 * BLOCK) == content(0, 16 * BLOCK)
        assert blocks.stats.fetched_bytes == 0


async def test_however_much_is_damaged_no_read_fails(store, job_of):
    """What is damaged lies in many places, each between blocks that the node does not have."""
    job = job_of(store)
    there = range(0, 40, 2)
    async with job.open() as blocks:
        for index in there:
            await blocks.read(index * BLOCK, BLOCK)
    with open(job.entry.path / "data", "r+b") as file:
        for index in there:
            file.seek(index * BLOCK)
            file.write(b"?????")
    later = job_of(store)
    async with later.open() as blocks:
        assert await blocks.read(0, 40 * BLOCK) == content(0, 40 * BLOCK)
        assert later.cached.damaged == len(there)
    async with job_of(store).open() as blocks:
        assert await blocks.read(0, 40 * BLOCK) == content(0, 40 * BLOCK)
        assert blocks.stats.fetched_bytes == 0


async def test_a_cache_that_loses_what_it_is_given_fails_no_read(store, job_of, monkeypatch):
    job = job_of(store)
    async with job.open() as blocks:
        await blocks.read(0, 9 * BLOCK)
        await blocks.settle()
        monkeypatch.setattr(job.cached, "read", lambda offset, size_bytes: None)
        assert await blocks.read(0, 9 * BLOCK) == content(0, 9 * BLOCK)
        assert blocks.stats.fetched_bytes == 18 * BLOCK


async def test_a_damaged_block_of_the_store_is_an_error_that_names_it(store, job_of):
    damaged = bytearray(CONTENT[MIB : 2 * MIB])
    damaged[7 * BLOCK + 1] ^= 1
    await publish(store, catalog.part_object(DIGEST, 1), bytes(damaged))
    counting = FlakyStore(store, lambda *call: False)
    async with job_of(counting).open() as blocks:
        with pytest.raises(Corrupt, match=rf"part-0001' in memory: is damaged at byte {7 * BLOCK}"):
            await blocks.read(MIB, 16 * BLOCK)
        reads = [name for operation, name in counting.calls if operation == "pread"]
        assert len(reads) == 1 + 16, "all at once, and then each by itself"
        assert blocks.stats.fetched_bytes == 15 * BLOCK
        for offset in (0, MIB, MIB + 8 * BLOCK):  # all others can be read
            assert await blocks.read(offset, 7 * BLOCK) == content(offset, 7 * BLOCK)
        assert blocks.stats.fetched_bytes == 22 * BLOCK, "they have been kept"


async def test_of_two_blocks_that_are_read_at_once_the_one_that_is_not_damaged_is_kept(
    store, job_of
):
    await publish(
        store, catalog.part_object(DIGEST, 1), bytes(BLOCK) + CONTENT[MIB + BLOCK :][:MIB]
    )
    async with job_of(store).open() as blocks:
        with pytest.raises(Corrupt, match="is damaged at byte 0:"):
            await blocks.read(MIB, 2 * BLOCK)
        assert await blocks.read(MIB + BLOCK, BLOCK) == content(MIB + BLOCK, BLOCK)
        assert blocks.stats.fetched_bytes == BLOCK


async def test_an_object_that_is_cut_short_is_an_error(store, job_of):
    await publish(store, catalog.part_object(DIGEST, 1), CONTENT[MIB : MIB + 3 * BLOCK + 5])
    async with job_of(store).open() as blocks:
        assert await blocks.read(MIB, 3 * BLOCK) == content(MIB, 3 * BLOCK)
        with pytest.raises(Corrupt):
            await blocks.read(MIB + 3 * BLOCK, BLOCK)


async def test_a_store_that_hangs_is_an_error_in_time(store, job_of, autojump_clock):
    hanging = HangingStore(store, {"pread"})
    node = NodeCache()
    async with readable(hanging, DIGEST, MANIFEST, node, 60.0) as blocks:
        began = trio.current_time()
        with pytest.raises(Unavailable, match=r"no answer from memory: .* within 60 s"):
            await blocks.read(0, 100)
        assert trio.current_time() - began == 60.0
        hanging.operations = ()
        assert await blocks.read(BLOCK * 300, 100) == content(BLOCK * 300, 100)


async def test_who_asks_again_for_what_did_not_come_does_not_wait_as_long_again(
    store, job_of, autojump_clock
):
    """As the kernel does, when reading ahead has failed."""
    hanging = HangingStore(store, {"pread"})
    async with readable(hanging, DIGEST, MANIFEST, NodeCache(), 60.0) as blocks:
        began = trio.current_time()
        for _ in range(2):
            with pytest.raises(Unavailable, match="within 60 s"):
                await blocks.read(0, 100)
        assert trio.current_time() - began == 60.0
        # What is only ahead has a time of its own.
        with pytest.raises(Unavailable, match="within 60 s"):
            await blocks.read(MIB, 100, is_urgent=False)
        assert trio.current_time() - began == 120.0


class Joined:
    """Reads that have joined another, and their answers."""

    def __init__(self, blocks):
        self.blocks = blocks
        self.answers = {}

    def join(self, index, count=1, is_urgent=True):
        """Returns whether it could join."""

        def answer(data):
            assert index not in self.answers, "only once"
            self.answers[index] = data if data is None else bytes(data)

        where = index * BLOCK, count * BLOCK
        return self.blocks.join(*where, answer, is_urgent=is_urgent)


async def test_reads_join_one_that_waits_for_their_blocks(store, autojump_clock):
    noting = Noting(store, 1.0)
    async with (
        readable(noting, DIGEST, MANIFEST, NodeCache()) as blocks,
        trio.open_nursery() as nursery,
    ):
        joined = Joined(blocks)
        assert not joined.join(0), "nothing is under way"
        nursery.start_soon(partial(blocks.read, 0, 16 * BLOCK))
        await trio.sleep(0.1)
        assert joined.join(0) and joined.join(14, 2)
        assert not joined.join(15, 2), "not all of it comes"
        assert joined.answers == {}
        await trio.sleep(5)
        assert joined.answers == {0: content(0, BLOCK), 14: content(14 * BLOCK, 2 * BLOCK)}
        assert len(noting.order) == 1 and not joined.join(0), "that has ended"


async def test_reads_join_what_is_read_ahead_once_a_task_waits_for_it(store, autojump_clock):
    async with (
        readable(SlowStore(store, 1.0), DIGEST, MANIFEST, NodeCache()) as blocks,
        trio.open_nursery() as nursery,
    ):
        joined = Joined(blocks)
        nursery.start_soon(partial(blocks.read, 0, 8 * BLOCK, is_urgent=False))
        await trio.sleep(0.1)
        assert joined.join(1, is_urgent=False)
        assert not joined.join(2), "nobody who waits has said until when"
        nursery.start_soon(blocks.read, 0, BLOCK)
        await trio.sleep(0.1)
        assert joined.join(2)
        await trio.sleep(5)
        assert joined.answers == {i: content(i * BLOCK, BLOCK) for i in (1, 2)}


async def test_joined_reads_get_the_error_of_their_own_blocks(store, autojump_clock):
    part = bytearray(CONTENT[:MIB])
    part[3 * BLOCK] ^= 1
    await publish(store, catalog.part_object(DIGEST, 0), bytes(part))
    async with (
        readable(SlowStore(store, 1.0), DIGEST, MANIFEST, NodeCache()) as blocks,
        trio.open_nursery() as nursery,
    ):
        errors = []

        async def read():
            with pytest.raises(Corrupt):
                await blocks.read(0, 8 * BLOCK)

        nursery.start_soon(read)
        await trio.sleep(0.1)
        joined = Joined(blocks)
        assert joined.join(0, 3)
        assert blocks.join(2 * BLOCK, 3 * BLOCK, errors.append)
        await trio.sleep(60)
        assert joined.answers == {0: content(0, 3 * BLOCK)}
        assert [type(error) for error in errors] == [Corrupt]


@pytest.mark.parametrize("is_urgent", [True, False])
async def test_joined_reads_are_given_back_when_nobody_waits_any_more(
    store, autojump_clock, is_urgent
):
    hanging = HangingStore(store, {"pread"})
    async with (
        readable(hanging, DIGEST, MANIFEST, NodeCache(), 60.0) as blocks,
        trio.open_nursery() as nursery,
    ):

        async def read():
            with pytest.raises(Unavailable):
                await blocks.read(0, 8 * BLOCK, is_urgent=is_urgent)

        nursery.start_soon(read)
        await trio.sleep(1)
        joined = Joined(blocks)
        assert joined.join(2, is_urgent=is_urgent)
        await trio.sleep(58)
        assert joined.answers == {}
        await trio.sleep(2)
        assert joined.answers == {2: None}
        assert not joined.join(3, is_urgent=is_urgent)


async def test_what_is_read_ahead_is_compared_once(store, job_of, monkeypatch):
    checked = []
    real = image_manifest.ImageManifest.bad_block

    def bad_block(self, blocks, data):
        checked.extend(blocks)
        return real(self, blocks, data)

    monkeypatch.setattr(image_manifest.ImageManifest, "bad_block", bad_block)
    async with job_of(store).open() as blocks:
        await blocks.read(0, 4 * BLOCK, is_urgent=False)
        assert checked == [], "the keeper has compared it"
        await blocks.read(9 * BLOCK, BLOCK)
        assert checked == [9]
    full = job_of(store)
    full.has_room = lambda size_bytes: False
    async with full.open() as blocks:
        await blocks.read(20 * BLOCK, 2 * BLOCK, is_urgent=False)
        assert checked == [9, 20, 21], "a keeper without room compares nothing"
        assert blocks.stats.fetches == 1


async def test_who_comes_while_it_is_read_ahead_does_not_wait_for_the_disk(store, job_of):
    job = job_of(SlowStore(store, 0.3))
    async with keeper_link(job.entry) as link:
        keeper = SlowKeeper(link)
        node = NodeCache(job.cached, keeper, job.said.append)
        async with (
            readable(job.store, DIGEST, MANIFEST, node) as blocks,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(blocks.read, 0, 4 * BLOCK, is_urgent=False))
            while not keeper.asked:
                await trio.sleep(0.01)
            with trio.fail_after(20):
                assert await blocks.read(0, BLOCK) == content(0, BLOCK)
            assert job.cached.missing(range(4)) == [0, 1, 2, 3]
            keeper.may_keep.set()


async def test_a_damaged_block_that_is_read_ahead_is_an_error_and_no_loss_of_the_cache(
    store, job_of
):
    damaged = bytearray(CONTENT[MIB : 2 * MIB])
    damaged[7 * BLOCK + 1] ^= 1
    await publish(store, catalog.part_object(DIGEST, 1), bytes(damaged))
    job = job_of(store)
    async with job.open() as blocks:
        with pytest.raises(Corrupt, match=rf"is damaged at byte {7 * BLOCK}"):
            await blocks.read(MIB, 16 * BLOCK, is_urgent=False)
        assert await blocks.read(MIB, 7 * BLOCK) == content(MIB, 7 * BLOCK)
        await blocks.settle()
    assert job.said == [], "the cache still grows"
    first = MIB // BLOCK
    assert job.cached.missing(range(first, first + 16)) == [first + 7]


async def test_what_is_to_be_read_in_small_pieces_is_fetched_in_large_ones(store, job_of):
    """Small files of an environment are neighbours, and a start reads them in another order."""
    scattered = [
        ByteRange(n * BLOCK, (n + 1) * BLOCK) for n in random.Random(1).sample(range(8, 264), 256)
    ]
    job = job_of(store)
    async with job.open() as blocks:
        blocks.fetch_ahead(scattered)
        await blocks.settle()
        assert blocks.stats.fetched_bytes == 256 * BLOCK
        assert blocks.stats.fetches <= 4
        assert job.cached.missing(range(8, 264)) == []
        assert await blocks.read(9 * BLOCK, BLOCK) == content(9 * BLOCK, BLOCK)
        assert blocks.stats.fetches <= 4
        blocks.fetch_ahead(scattered)
        await blocks.settle()
        assert blocks.stats.fetched_bytes == 256 * BLOCK, "the node has them"


async def test_what_a_start_reads_first_is_fetched_first(store, job_of, monkeypatch):
    monkeypatch.setattr("bootseer.image.serve.image_blocks._FIRST_TOGETHER_BYTES", 2 * BLOCK)
    monkeypatch.setattr("bootseer.image.serve.fetcher._AHEAD", 1)
    ranges = [ByteRange(n * BLOCK, (n + 1) * BLOCK) for n in (300, 301, 40, 10, 42, 12, 100, 50)]
    async with job_of(store).open() as blocks:
        runs = note_runs(blocks)
        blocks.fetch_ahead(ranges)
        await blocks.settle()
        assert [run.start for run in runs] == [300, 10, 12, 40, 42, 50, 100]


def note_runs(blocks):
    """Note which runs of blocks are read from the store, in order."""
    read, noted = blocks._fetcher._read, []

    async def noting(run, *, checks=True):
        noted.append(run)
        return await read(run, checks=checks)

    blocks._fetcher._read = noting
    return noted


async def test_a_prefetch_that_waits_comes_before_what_is_fetched_ahead(store, job_of, monkeypatch):
    """Pages of its read are locked: a reader of one waits, and nobody is told of that."""
    monkeypatch.setattr("bootseer.image.serve.fetcher._AHEAD", 1)
    slow = SlowStore(store, 0.2)
    async with job_of(slow).open() as blocks, trio.open_nursery() as nursery:
        runs = note_runs(blocks)
        blocks.fetch_ahead([ByteRange(n * BLOCK, (n + 1) * BLOCK) for n in range(0, 100, 2)])
        for wanted in (90, 201):  # queued, and not asked for yet
            nursery.start_soon(partial(blocks.read, wanted * BLOCK, BLOCK, is_urgent=False))
        await blocks.settle()
        assert runs[0].start == 0 and {run.start for run in runs[1:3]} == {90, 201}


async def test_little_is_read_ahead_at_once(store, autojump_clock, monkeypatch):
    monkeypatch.setattr("bootseer.image.serve.fetcher._AHEAD_BYTES", 8 * BLOCK)
    noting = Noting(store, 1.0)
    async with (
        readable(noting, DIGEST, MANIFEST, NodeCache()) as blocks,
        trio.open_nursery() as nursery,
    ):
        await blocks.read(200 * BLOCK, BLOCK)  # the part is open
        noting.order.clear()
        for index in range(0, 40, 4):
            nursery.start_soon(partial(blocks.read, index * BLOCK, 3 * BLOCK, is_urgent=False))
        await trio.sleep(0.5)
        assert len(noting.order) == 3, "9 blocks"
        await trio.sleep(1)
        assert len(noting.order) == 6


async def test_a_store_that_comes_back(store, job_of):
    is_down = True
    flaky = FlakyStore(store, lambda count, operation, name: is_down)
    async with job_of(flaky).open() as blocks:
        with pytest.raises(Transient):
            await blocks.read(0, 100)
        assert len(flaky.calls) == 1, "who tries again is between this and the store"
        is_down = False
        assert await blocks.read(0, 100) == content(0, 100)
        is_down = True
        assert await blocks.read(0, 100) == content(0, 100)


async def test_what_one_job_could_not_fetch_is_fetched_by_others_at_once(store, job_of):
    one, other = job_of(FlakyStore(store, lambda *call: True)), job_of(store)
    async with one.open() as first, other.open() as second:
        with pytest.raises(Transient):
            await first.read(0, 9 * BLOCK)
        assert await second.read(0, 9 * BLOCK) == content(0, 9 * BLOCK)
    assert one.said == other.said == []


async def test_what_cannot_be_read_keeps_nothing_else_from_coming(store, job_of):
    """It is behind a gap: another job of the node has brought that meanwhile."""
    one, other = job_of(store), job_of(FlakyStore(store, first(1, "pread")))
    async with one.open() as before, other.open() as blocks:
        await before.read(4 * BLOCK, BLOCK)
        await before.settle()
        with pytest.raises(Transient):
            await blocks.read(0, 9 * BLOCK)
        await blocks.settle()
        assert blocks.stats.fetched_bytes == 4 * BLOCK
        assert other.cached.missing(range(9)) == [0, 1, 2, 3]


async def test_a_full_cache_fails_no_read(store, job_of):
    job = job_of(store, has_room=lambda size_bytes: False)
    async with job.open() as blocks:
        for _ in range(2):
            assert await blocks.read(0, 300 * BLOCK) == content(0, 300 * BLOCK)
    assert job.said == ["the block cache is full: further blocks are fetched when needed"]


async def test_a_keeper_that_is_gone_fails_no_read(store, job_of):
    job = job_of(store)
    async with keeper_link(job.entry) as link:
        node = NodeCache(job.cached, link, job.said.append)
        async with readable(store, DIGEST, MANIFEST, node) as blocks:
            assert await blocks.read(0, BLOCK) == content(0, BLOCK)
            link.close()
            for _ in range(2):
                assert await blocks.read(0, 9 * BLOCK) == content(0, 9 * BLOCK)
    assert len(job.said) == 1 and "gone" in job.said[0]


class Machine(RuleBasedStateMachine):
    """Two jobs of a node read one image as the kernel does; node, disk and store have bad days."""

    offsets = st.integers(0, len(CONTENT) + BLOCK)
    sizes = st.sampled_from([1, 100, BLOCK, 3 * BLOCK + 5, 40 * BLOCK, MIB])

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="bootseer-machine-")
        self.cache = cache_in(Path(self.folder.name))
        self.memory = MemoryStore()
        trio.run(store_image, self.memory, CONTENT, "test")
        self.is_down = self.is_full = False
        self.store = FlakyStore(self.memory, lambda count, operation, name: self.is_down)
        self.spoilt = set()
        pack = plan_pack(MANIFEST, DIGEST, HOT)
        trio.run(pack_store.write_pack, self.memory, pack, self.packed)
        self.jobs = [self.start(), self.start()]

    async def packed(self, blocks):
        return b"".join(content(index * BLOCK, BLOCK) for index in blocks)

    async def use_pack(self, blocks, closing):
        """Let a job use the hot pack, if it can be had."""
        with suppress(Transient, Corrupt):
            pack = await pack_store.open_pack(self.store, MANIFEST, DIGEST)
            if pack is not None:
                closing.push_async_callback(pack.close)
                blocks.use_pack(pack, lambda error: None)

    def start(self):
        return Job(self.cache, self.store, lambda size_bytes: not self.is_full)

    def teardown(self):
        for job in self.jobs:
            job.close()
        self.folder.cleanup()

    @rule(reads=st.lists(st.tuples(st.integers(0, 1), offsets, sizes, st.booleans()), max_size=6))
    def read(self, reads):
        async def read(kernel, handles, offset, size_bytes, is_urgent):
            wanted = MANIFEST.covering(offset, max(0, min(size_bytes, len(CONTENT) - offset)))
            flags = 0 if is_urgent else os.O_NOATIME
            try:
                data = await kernel.read(handles[flags], offset, size_bytes, flags)
            except OSError as error:
                assert error.errno == errno.EIO
                assert self.is_down or self.spoilt & set(wanted)
            else:
                assert data == content(offset, size_bytes)

        async def main():
            async with (
                self.jobs[0].open() as one,
                self.jobs[1].open() as other,
                AsyncExitStack() as closing,
            ):
                ways = []
                for job, blocks in zip(self.jobs, (one, other), strict=True):
                    await self.use_pack(blocks, closing)
                    view = ImageView(blocks, len(CONTENT), 0, 0, 0)
                    kernel = await closing.enter_async_context(raw_kernel(job.cached, view))
                    flags = (0, os.O_NOATIME)
                    handles = {flag: (await view.open(2, flag)).handle for flag in flags}
                    ways.append((kernel, handles))
                async with trio.open_nursery() as readers:
                    for number, *what in reads:
                        readers.start_soon(read, *ways[number], *what)

        trio.run(main)

    @rule(number=st.integers(0, 1))
    def restart(self, number):
        self.jobs[number].close()
        self.jobs[number] = self.start()

    @rule(
        name=st.sampled_from(["data", "map"]),
        where=st.floats(0, 1),
        what=st.sampled_from(["zero", "noise", "cut"]),
        size_bytes=st.sampled_from([1, 8, 100, BLOCK, 5 * BLOCK]),
    )
    def crash(self, name, where, what, size_bytes):
        """The node dies; of what was written last, something else arrived on the disk."""
        path = self.jobs[0].entry.path / name
        for job in self.jobs:
            job.close()
        at = int(where * path.stat().st_size)
        if what == "cut":
            os.truncate(path, at)
        else:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes(size_bytes) if what == "zero" else os.urandom(size_bytes))
        self.jobs = [self.start(), self.start()]

    @rule()
    def evict(self):
        key = self.jobs[0].entry.path.name
        assert not self.cache.remove(key)
        for job in self.jobs:
            job.close()
        assert self.cache.remove(key)
        self.jobs = [self.start(), self.start()]

    @rule(is_full=st.booleans())
    def fill(self, is_full):
        self.is_full = is_full

    @rule(is_down=st.booleans())
    def store_goes(self, is_down):
        self.is_down = is_down

    @rule(row=st.integers(0, 299))
    def spoil_the_pack(self, row):
        """Another block of the pack is damaged."""

        async def spoil():
            for folder in await self.memory.list(pack_store.pack_folder(MANIFEST.identity)):
                for part in await self.memory.list(folder.name) if folder.is_folder else ():
                    data = bytearray(await read_all(self.memory, part.name, 64 * MIB))
                    data[row * BLOCK] ^= 0x55
                    await publish(self.memory, part.name, bytes(data))

        trio.run(spoil)

    @rule(index=st.integers(0, MANIFEST.blocks - 1))
    def spoil_or_mend(self, index):
        """A block of the store is damaged, or good again."""
        self.spoilt ^= {index}
        part = index * BLOCK // MIB
        data = bytearray(CONTENT[part * MIB : (part + 1) * MIB])
        for spoilt in self.spoilt:
            if spoilt * BLOCK // MIB == part:
                data[spoilt * BLOCK - part * MIB] ^= 0x55
        trio.run(publish, self.memory, catalog.part_object(DIGEST, part), bytes(data))


def test_a_random_life():
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
    )

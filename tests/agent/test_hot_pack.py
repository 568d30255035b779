"""When a job writes its image's hot pack, and what it says of it."""

import random
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import trio
from bootseer_dev.material.stored_image import manifest_of, readable, store_image

from bootseer.agent.node.job import Job
from bootseer.agent.workers.images.hot_pack import JobPack, copies_for
from bootseer.config import Config
from bootseer.core import image_manifest
from bootseer.core.event import StageReport
from bootseer.errors import BootseerError
from bootseer.image.hot import pack_store
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.hot.pack import VERSION, plan_pack
from bootseer.image.hot.repository import hot_set_name
from bootseer.image.serve.node_cache import NodeCache
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.units import MIB

JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "", 1.0, 1)
BLOCK = 4096
CONTENT = random.Random(5).randbytes(8 * MIB)
MANIFEST = manifest_of(CONTENT)
DIGEST = image_manifest.image_digest(MANIFEST.encode())
IDENTITY = MANIFEST.identity
HOT = list(range(1, 1800, 2))
INDEX = pack_store.index_object(IDENTITY)


def hot_set(blocks=HOT):
    ranges = [HotRange(i * BLOCK, i * BLOCK + 1, n, 1_000_000) for n, i in enumerate(blocks)]
    return HotSet(IDENTITY, len(CONTENT), ("c.1",), tuple(ranges))


class Start:
    """A job's start on a node, as the worker that serves its image sees it."""

    def __init__(self, store):
        self.store = store
        self.told = []

    @asynccontextmanager
    async def stage(self, name):
        report = StageReport(0)
        try:
            yield report
        except BootseerError as error:
            report.fall_back(str(error))
            raise
        finally:
            self.told.append(report.event(name, 1))

    @asynccontextmanager
    async def packing(self, node_index=0, nodes=2):
        job = JOB._replace(node_index=node_index, nodes=nodes)
        task = SimpleNamespace(job=job, config=Config({}), stage=self.stage)
        async with (
            readable(self.store, DIGEST, MANIFEST, NodeCache()) as blocks,
            trio.open_nursery() as nursery,
        ):
            yield JobPack(task, self.store, blocks, DIGEST, self.store, self.store, nursery)

    async def write(self, touched=(), rate=50 * MIB, **place):
        """Come to the end of the start; returns the seconds that the work behind it took."""
        async with self.packing(**place) as packing:
            began = trio.current_time()
            await packing.write(touched, rate)
            return trio.current_time() - began


@pytest.fixture
async def store():
    store = MemoryStore()
    await store_image(store, CONTENT, "test")
    await publish(store, hot_set_name(IDENTITY), hot_set().encode())
    return store


async def packed(store):
    stored = await pack_store.read_index(store, IDENTITY)
    return stored.pack if stored else None


async def test_a_settled_hot_set_is_packed_once_at_its_rate(store, autojump_clock):
    first, second = Start(store), Start(store)
    took_s = await first.write(rate=MIB)
    wanted = plan_pack(MANIFEST, DIGEST, hot_set())
    assert await packed(store) == wanted
    (said,) = first.told
    assert (said.stage, said.status) == ("image.pack.write", "ok")
    assert said.bytes == wanted.size_bytes
    assert took_s >= wanted.size_bytes / MIB
    await second.write()
    assert second.told == []


async def test_of_many_tasks_of_a_job_array_few_write(store, autojump_clock, monkeypatch):
    monkeypatch.setattr("bootseer.agent.workers.images.hot_pack.random", random.Random(1))
    starts = [Start(store) for _ in range(20)]
    async with trio.open_nursery() as nursery:
        for start in starts:
            nursery.start_soon(partial(start.write, rate=MIB))
    assert await packed(store) == plan_pack(MANIFEST, DIGEST, hot_set())
    assert 1 <= sum(bool(start.told) for start in starts) <= 5


@pytest.mark.parametrize(
    "what",
    [
        {"touched": [(2 * i * BLOCK, 2 * i * BLOCK + 1) for i in range(100)]},
        {"rate": 0},
        {"node_index": 1},
        {"nodes": 0},
    ],
    ids=["not settled", "no rate", "another node", "nobody knows which node"],
)
async def test_no_pack_is_written_without_a_reason(store, autojump_clock, what):
    start = Start(store)
    await start.write(**what)
    assert await packed(store) is None and start.told == []


async def test_without_a_hot_set_there_is_no_pack(store, autojump_clock):
    await store.delete(hot_set_name(IDENTITY))
    await Start(store).write()
    assert await packed(store) is None


async def test_a_hot_set_that_has_changed_is_packed_anew(store, autojump_clock):
    await Start(store).write()
    await publish(store, hot_set_name(IDENTITY), hot_set(HOT[:500]).encode())
    await Start(store).write()
    assert await packed(store) == plan_pack(MANIFEST, DIGEST, hot_set(HOT[:500]))


async def test_a_damaged_index_is_replaced_and_that_of_another_version_left(store, autojump_clock):
    await Start(store).write()
    good = await read_all(store, INDEX, MIB)
    await publish(store, INDEX, good[:-1])
    await Start(store).write()
    assert await read_all(store, INDEX, MIB) == good
    newer = good[:8] + bytes([VERSION + 1]) + good[9:]
    await publish(store, INDEX, newer)
    await Start(store).write()
    assert await read_all(store, INDEX, MIB) == newer


async def test_a_pack_that_a_start_finds_damaged_is_written_anew(store, autojump_clock):
    await Start(store).write()
    (folder,) = [e.name for e in await store.list(pack_store.pack_folder(IDENTITY)) if e.is_folder]
    good = await read_all(store, f"{folder}/part-0000", 64 * MIB)
    await publish(store, f"{folder}/part-0000", bytes(len(good)))
    start = Start(store)
    async with start.packing() as packing:
        await packing.use()
        assert start.told == []
        with pytest.raises(BootseerError) as damaged:
            await packing._source.read(packing._source.pack.blocks[:3])
        packing._lose(damaged.value)
        await packing.write((), 50 * MIB)
        await packing.report()
        await packing._source.close()
    assert [(s.stage, s.status) for s in start.told] == [
        ("image.pack", "fallback"),
        ("image.pack.write", "ok"),
    ]
    assert await read_all(store, f"{folder}/part-0000", 64 * MIB) == good


@pytest.mark.parametrize(
    ("setting", "nodes", "copies"),
    [(0, 1, 0), (0, 31, 0), (0, 32, 4), (0, 64, 8), (0, 1000, 10), (2, 1000, 2), (20, 0, 20)],
)
def test_copies_follow_the_setting_or_the_nodes(setting, nodes, copies):
    assert copies_for(setting, nodes) == copies

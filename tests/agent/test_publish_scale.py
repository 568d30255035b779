"""What the epilogs of a job ask of the store: of a node always as much, of a job hardly more."""

from collections import Counter

import pytest
import trio
from bootseer_dev.actors.epilog import EpilogInStore, jobs, recording

from bootseer.image.hot.repository import read_hot_set
from bootseer.startup.plans import read_plan
from bootseer.startup.run_events import read_run
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore

CONFIG = {"image.traces_per_run": 4}
RANGES = 200
NODES = (1, 8, 64, 512)
EVENTS = {"create": 1, "write": 1, "commit": 1}
"""What a node does that has no other duty."""


class Cluster:
    """The user's store, and the calls of each node."""

    def __init__(self):
        self.store = MemoryStore()
        self.number = 0

    async def start(self, nodes, *, is_warm=False, at_once=True, dead=()):
        """Have all nodes of a job publish; returns what each has asked of the store."""
        self.number += 1
        epilogs = [
            EpilogInStore(
                job,
                recording(job.node_index, is_warm=is_warm, ranges=RANGES),
                CONFIG,
                FlakyStore(self.store, lambda *_: False),
            )
            for job in jobs("alice", self.number, nodes)
            if job.node_index not in dead
        ]
        if at_once:
            async with trio.open_nursery() as nursery:
                for epilog in epilogs:
                    nursery.start_soon(epilog.run)
        else:
            for epilog in epilogs:
                await epilog.run()
        assert all(epilog.published.ok for epilog in epilogs)
        self.epilogs = epilogs
        return [Counter(call[0] for call in epilog.store().calls) for epilog in epilogs]

    async def plan(self):
        return await read_plan(self.store, "alice", "train")

    async def hot_bytes(self):
        plan = await self.plan()
        assert plan.images[0].hot_bytes
        return (await read_hot_set(self.store, plan.images[0].digest)).hot_bytes


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("is_warm", [True, False])
async def test_most_nodes_of_a_job_write_their_events_and_ask_nothing(at_once, is_warm):
    shared = {}
    for nodes in NODES:
        cluster = Cluster()
        await cluster.start(nodes)
        asked = await cluster.start(nodes, is_warm=is_warm, at_once=at_once)
        others = [calls for calls in asked if calls != EVENTS]
        shared[nodes] = sum(sum(calls.values()) for calls in others)
        assert len(others) <= 4 * (1 + 3)
        assert len(await read_run(cluster.store, cluster.epilogs[0].job.run)) == nodes
    # Spares that wait by the clock may look more often on a busy machine; nothing grows eightfold.
    assert shared[512] <= 2 * max(shared[8], shared[64]), shared


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_nodes_have_read_is_in_plan_and_hot_set(at_once):
    cluster = Cluster()
    await cluster.start(64, at_once=at_once)
    assert await cluster.hot_bytes() > 0.9 * RANGES * (1 << 18)
    assert [run.kind for run in (await cluster.plan()).runs] == ["cold"]


async def test_a_warm_start_that_has_missed_next_to_nothing_changes_no_hot_set():
    cluster = Cluster()
    await cluster.start(8)
    before = await cluster.hot_bytes()
    asked = await cluster.start(8, is_warm=True)
    assert await cluster.hot_bytes() == before
    assert [run.kind for run in (await cluster.plan()).runs] == ["cold", "warm"]
    assert sum(calls["create"] for calls in asked) <= 8 + 4  # events, and the plan


@pytest.mark.parametrize("dead", [{0}, {0, 16}, set(range(48)), set(range(1, 64))], ids=str)
async def test_nodes_that_are_dead_are_done_without(dead):
    cluster = Cluster()
    await cluster.start(64, dead=dead)
    assert await cluster.hot_bytes() > 0
    assert len((await cluster.plan()).runs) == 1

"""What the epilogs of a job ask of the store: of a node always as much, of a job hardly more.

Nodes wait by trio's clock, which stands still while anything else is to do: nothing here depends on
how busy the machine is.
"""

import random
from collections import Counter

import pytest
import trio
from bootseer_dev.actors.epilog import EpilogInStore, jobs, recording

from bootseer.image.hot.repository import read_hot_set
from bootseer.startup.plans import read_plan
from bootseer.startup.run_events import read_run
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore

CONFIG = {"image.traces_per_run": 4}
RANGES = 200
NODES = (1, 8, 64, 512)
EVENTS = {"create": 1, "write": 1, "commit": 1}
"""What a node does that has no other duty."""


RECORDING = (0, 16, 32, 48)
"""Of 64 nodes."""


class BusyStore(WrappedStore):
    """A store where each operation of a node takes about as long as it is told."""

    def __init__(self, inner, latency_s):
        super().__init__(inner)
        self.latency_s = latency_s

    async def around(self, operation, name, call):
        await trio.sleep(self.latency_s * random.uniform(0.5, 1.5))
        return await call()


class Cluster:
    """The user's store, and the calls of each node."""

    def __init__(self):
        self.store = MemoryStore()
        self.number = 0

    async def start(
        self,
        nodes,
        *,
        is_warm=False,
        at_once=True,
        dead=(),
        latency_s=lambda node: 0.0,
        config=CONFIG,
    ):
        """Have all nodes of a job publish; returns what each has asked of the store."""
        self.number += 1
        epilogs = [
            EpilogInStore(
                job,
                recording(job.node_index, is_warm=is_warm, ranges=RANGES),
                config,
                FlakyStore(BusyStore(self.store, latency_s(job.node_index)), lambda *_: False),
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

    async def traces(self):
        """Return the indexes of the nodes that have published traces."""
        (folder,) = await self.store.list("traces") or [None]
        names = [info.name for info in await self.store.list(folder.name)] if folder else []
        return sorted(int(name.partition("-node")[2].removesuffix(".trace")) for name in names)

    async def plan(self):
        return await read_plan(self.store, "alice", "train")

    async def hot_bytes(self):
        plan = await self.plan()
        assert plan.images[0].hot_bytes
        return (await read_hot_set(self.store, plan.images[0].digest)).hot_bytes


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("is_warm", [True, False])
async def test_most_nodes_of_a_job_only_write_their_events(at_once, is_warm, autojump_clock):
    shared = {}
    for nodes in NODES * 3:
        cluster = Cluster()
        await cluster.start(nodes)
        asked = await cluster.start(nodes, is_warm=is_warm, at_once=at_once)
        others = [calls for calls in asked if calls != EVENTS]
        calls_of_others = sum(sum(calls.values()) for calls in others)
        # The fewest: those that write the plan meet each other more or less often, by chance.
        shared[nodes] = min(shared.get(nodes, calls_of_others), calls_of_others)
        assert len(others) <= 4 * (1 + 3)
        assert len(await read_run(cluster.store, cluster.epilogs[0].job.run)) == nodes
    assert shared[512] <= 1.1 * shared[64], shared


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_nodes_have_read_is_in_plan_and_hot_set(at_once, autojump_clock):
    cluster = Cluster()
    await cluster.start(64, at_once=at_once)
    assert await cluster.hot_bytes() > 0.9 * RANGES * (1 << 18)
    assert [run.kind for run in (await cluster.plan()).runs] == ["cold"]


async def test_a_warm_start_that_has_missed_next_to_nothing_changes_no_hot_set(autojump_clock):
    cluster = Cluster()
    await cluster.start(8)
    before = await cluster.hot_bytes()
    asked = await cluster.start(8, is_warm=True)
    assert await cluster.hot_bytes() == before
    assert [run.kind for run in (await cluster.plan()).runs] == ["cold", "warm"]
    assert sum(calls["create"] for calls in asked) <= 8 + 4  # events, and the plan


@pytest.mark.parametrize("dead", [{0}, {0, 16}, set(range(48)), set(range(1, 64))], ids=str)
async def test_nodes_that_are_dead_are_done_without(dead, autojump_clock):
    cluster = Cluster()
    await cluster.start(64, dead=dead)
    assert await cluster.hot_bytes() > 0
    assert len((await cluster.plan()).runs) == 1


@pytest.mark.parametrize("latency_s", [0.01, 0.1, 0.5, 1.0])
async def test_spare_nodes_wait_for_recording_nodes_as_slow_as_they_are(latency_s, autojump_clock):
    cluster = Cluster()
    asked = await cluster.start(64, latency_s=lambda _: latency_s)
    assert await cluster.traces() == list(RECORDING)
    assert await cluster.hot_bytes() > 0
    looks = [
        calls["list"]
        for epilog, calls in zip(cluster.epilogs, asked, strict=True)
        if epilog.job.node_index not in RECORDING
    ]
    assert sum(looks) <= 12 * 2


@pytest.mark.parametrize("slow", [RECORDING, RECORDING[:3]], ids=["all", "all but one"])
async def test_few_stand_in_for_recording_nodes_that_are_much_slower(slow, autojump_clock):
    """All of them do so in vain, as the recording nodes are not dead."""
    cluster = Cluster()
    await cluster.start(64, latency_s=lambda node: 1.3 if node in slow else 0.01)
    stood_in = set(await cluster.traces()) - set(RECORDING)
    assert len(stood_in) == (1 if slow == RECORDING else 0)


async def test_one_node_stands_in_for_recording_nodes_that_are_dead(autojump_clock):
    cluster = Cluster()
    await cluster.start(64, dead=RECORDING, latency_s=lambda _: 0.05)
    assert len(await cluster.traces()) == 1
    assert await cluster.hot_bytes() > 0


async def test_a_spare_node_that_is_late_publishes_its_events_alone(autojump_clock):
    cluster = Cluster()
    short = CONFIG | {"epilog.deadline_s": 5.0}
    asked = await cluster.start(64, dead=RECORDING, latency_s=lambda _: 1.0, config=short)
    assert all(calls == EVENTS for calls in asked)

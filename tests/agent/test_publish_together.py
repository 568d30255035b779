"""What workers write to the user's store when nodes and jobs end at once."""

from collections import Counter
from dataclasses import asdict

import pytest
import trio
import trio.testing

from bootseer.agent.node.job import Job
from bootseer.agent.workers import publish
from bootseer.agent.workers.base import Task
from bootseer.core.plan import PlannedImage, PlannedRun
from bootseer.core.speed import UNKNOWN
from bootseer.core.trace import COMPLETE
from bootseer.startup.plans import add_run, read_plan
from bootseer.store.memory import MemoryStore
from bootseer.store.wrap import WrappedStore
from bootseer.units import MIB

DIGEST = "sqfs1-test"
JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "", 1.0, 1)
CONFIG = {"image.traces_per_run": 4, "image.runs_kept": 5}
RUN = {"run": "c.7", "job": 7, "key": "k", "node": "n1", "kind": "cold", "started_ns": 1}


class Agent:
    """The other end of the worker's channel."""

    def __init__(self):
        self.asked = trio.Event()

    async def send(self, message):
        self.said = message

    async def receive(self):
        self.asked.set()
        await trio.testing.wait_all_tasks_blocked()
        return {"runs": [RUN | {"events": []}]}, None


class Publishing(Task):
    def __init__(self, images, job=JOB, memory=None):
        message = {"job": job._asdict(), "config": CONFIG, "images": images, "kind": "cold"}
        super().__init__(Agent(), message)
        self.memory = memory or MemoryStore()

    def store(self):
        return self.memory


def recorded(path, touches):
    return {
        "path": path,
        "digest": DIGEST,
        "size_bytes": 1 << 30,
        "kind": COMPLETE,
        "touches": [[start * MIB, stop * MIB, ms] for start, stop, ms in touches],
        "holdout": [],
        "speeds": {"store": asdict(UNKNOWN), "file": asdict(UNKNOWN)},
    }


class Counting(WrappedStore):
    """Counts what is written, by the folder, and how often one looked for old runs."""

    def __init__(self, store):
        super().__init__(store)
        self.written = Counter()
        self.looked = 0

    async def around(self, operation, name, call):
        await trio.lowlevel.checkpoint()
        self.looked += (operation, name) == ("list", "runs")
        if operation == "commit":
            self.written[name.partition("/")[0]] += 1
        return await call()


async def end_together(nodes, has_used, touches):
    """End a job of so many nodes; returns what they have written and the store."""
    store = Counting(MemoryStore())
    async with trio.open_nursery() as nursery:
        for index in range(nodes):
            job = JOB._replace(node=f"n{index}", nodes=nodes, node_index=index)
            images = [recorded("/i.sqsh", touches if has_used(index) else [])]
            nursery.start_soon(publish.run, Publishing(images, job, store))
    return store.written, store


@pytest.mark.parametrize("nodes", [32, 128])
async def test_of_nodes_that_end_together_few_publish_and_merge(nodes):
    written, store = await end_together(nodes, lambda _: True, [(0, 2, 5)])
    assert 4 <= written["traces"] <= 16
    assert written["hot"] <= 10 * 16
    assert store.looked == 1
    assert (await read_plan(store, "u", "k")).images[0].hot_bytes == 2 * MIB


async def test_where_those_have_not_used_an_image_another_node_records_it():
    written, store = await end_together(8, lambda index: index == 5, [(0, 2, 5)])
    assert written["traces"] == 1
    assert (await read_plan(store, "u", "k")).images[0].hot_bytes == 2 * MIB


class SlowCommit(WrappedStore):
    """Of a node that commits once another has come so far."""

    def __init__(self, store, until):
        super().__init__(store)
        self.until = until

    async def around(self, operation, name, call):
        if operation == "commit":
            await self.until.wait()
        return await call()


async def test_a_job_that_ends_at_once_with_an_older_one_is_not_lost():
    task = Publishing([recorded("/new.sqsh", [(0, 2, 5)])])
    older = PlannedRun("c.6", 6, "cold", 0)
    images = (PlannedImage("/old.sqsh", "sqfs1-old", 1000, 100),)
    async with trio.open_nursery() as nursery:
        store = SlowCommit(task.memory, task.channel.asked)
        nursery.start_soon(add_run, store, "u", "k", older, images)
        await trio.testing.wait_all_tasks_blocked()
        await publish.run(task)
    plan = await read_plan(task.memory, "u", "k")
    assert [run.job for run in plan.runs] == [6, 7]
    assert plan.images[0].path == "/new.sqsh"

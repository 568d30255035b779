"""What the worker writes to the user's store when a start has been recorded."""

from dataclasses import asdict

import pytest

from bootseer.agent.node.job import Job
from bootseer.agent.workers import publish
from bootseer.agent.workers.base import Task
from bootseer.core.ranges import ByteRange
from bootseer.core.speed import UNKNOWN
from bootseer.core.trace import COMPLETE, MISSED, PARTIAL
from bootseer.image.traces import read_hot_set
from bootseer.startup.plans import read_plan
from bootseer.store.memory import MemoryStore
from bootseer.units import MIB

DIGEST = "sqfs1-test"
JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "", 1.0, 1)
CONFIG = {"image.traces_per_run": 4, "image.runs_kept": 5}


class Agent:
    """The other end of the worker's channel."""

    async def send(self, message):
        self.said = message

    async def receive(self):
        return {"runs": []}, None


class Publishing(Task):
    def __init__(self, images):
        job = JOB._asdict()
        super().__init__(Agent(), {"job": job, "config": CONFIG, "images": images, "kind": "cold"})
        self.memory = MemoryStore()

    def store(self):
        return self.memory


def recorded(path, touches, kind=COMPLETE):
    return {
        "path": path,
        "digest": DIGEST,
        "size_bytes": 1 << 30,
        "kind": kind,
        "touches": [[start * MIB, stop * MIB, ms] for start, stop, ms in touches],
        "holdout": [],
        "speeds": {"store": asdict(UNKNOWN), "file": asdict(UNKNOWN)},
    }


@pytest.mark.parametrize("kind", [COMPLETE, PARTIAL, MISSED])
async def test_an_image_that_is_mounted_twice_has_one_trace_of_both(kind):
    """A job may name it by its name and by its digest."""
    images = [
        recorded("bootseer://a", [(0, 2, 5), (8, 9, 6)], kind),
        recorded("bootseer://b", [(1, 3, 0)]),
    ]
    task = Publishing(images)
    await publish.run(task)
    assert task.channel.said["ok"], task.channel.said
    hot_set = await read_hot_set(task.memory, DIGEST)
    hot = sorted(r.range for r in hot_set.ranges)
    assert hot == [ByteRange(0, 3 * MIB), ByteRange(8 * MIB, 9 * MIB)]
    plan = await read_plan(task.memory, "u", "k")
    found = [(i.path, i.hot_bytes, i.touched_bytes // MIB) for i in plan.images]
    first = 3 if kind == COMPLETE else 0
    assert found == [("bootseer://a", 4 * MIB, first), ("bootseer://b", 4 * MIB, 2)]

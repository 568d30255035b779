"""What the worker writes to the user's store when a start has been recorded."""

from collections import Counter

import pytest
import trio
import trio.testing

from bootseer.agent.messages.worker import (
    EventsWanted,
    Published,
    PublishEvents,
    PublishRecording,
    RecordedImage,
    StartTask,
    StoreAway,
)
from bootseer.agent.node.job import Job
from bootseer.agent.workers import publish
from bootseer.agent.workers.base import Task
from bootseer.core.ranges import ByteRange
from bootseer.core.speed import UNKNOWN
from bootseer.core.warm_plan import PlannedImage, PlannedRun
from bootseer.errors import Denied, Transient
from bootseer.image.hot.repository import read_hot_set
from bootseer.image.hot.trace import COMPLETE, MISSED, PARTIAL, Touch
from bootseer.startup.plans import add_run, read_plan
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.units import MIB

DIGEST = "sqfs1-test"
JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "", 1.0, 1)
CONFIG = {"image.traces_per_run": 4, "image.runs_kept": 5}


def run(number, **more):
    """Encode a run as agents do."""
    started = {"key": "k", "node": "n1", "kind": "cold", "started_ns": 1}
    event = {"stage": "x", "start_ns": 1, "end_ns": 2, "source": "agent", "status": "ok"}
    events = [event | {"bytes": 0, "rank": -1, "detail": ""}]
    return {"run": f"c.{number}", "job": number, **started, "events": events, **more}


class Agent:
    """The other end of the worker's channel."""

    def __init__(self, images, waiting):
        self.recording = PublishRecording("cold", list(images), [], [])
        self.events = PublishEvents(run(7), list(waiting))
        self.asked = trio.Event()
        self.said = None
        self.heard = []

    async def send(self, message):
        self.said = message
        self.heard.append(message)

    async def receive_only(self):
        if not isinstance(self.said, EventsWanted):
            return self.recording
        self.asked.set()
        await trio.testing.wait_all_tasks_blocked()
        return self.events


class Publishing(Task):
    def __init__(self, images, waiting=(), store=None, job=JOB):
        super().__init__(Agent(images, waiting), StartTask(job, CONFIG))
        self.memory = store or MemoryStore()

    def store(self):
        return self.memory


def recorded(path, touches, kind=COMPLETE):
    touches = [Touch(start * MIB, stop * MIB, ms) for start, stop, ms in touches]
    about = (path, DIGEST, 1 << 30, kind, touches, [])
    return RecordedImage(*about, store=UNKNOWN, file=UNKNOWN)


@pytest.mark.parametrize("kind", [COMPLETE, PARTIAL, MISSED])
async def test_an_image_that_is_mounted_twice_has_one_trace_of_both(kind):
    """A job may name it by its name and by its digest."""
    images = [
        recorded("bootseer://a", [(0, 2, 5), (8, 9, 6)], kind),
        recorded("bootseer://b", [(1, 3, 0)]),
    ]
    task = Publishing(images)
    await publish.run(task)
    assert task.channel.said.ok, task.channel.said
    told = [message for message in task.channel.heard if isinstance(message, Published)]
    assert [message.is_last for message in told] == [False, True]  # there may be no time to merge
    assert told[0].detail.startswith(f"{told[1].detail};")  # "published to" the store, both
    hot_set = await read_hot_set(task.memory, DIGEST)
    hot = sorted(r.range for r in hot_set.ranges)
    assert hot == [ByteRange(0, 3 * MIB), ByteRange(8 * MIB, 9 * MIB)]
    plan = await read_plan(task.memory, "u", "k")
    found = [(i.path, i.hot_bytes, i.touched_bytes // MIB) for i in plan.images]
    first = 3 if kind == COMPLETE else 0
    assert found == [("bootseer://a", 4 * MIB, first), ("bootseer://b", 4 * MIB, 2)]


async def published(task):
    return sorted(info.name for info in await task.memory.list("runs"))


async def test_waiting_runs_are_published_independently():
    """One that cannot be read costs no others; a newer version's has more than is known here."""
    waiting = [run(1, new=1), run(2, events=[{}]), {}, run(3, job="3"), run(4)]
    task = Publishing([], waiting)
    await publish.run(task)
    assert task.channel.said.ok and task.channel.said.left == []
    assert task.channel.said.detail.count("dropped an unpublished earlier run") == 3
    assert await published(task) == ["runs/c.1", "runs/c.4", "runs/c.7"]


class Refusing(MemoryStore):
    """A store that takes some of the objects only."""

    def create(self, name, **more):
        if "c.2/" in name:
            raise Denied(f"not {name}")
        return super().create(name, **more)


async def test_unpublished_runs_keep_waiting():
    task = Publishing([], [run(1), run(2), run(3)], Refusing())
    await publish.run(task)
    assert task.channel.said.ok and task.channel.said.left == [1]
    assert await published(task) == ["runs/c.1", "runs/c.3", "runs/c.7"]


class Away(WrappedStore):
    """A store that refuses, or answers nothing; counts what it is asked."""

    def __init__(self, hangs):
        super().__init__(MemoryStore())
        self.hangs = hangs
        self.asked = 0

    async def around(self, operation, name, call):
        self.asked += 1
        await trio.sleep(10 * publish.FIRST_ANSWER_S if self.hangs else 0)
        raise Transient("connection refused")


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_dead_store_is_asked_once_and_the_agent_is_told(hangs, autojump_clock):
    store = Away(hangs)
    task = Publishing([recorded("/i.sqsh", [(0, 2, 5)])], [run(1)], store)
    began = trio.current_time()
    await publish.run(task)
    assert store.asked == 1
    assert trio.current_time() - began <= publish.FIRST_ANSWER_S
    (away,) = [message for message in task.channel.heard if isinstance(message, StoreAway)]
    assert away.why == ("no answer within 2 s" if hangs else "connection refused")
    assert not task.channel.said.ok and "does not answer" in task.channel.said.detail


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
            nursery.start_soon(publish.run, Publishing(images, store=store, job=job))
    return store.written, store


@pytest.mark.parametrize("nodes", [32, 128])
async def test_of_nodes_that_end_together_few_publish_and_merge(nodes, autojump_clock):
    written, store = await end_together(nodes, lambda _: True, [(0, 2, 5)])
    assert written["traces"] == 4
    assert written["hot"] <= 10 * 2
    assert store.looked == 1
    assert (await read_plan(store, "u", "k")).images[0].hot_bytes == 2 * MIB


async def test_where_those_have_not_used_an_image_another_node_records_it(autojump_clock):
    written, store = await end_together(8, lambda index: index == 5, [(0, 2, 5)])
    assert written["traces"] == 1
    assert (await read_plan(store, "u", "k")).images[0].hot_bytes == 2 * MIB


SPARE = JOB._replace(nodes=64, node_index=4)


async def test_a_spare_node_that_is_ended_while_it_waits_has_published_its_events(autojump_clock):
    task = Publishing([recorded("/i.sqsh", [(0, 2, 5)])], [run(1)], job=SPARE)
    with trio.move_on_after(0.1):
        await publish.run(task)
    assert task.channel.said.ok and not task.channel.said.is_last
    assert task.channel.said.left == [0]
    assert await published(task) == ["runs/c.7"]


class Hidden(MemoryStore):
    """A store that does not list traces."""

    async def list(self, folder=""):
        if folder.startswith("traces"):
            raise Denied(f"not {folder}")
        return await super().list(folder)


async def test_a_spare_node_that_cannot_look_publishes_its_events_alone(autojump_clock):
    task = Publishing([recorded("/i.sqsh", [(0, 2, 5)])], [run(1)], Hidden(), SPARE)
    await publish.run(task)
    assert task.channel.said.ok and task.channel.said.is_last
    assert await published(task) == ["runs/c.1", "runs/c.7"]
    assert not await MemoryStore.list(task.memory, "traces")


async def test_nodes_that_do_not_know_their_place_publish_until_there_are_enough():
    store = MemoryStore()
    for number in range(6):
        job = JOB._replace(node=f"n{number}")
        await publish.run(Publishing([recorded("/i.sqsh", [(0, 2, 5)])], store=store, job=job))
    assert len(await store.list(f"traces/{DIGEST}")) == 4
    holdout = recorded("/i.sqsh", [])._replace(holdout=[ByteRange(0, MIB)])
    await publish.run(Publishing([holdout], store=store, job=JOB._replace(node="n9")))
    assert len(await store.list(f"traces/{DIGEST}")) == 5, "a start has no other holdout"


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

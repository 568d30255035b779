"""Warm plans in a store, written by many nodes at once."""

import json
from dataclasses import replace

import pytest
import trio

from bootseer.core.warm_plan import (
    MAX_IMAGES,
    MAX_NAMES,
    SAME_START_NS,
    PlannedImage,
    PlannedName,
    PlannedRun,
    WarmPlan,
    object_name,
)
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.startup.plans import add_run, read_plan
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore

IMAGES = (PlannedImage("/i.sqsh", "sqfs1-x", 1000, 100),)


def run(job, started_ns=None, kind="cold"):
    return PlannedRun(f"c.{job}", job, kind, job if started_ns is None else started_ns)


class Counting(WrappedStore):
    """Counts what is written."""

    written = 0

    async def around(self, operation, name, call):
        self.written += operation == "commit"
        await trio.lowlevel.checkpoint()
        return await call()


MANY = [PlannedImage(f"/{n}.sqsh", f"sqfs1-{n}", 1000, 100) for n in range(MAX_IMAGES + 1)]


@pytest.mark.parametrize("images", [IMAGES, MANY], ids=["one", "more than a plan holds"])
@pytest.mark.parametrize("newest", [7, 8])
async def test_nodes_that_differ_a_little_do_not_write_against_each_other(images, newest):
    store = Counting(MemoryStore())
    await add_run(store, "alice", "k", run(newest, 10_000), IMAGES)
    store.written = 0

    async def node(number):
        mine = (replace(images[0], hot_bytes=100 + number), *images[1:])
        await add_run(store, "alice", "k", run(7, 1000 + number), mine)

    async with trio.open_nursery() as nursery:
        for number in range(32):
            nursery.start_soon(node, number)
    assert store.written <= 32
    plan = await read_plan(store, "alice", "k")
    assert {r.job for r in plan.runs} == {7, newest}


async def test_what_only_some_nodes_of_a_run_have_used_is_added():
    """As the parts of a job, of which each has an image of its own."""
    store = Counting(MemoryStore())
    first, other, env = MANY[:3]
    await add_run(store, "alice", "k", run(6, 6), (first,))

    async def node(number):
        images = [(replace(first, hot_bytes=0), env), (other, env), (first,)][number % 3]
        await add_run(store, "alice", "k", run(7, 1000 + number), images)

    async with trio.open_nursery() as nursery:
        for number in range(33):
            nursery.start_soon(node, number)
    assert store.written <= 3 * 33, "one for each image that was missing"
    plan = await read_plan(store, "alice", "k")
    assert set(plan.images) == {first, other, env}
    assert plan.images[0] != env, "the one that is warmed"


async def test_of_a_requeued_job_the_last_start_is_told():
    store = MemoryStore()
    other = (PlannedImage("/j.sqsh", "sqfs1-y", 1, 0),)
    hour_ns = 60 * SAME_START_NS
    await add_run(store, "alice", "k", run(7, 0), IMAGES)
    await add_run(store, "alice", "k", run(7, hour_ns, kind="warm"), other)
    told = await read_plan(store, "alice", "k")
    assert (told.runs, told.images) == ((run(7, hour_ns, kind="warm"),), other)
    # A node of the first start that ends late.
    assert await add_run(store, "alice", "k", run(7, 1), IMAGES) == told


async def test_jobs_at_once_lose_no_run():
    store = MemoryStore()

    async def job(number):
        await add_run(store, "alice", "k", run(number), IMAGES)

    async with trio.open_nursery() as nursery:
        for number in range(1, 6):
            nursery.start_soon(job, number)
    assert {r.job for r in (await read_plan(store, "alice", "k")).runs} == set(range(1, 6))


async def test_another_image_of_the_same_key_takes_the_place():
    store = MemoryStore()
    await add_run(store, "alice", "k", run(1), IMAGES)
    other = (PlannedImage("/j.sqsh", "sqfs1-y", 1, 0),)
    await add_run(store, "alice", "k", run(2), other)
    assert (await read_plan(store, "alice", "k")).images == other
    await add_run(store, "alice", "k", run(3), ())
    assert (await read_plan(store, "alice", "k")).images == other


async def test_a_damaged_plan_is_replaced_and_one_of_another_version_stays():
    store = MemoryStore()
    name = object_name("k")
    await publish(store, name, b"{")
    with pytest.raises(Corrupt):
        await read_plan(store, "alice", "k")
    await add_run(store, "alice", "k", run(1), IMAGES)
    assert (await read_plan(store, "alice", "k")).images == IMAGES
    newer = json.dumps({**json.loads(WarmPlan("alice", "k").encode()), "version": 2}).encode()
    await publish(store, name, newer)
    with pytest.raises(UnknownVersion):
        await add_run(store, "alice", "k", run(2), IMAGES)
    assert await read_all(store, name, 1 << 20) == newer


NAME = "bootseer://train:v1"


async def test_a_plan_tells_when_a_name_leads_to_another_image():
    store = MemoryStore()
    first, second = (PlannedName(NAME, digit * 64) for digit in "ab")
    other = PlannedName("docker://ubuntu", "c" * 64)
    plan = await add_run(store, "alice", "k", run(1), IMAGES, (first,))
    assert plan.retagged(NAME, first.digest) == ""
    assert plan.retagged(other.path, other.digest) == "", "nothing is known of it"
    assert plan.retagged(NAME, second.digest) == first.digest
    # A run that was refused the image, and used another one, has not forgotten it.
    await add_run(store, "alice", "k", run(2), IMAGES, (other,))
    plan = await read_plan(store, "alice", "k")
    assert plan.retagged(NAME, second.digest) == first.digest
    await add_run(store, "alice", "k", run(3), IMAGES, (second,))
    # One that began earlier, and ends later.
    await add_run(store, "alice", "k", run(4, started_ns=2), IMAGES, (first,))
    plan = await read_plan(store, "alice", "k")
    assert plan.names == (other, second)
    assert plan.retagged(NAME, second.digest) == ""


def test_names_are_bounded_and_the_newest_stay():
    plan = WarmPlan("alice", "k")
    for number in range(1, MAX_NAMES + 3):
        plan = plan.with_run(run(number), (), (PlannedName(f"docker://{number}", "a" * 64),))
    assert len(plan.names) == MAX_NAMES
    assert plan.names[-1].path == f"docker://{MAX_NAMES + 2}"


@pytest.mark.parametrize(("user", "key"), [("mallory", "k"), ("alice", "other")])
async def test_a_plan_of_another_user_or_key_is_refused(user, key):
    store = MemoryStore()
    await publish(store, object_name("k"), WarmPlan(user, key, IMAGES).encode())
    with pytest.raises(Corrupt, match="not k's"):
        await read_plan(store, "alice", "k")
    await add_run(store, "alice", "k", run(1), IMAGES)
    assert (await read_plan(store, "alice", "k")).images == IMAGES

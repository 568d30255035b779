"""The worker that serves an image, and what it owes to the agent."""

import random
import socket

import pytest
import trio
import trio.testing
from bootseer_dev.material.stored_image import store_image

from bootseer.agent.messages.worker import (
    BlocksRefused,
    BorrowBlocks,
    ImageServed,
    StageEnded,
    StartTask,
    supervisor_end,
    worker_end,
)
from bootseer.agent.node.job import Job
from bootseer.agent.workers import serve_image
from bootseer.agent.workers.base import Task
from bootseer.agent.workers.job_peers import JobPeers
from bootseer.image.serve.view import ImageView
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore

JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "bootseer://x", 1.0, 1)


async def answer_until(agent, dies_at):
    """Answer a worker as an agent without a block cache, until it comes to something."""
    while True:
        message = await agent.receive_only()
        if isinstance(message, dies_at):
            return
        if isinstance(message, BorrowBlocks):
            await agent.send(BlocksRefused(wants_manifest=False))


async def serve_until(monkeypatch, store, dies_at):
    """Serve an image in a store until the agent dies; returns what is served then."""
    served, unmounted = [], trio.Event()

    async def serve_fd(view, connection, cached=None, *, task_status):
        served.append(view)
        task_status.started()
        await unmounted.wait()

    monkeypatch.setattr(serve_image, "connect_images", lambda *_, **__: store)
    monkeypatch.setattr(serve_image, "serve_fd", serve_fd)
    monkeypatch.setattr(Task, "store", lambda self: store)
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    agent, worker = supervisor_end(ends[0]), worker_end(ends[1])
    task = Task(worker, StartTask(JOB, {}), connection=0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_image.run, task)
        with trio.fail_after(10):
            await answer_until(agent, dies_at)
        agent.close()
        await trio.testing.wait_all_tasks_blocked(0.1)
        unmounted.set()
    worker.close()
    return [type(view) for view in served]


@pytest.mark.parametrize("dies_at", [BorrowBlocks, StageEnded, ImageServed])
async def test_a_job_has_its_image_though_the_agent_dies_meanwhile(monkeypatch, dies_at):
    store = MemoryStore()
    await store_image(store, random.Random(1).randbytes(100_000), "x")
    assert await serve_until(monkeypatch, store, dies_at) == [ImageView]


class Opened(WrappedStore):
    """Notes what is opened."""

    def __init__(self, inner):
        super().__init__(inner)
        self.names = set()

    async def around(self, operation, name, call):
        if operation == "open":
            self.names.add(name)
        return await call()


async def test_what_may_be_replaced_is_read_as_a_start_reads_it(monkeypatch):
    store = Opened(MemoryStore())
    starts = Opened(store)
    digest = await store_image(store, random.Random(1).randbytes(100_000), "x")
    monkeypatch.setattr(JobPeers, "start_reads", lambda self, store: starts)
    assert await serve_until(monkeypatch, store, ImageServed) == [ImageView]
    image = f"images/{digest}"
    assert store.names - starts.names == {f"{image}/manifest", f"{image}/part-0000"}
    kinds = {name.partition("/")[0] for name in starts.names}
    assert {"image-names", "hot", "packs", "plans", "images"} == kinds
    assert {f"{image}/token", f"{image}/about.json"} == {
        name for name in starts.names if name.startswith("images/")
    }

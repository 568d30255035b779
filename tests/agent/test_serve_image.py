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
from bootseer.image.serve.view import ImageView
from bootseer.store.memory import MemoryStore

JOB = Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "bootseer://x", 1.0, 1)


async def answer_until(agent, dies_at):
    """Answer a worker as an agent without a block cache, until it comes to something."""
    while True:
        message = await agent.receive_only()
        if isinstance(message, dies_at):
            return
        if isinstance(message, BorrowBlocks):
            await agent.send(BlocksRefused(wants_manifest=False))


@pytest.mark.parametrize("dies_at", [BorrowBlocks, StageEnded, ImageServed])
async def test_a_job_has_its_image_though_the_agent_dies_meanwhile(monkeypatch, dies_at):
    store, served, unmounted = MemoryStore(), [], trio.Event()
    await store_image(store, random.Random(1).randbytes(100_000), "x")

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
    assert [type(view) for view in served] == [ImageView]

"""A worker: a process of the agent's with the rights of the job's user and nothing more.

The agent starts one for each task and talks to it over a channel. A worker lives until its task is
done or the channel closes, whichever comes first; then all that it held is gone with it.
"""

from __future__ import annotations

import importlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import trio

from bootseer.agent.messages.worker import StageEnded, StartTask, WorkerEnd, worker_end
from bootseer.agent.node import log
from bootseer.agent.node.job import Job
from bootseer.agent.node.privileges import Confinement, confine, confine_system_calls
from bootseer.agent.node.spawn import CHANNEL_FD, CONNECTION_FD, leave, reset_priority
from bootseer.agent.workers import mksquashfs_starter
from bootseer.agent.workers.images.identify_image import IdentifiedImage, open_and_identify, receive
from bootseer.agent.workers.redirect_output import direct_output
from bootseer.config import Config, User
from bootseer.core.event import FALLBACK, StageReport
from bootseer.env.snapshot.group_store import shared_urls
from bootseer.errors import BootseerError, Closed, Corrupt
from bootseer.ipc.channel import unexpected
from bootseer.ipc.descriptors import exactly
from bootseer.squashfs.mksquashfs import Start, start_plainly
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect
from bootseer.store.from_url import needs_network


def owner_of(job: Job) -> User:
    """Return a job's user, as settings know users."""
    return User(job.user, job.uid, job.home)


class Task:
    """The task of a worker, and how it reports."""

    def __init__(
        self,
        channel: WorkerEnd,
        start: StartTask,
        opened: socket.socket | None = None,
        mksquashfs: Start = start_plainly,
    ) -> None:
        """Take the task from the agent's first message.

        Args:
            channel: to the agent.
            start: the first message.
            opened: where the opener of the job's image answers.
            mksquashfs: starts it.
        """
        self.channel = channel
        self.mksquashfs = mksquashfs
        self._opened = opened
        self.job = start.job
        self.config = Config(start.config, "the agent's task")

    def store(self) -> Store:
        """Open the user's store; nothing is read yet.

        Raises:
            ConfigError: the configured place is not one that this version can use.
        """
        return connect(self.config, owner_of(self.job))

    async def opened(self, path: str) -> IdentifiedImage:
        """Have an image opened and identified, or take over what the opener has done already.

        Raises:
            BootseerError: what kept the image from being opened or identified.

        Cancellation: returns at once; a thread is left that may hang in the file system.
        """
        if self._opened is None:
            return await trio.to_thread.run_sync(open_and_identify, path, abandon_on_cancel=True)
        return await trio.to_thread.run_sync(receive, self._opened, path, abandon_on_cancel=True)

    @asynccontextmanager
    async def stage(self, name: str) -> AsyncIterator[StageReport]:
        """Time a block and tell the agent, with what the block puts into the report.

        An error of ours is told as a fallback, with its message, and raised on.
        """
        report = StageReport(time.time_ns())
        try:
            yield report
        except BootseerError as error:
            report.fall_back(str(error))
            raise
        finally:
            with trio.CancelScope(shield=True):
                await self.channel.send(StageEnded(report.event(name, time.time_ns())))


def store_urls(role: str, job: Job, config: Config) -> Iterator[str]:
    """Yield the URLs of all stores that a worker may use.

    Args:
        role: module of this package.
        job: whose worker it is.
        config: where stores are.
    """
    if role == "serve_checkpoint":
        yield job.checkpoint
    else:
        yield config.store.url
        yield config.image.store_url or config.store.url
        yield from shared_urls(config).values()


def serve(
    role: str,
    end: socket.socket,
    user: str,
    uid: int,
    gid: int,
    agent: int,
    opened: socket.socket | None = None,
) -> None:
    """Become the user, take a task from the channel and carry it out; does not return.

    Args:
        role: module of this package.
        end: of the channel.
        user, uid, gid: whose rights to take on.
        agent: process id of the agent.
        opened: where the opener of the job's image answers.
    """
    # Imported before the rights go: the user may not be able to read this installation.
    work = importlib.import_module(f"bootseer.agent.workers.{role}").run
    # With who serves a mount goes what a job has written, or what it is running.
    serves = role in ("serve_checkpoint", "serve_image")
    keep = [end.fileno()]
    keep += [CONNECTION_FD] if serves else []
    keep += [opened.fileno()] if opened is not None else []
    mksquashfs: Start = start_plainly
    if role == "run_environment":
        mksquashfs, fd = mksquashfs_starter.start(user, uid, gid)
        keep += [fd] if fd is not None else []
    pin = Confinement.PIN if role == "warm_up" else Confinement.PLAIN
    confine(
        *(user, uid, gid, agent),
        keep=keep,
        profile=pin | Confinement.NETWORK,
        expendable=not serves,
        outlives=role == "serve_image",
    )

    async def take_task() -> None:
        channel = worker_end(end)
        try:
            task = Task(channel, await _receive_start(channel), opened, mksquashfs)
            log.set_up(is_debugging=task.config.node.debug_log)
            if not any(map(needs_network, store_urls(role, task.job, task.config))):
                confine_system_calls(pin)
            await work(task)
        except Closed:
            return  # the agent has ended, and with it the reason for this process

    reset_priority()
    trio.run(take_task)
    leave(0)


async def _receive_start(channel: WorkerEnd) -> StartTask:
    """Receive the first message, and from then on print to the pipe that comes with it.

    Raises:
        Closed: it cannot be understood, which the agent has been told; or the agent has ended.
    """
    try:
        message, fds = await channel.receive()
    except Corrupt as error:
        detail = f"{error}: the installation has changed since the job began"
        report = StageReport(time.time_ns(), status=FALLBACK, detail=detail)
        await channel.send(StageEnded(report.event("agent.worker", report.start_ns)))
        raise Closed("the agent's task cannot be understood") from error
    (output,) = exactly(fds, 1)
    direct_output(output)
    if not isinstance(message, StartTask):
        raise unexpected(message)
    return message


def main() -> None:
    """Serve as the command line says: role, user, uid, gid, agent."""
    role, user, uid, gid, agent = sys.argv[1:6]
    serve(role, socket.socket(fileno=CHANNEL_FD), user, int(uid), int(gid), int(agent))

"""A worker: a process of the agent's with only the rights of the job's user.

The agent starts one for each task and talks to it over a channel. A worker lives until its task is
done or the channel closes.
"""

from __future__ import annotations

import importlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import trio

from bootseer.agent.messages.worker import (
    StageEnded,
    StartTask,
    StoreAway,
    WorkerEnd,
    worker_end,
)
from bootseer.agent.node import log, role_name
from bootseer.agent.node.job import Job
from bootseer.agent.node.privileges import Confinement, confine, confine_system_calls
from bootseer.agent.node.spawn import CHANNEL_FD, CONNECTION_FD, leave, reset_priority
from bootseer.agent.workers import mksquashfs_starter
from bootseer.agent.workers.images.identify_image import IdentifiedImage, open_and_identify, receive
from bootseer.agent.workers.redirect_output import direct_output
from bootseer.config import Config, User
from bootseer.core.event import FALLBACK, StageReport, one_line
from bootseer.env.snapshot.group_store import shared_urls
from bootseer.errors import BootseerError, Closed, Corrupt
from bootseer.ipc.channel import unexpected
from bootseer.ipc.descriptors import exactly
from bootseer.squashfs.mksquashfs import Start, start_plainly
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect
from bootseer.store.from_url import needs_network
from bootseer.store.wrappers.breaker import BreakerStore


def owner_of(job: Job) -> User:
    """Return a job's user, as the settings represent users."""
    return User(job.user, job.uid, job.home)


class Task:
    """The task of a worker, and its reports to the agent."""

    def __init__(
        self,
        channel: WorkerEnd,
        start: StartTask,
        opened: socket.socket | None = None,
        connection: int | None = None,
        mksquashfs: Start = start_plainly,
    ) -> None:
        """Take the task from the agent's first message.

        Args:
            channel: channel to the agent.
            start: the first message.
            opened: socket with the image opener's answer.
            connection: FUSE connection of the mount to serve.
            mksquashfs: starts mksquashfs.
        """
        self.channel = channel
        self.mksquashfs = mksquashfs
        self._connection = connection
        self._opened = opened
        self.job = start.job
        self.config = Config(start.config, "the agent's task")
        self._outage = start.outage

    def store(self) -> Store:
        """Open the user's store, without any I/O.

        Raises:
            ConfigError: this version does not support the configured store.
        """
        return connect(self.config, owner_of(self.job))

    def watched_store(self, first_answer_s: float) -> BreakerStore:
        """Open the user's store, which is not used after an outage; the agent is told of one.

        Args:
            first_answer_s: how long to wait for the first answer.

        Raises:
            ConfigError: as for `store`.
        """

        async def tell(why: str) -> None:
            with suppress(Closed):
                await self.channel.send(StoreAway(one_line(why)))

        return BreakerStore(self.store(), first_answer_s, tell, self._outage)

    async def opened(self, path: str) -> IdentifiedImage:
        """Open and identify an image, or take over the opener's result.

        Raises:
            BootseerError: the image cannot be opened or identified.

        Cancellation: returns immediately; a thread may be left hanging in the file system.
        """
        if self._opened is None:
            return await trio.to_thread.run_sync(open_and_identify, path, abandon_on_cancel=True)
        return await trio.to_thread.run_sync(receive, self._opened, path, abandon_on_cancel=True)

    @property
    def connection(self) -> int:
        """Return the FUSE connection of the mount that this worker serves."""
        assert self._connection is not None  # by its role
        return self._connection

    @asynccontextmanager
    async def stage(self, name: str) -> AsyncIterator[StageReport]:
        """Time a block and send the agent its event, from the report that the block fills in.

        A `BootseerError` is reported as a fallback and raised again.
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


@contextmanager
def by_itself() -> Iterator[None]:
    """Go on behind the block if it fails, not if the agent has ended."""
    try:
        yield
    except Closed:
        raise
    except BootseerError:
        pass


def store_urls(role: str, job: Job, config: Config) -> Iterator[str]:
    """Yield the URLs of all stores that a worker may use.

    Args:
        role: module of this package.
        job: the worker's job.
        config: effective settings.
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
    connection: int | None = None,
) -> None:
    """Become the user, receive a task and carry it out; does not return.

    Args:
        role: module of this package.
        end: the worker's end of the channel.
        user, uid, gid: the user whose rights to take on.
        agent: process id of the agent.
        opened: socket with the image opener's answer.
        connection: FUSE connection of the mount to serve.
    """
    role_name.show(role)
    # Imported before dropping rights: the user may be unable to read this installation.
    work = importlib.import_module(f"bootseer.agent.workers.{role}").run
    keep = [end.fileno()]
    keep += [connection] if connection is not None else []
    keep += [opened.fileno()] if opened is not None else []
    mksquashfs: Start = start_plainly
    if role == "run_environment":
        mksquashfs, fd = mksquashfs_starter.start(user, uid, gid)
        keep += [fd] if fd is not None else []
    pin = Confinement.PIN if role == "warm_up" else Confinement.PLAIN
    accept = Confinement.SERVE if role == "serve_peers" else Confinement.PLAIN
    confine(
        *(user, uid, gid, agent),
        keep=keep,
        profile=pin | accept | Confinement.NETWORK,
        # A mount's server holds data that the job has written, or its running programs.
        expendable=connection is None,
        outlives=role == "serve_image",
    )

    async def take_task() -> None:
        channel = worker_end(end)
        try:
            start = await _receive_start(channel)
            task = Task(channel, start, opened, connection, mksquashfs)
            log.set_up(is_debugging=task.config.node.debug_log)
            has_peers = task.job.has_peers(task.config.peers.min_nodes)
            urls = store_urls(role, task.job, task.config)
            if not has_peers and not any(map(needs_network, urls)):
                confine_system_calls(pin)
            await work(task)
        except Closed:
            return  # the agent has ended, so this process is not needed

    direct_output(None)  # a publisher waits for its task as long as the job runs
    reset_priority()
    trio.run(take_task)
    leave(0)


async def _receive_start(channel: WorkerEnd) -> StartTask:
    """Receive the first message, and redirect output to the pipe that comes with it.

    Raises:
        Closed: the message is invalid, as reported to the agent; or the agent has ended.
    """
    try:
        message, fds = await channel.receive()
    except Corrupt as error:
        detail = f"{error}: the installation has changed since the job began"
        report = StageReport(time.time_ns(), status=FALLBACK, detail=detail)
        await channel.send(StageEnded(report.event("agent.worker", report.start_ns)))
        raise Closed("the agent's task is invalid") from error
    (output,) = exactly(fds, 1)
    direct_output(output)
    if not isinstance(message, StartTask):
        raise unexpected(message)
    return message


def main() -> None:
    """Run a worker; arguments: role, user, uid, gid, agent's process id."""
    role, user, uid, gid, agent = sys.argv[1:6]
    connection = CONNECTION_FD if role == "serve_image" else None
    end = socket.socket(fileno=CHANNEL_FD)
    serve(role, end, user, int(uid), int(gid), int(agent), None, connection)

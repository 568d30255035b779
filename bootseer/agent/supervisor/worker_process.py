"""The supervisor's handle of a worker that the broker has started."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from functools import partial

import trio

from bootseer.agent.broker.supervisor_start import SupervisorStart
from bootseer.agent.messages.broker import KillWorker, Role, StartImageServer
from bootseer.agent.messages.broker import StartWorker as StartWorker
from bootseer.agent.messages.worker import StartTask, SupervisorEnd, supervisor_end
from bootseer.agent.node import spawn
from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.worker_output import copy_output
from bootseer.agent.workers import base, publish, warm_up  # noqa: F401 (forked workers need them)
from bootseer.config import Config
from bootseer.errors import BootseerError
from bootseer.ipc.descriptors import exactly
from bootseer.ipc.request_client import RequestClient

_POLL_S = 0.0005


class Worker:
    """A running worker; it ends when it is killed or this end of the channel is closed."""

    def __init__(self, broker: RequestClient, handle: int, end: socket.socket) -> None:
        """Take over our end of the channel to a process, and the broker's handle of it."""
        self._broker = broker
        self._handle = handle
        self._end = end
        self._channel: SupervisorEnd | None = None

    @property
    def channel(self) -> SupervisorEnd:
        """Return our end of the channel; call it once trio runs."""
        if self._channel is None:
            self._channel = supervisor_end(self._end)
        return self._channel

    async def send_task(self, job: Job, config: Config, outage: str = "") -> None:
        """Send the worker its job, and copy its output from then on.

        Args:
            job, config, outage: as for `StartTask`.

        Raises:
            Closed: the worker has died already.
        """
        printed, output = os.pipe()
        trio.lowlevel.spawn_system_task(copy_output, printed)
        try:
            await self.channel.send(StartTask(job, config.values, outage=outage), [output])
        finally:
            os.close(output)

    async def end(self) -> None:
        """Kill the worker and wait for its end; does nothing if it has ended.

        Waits at most a second: a worker in an uninterruptible read may not end.
        """
        self.channel.close()
        with suppress(BootseerError):  # the broker has ended, and the worker with it
            await self._broker.do(KillWorker(self._handle))


async def start(broker: RequestClient, what: Role | StartImageServer) -> Worker:
    """Start a worker, with or without a mount to serve.

    Raises:
        BootseerError: the worker cannot be started.
    """
    with trio.CancelScope(shield=True):
        reply, fds = await broker.ask(StartWorker(what) if isinstance(what, Role) else what)
    (fd,) = exactly(fds, 1)
    return Worker(broker, reply.value, socket.socket(fileno=fd))


def fork_worker(start: SupervisorStart, role: Role, connection: int | None = None) -> socket.socket:
    """Fork a worker from this process, before it drops root's rights.

    This saves the 200 ms in which a new interpreter would import the same modules. An intermediate
    process exits after the fork, so that the worker becomes a child of the broker, like all
    workers.

    Args:
        start: the supervisor's.
        role: one of `FORKED`.
        connection: FUSE connection of the mount that it serves, if any.

    Returns:
        Our end of the worker's channel.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    job = start.job

    def work(between: int) -> None:
        while os.getppid() == between:
            time.sleep(_POLL_S)
        if os.getppid() != start.broker_pid:  # the broker has ended: others adopt us
            return
        os.write(start.born, b"%d %d\n" % (role, os.getpid()))
        os.close(start.born)
        ours.close()
        user = (job.user, job.uid, job.gid)
        opened = start.opener if role is Role.WARM_UP else None
        base.serve(role.module, theirs, *user, start.broker_pid, opened, connection)

    def leave_behind() -> None:
        spawn.fork(partial(work, os.getpid()))
        os._exit(0)

    os.waitpid(spawn.fork(leave_behind), 0)
    theirs.close()
    return ours

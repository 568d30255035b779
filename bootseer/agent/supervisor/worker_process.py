"""The supervisor's hold of a worker of the job's user, which the broker has started."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

import trio

from bootseer.agent.broker.supervisor_start import SupervisorStart
from bootseer.agent.messages.broker import KillWorker, Role, StartImageServer
from bootseer.agent.messages.broker import StartWorker as StartWorker
from bootseer.agent.messages.worker import StartTask, SupervisorEnd, supervisor_end
from bootseer.agent.node import spawn
from bootseer.agent.node.job import Job
from bootseer.agent.supervisor.worker_output import copy_output
from bootseer.agent.workers import base, warm_up  # noqa: F401 (what is forked here needs it)
from bootseer.config import Config
from bootseer.errors import BootseerError
from bootseer.ipc.descriptors import exactly
from bootseer.ipc.request_client import RequestClient

_POLL_S = 0.0005


class Worker:
    """A running worker; it ends when it is killed or this end of the channel is closed."""

    def __init__(self, broker: RequestClient, handle: int, end: socket.socket) -> None:
        """Take over our end of the channel of a process that the broker has a handle of."""
        self._broker = broker
        self._handle = handle
        self._end = end
        self._channel: SupervisorEnd | None = None

    @property
    def channel(self) -> SupervisorEnd:
        """Our end of the channel; first used once trio runs."""
        if self._channel is None:
            self._channel = supervisor_end(self._end)
        return self._channel

    async def send_task(self, job: Job, config: Config) -> None:
        """Say which job it is about, and from then on copy what the worker prints.

        Raises:
            Closed: the worker has died already.
        """
        printed, output = os.pipe()
        trio.lowlevel.spawn_system_task(copy_output, printed)
        try:
            await self.channel.send(StartTask(job, config.values), [output])
        finally:
            os.close(output)

    async def end(self) -> None:
        """Kill it and wait for its end; returns at once when it has ended.

        A worker in an uninterruptible read cannot be waited for: it is given a second.
        """
        self.channel.close()
        with suppress(BootseerError):  # the broker has ended, and it with that
            await self._broker.do(KillWorker(self._handle))


async def start(broker: RequestClient, what: Role | StartImageServer) -> Worker:
    """Have a worker started, with a mount to serve or without.

    Raises:
        BootseerError: it is not.
    """
    with trio.CancelScope(shield=True):
        reply, fds = await broker.ask(StartWorker(what) if isinstance(what, Role) else what)
    (fd,) = exactly(fds, 1)
    return Worker(broker, reply.value, socket.socket(fileno=fd))


def fork_warming(start: SupervisorStart) -> socket.socket:
    """Start the worker that warms, as a copy of this process, before it gives up root's rights.

    At a job's start this saves the 90 ms in which a fresh interpreter would import the same
    modules again, on a processor that others want. It becomes a child of the broker, as all other
    workers are: what started it ends at once.

    Returns:
        Our end of its channel.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    job = start.job

    def work() -> None:
        while os.getppid() != start.broker_pid:
            time.sleep(_POLL_S)
        os.write(start.warming, b"%d" % os.getpid())
        os.close(start.warming)
        ours.close()
        user = (job.user, job.uid, job.gid)
        base.serve("warm_up", theirs, *user, start.broker_pid, start.opener)

    def leave_behind() -> None:
        spawn.fork(work)
        os._exit(0)

    os.waitpid(spawn.fork(leave_behind), 0)
    theirs.close()
    return ours

"""Start a worker for the job's user and hold the other end of its channel."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import trio

from bootseer.agent.node import process
from bootseer.agent.node.channel import MAX_TOLD_BYTES, Channel
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.workers import base, prefetch  # noqa: F401 (what is forked here needs it)

_LOOK_S = 1.0
_LOOKS = 3
"""How often a worker must have been found stopped, and how far apart, to be given up."""


class Worker:
    """A running worker; it ends when it is killed or this end of the channel is closed."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        """Take over a child and our end of its channel."""
        self._pid = pid
        self._end = end
        self._channel: Channel | None = None

    @property
    def channel(self) -> Channel:
        """Our end of the channel; first used once trio runs."""
        if self._channel is None:
            self._end.setblocking(False)
            self._channel = Channel(self._end, MAX_TOLD_BYTES)
        return self._channel

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it, as SIGSTOP does: its user can."""
        with open(f"/proc/{self._pid}/status", "rb") as file:  # it is our child, and not reaped yet
            return b"\nState:\tT" in file.read()

    async def kill_if_stopped(self) -> None:
        """Kill it once it has been found stopped a few times, until cancelled.

        The job's user can stop it. Processes that wait for it in a mount cannot be killed before,
        and Slurm takes a node away whose processes do not end. Times do not have to follow each
        other: a user could let it go on in between.
        """
        stopped = 0
        while stopped < _LOOKS:
            await trio.sleep(_LOOK_S)
            stopped += self.is_stopped
        self.kill()

    def kill(self) -> None:
        """Kill it; `end` is still to come."""
        os.kill(self._pid, signal.SIGKILL)  # not reaped yet, so the id is still its own

    async def send_task(self, job: Job, config: dict[str, Any], **extra: Any) -> None:
        """Say what is to be done.

        Raises:
            Closed: the worker has died already.
        """
        await self.channel.send({"job": job._asdict(), "config": config, **extra})

    async def end(self) -> None:
        """Kill it and wait for its end; returns at once when it has ended.

        A worker in an uninterruptible read cannot be waited for: it is given a second.
        """
        self.kill()
        self.channel.close()
        with trio.move_on_after(1):
            await trio.to_thread.run_sync(os.waitpid, self._pid, 0, abandon_on_cancel=True)


def fork(job: Job, not_its: socket.socket, opened: socket.socket | None) -> Worker:
    """Start the worker that warms, as a copy of this process, before trio runs in it.

    At a job's start this saves the 90 ms in which a fresh interpreter would import the same
    modules again, on a processor that others want.

    Args:
        job: whose user it becomes.
        not_its: a socket of ours that it must not keep.
        opened: where the image's opener answers; the worker takes it over.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    agent = os.getpid()

    def work() -> None:
        ours.close()
        not_its.close()
        base.serve("prefetch", theirs, job.user, job.uid, job.gid, agent, opened)

    pid = process.fork(work)
    theirs.close()
    if opened is not None:
        opened.close()
    return Worker(pid, ours)


def spawn(folder: JobFolder, job: Job, role: str) -> Worker:
    """Start a worker as a process of its own; at any time."""
    return Worker(*process.spawn_worker(folder, job, role))

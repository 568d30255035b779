"""Start a worker for the job's user and hold the other end of its channel."""

from __future__ import annotations

import socket
import subprocess
from typing import Any

import trio

from bootseer.agent.channel import Channel
from bootseer.agent.job import Job, JobFolder
from bootseer.agent.process import command, environment


class Worker:
    """A running worker; it ends when it is killed or this end of the channel is closed."""

    def __init__(self, folder: JobFolder, job: Job, role: str) -> None:
        """Start it; the first message it waits for is its task."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                command("worker", role, str(theirs.fileno()), job.user, str(job.uid), str(job.gid)),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**environment(folder), "HOME": job.home, "USER": job.user},
                cwd="/",
                umask=0o077,
            )
        self._ours = ours
        self._channel: Channel | None = None

    @property
    def channel(self) -> Channel:
        """Our end of the channel; first used once trio runs."""
        if self._channel is None:
            self._ours.setblocking(False)
            self._channel = Channel(self._ours)
        return self._channel

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
        self._process.kill()
        self.channel.close()
        with trio.move_on_after(1):
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

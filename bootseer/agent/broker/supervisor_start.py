"""The state that a broker passes to its supervisor.

Imports the standard library only.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from bootseer.agent.node.broker_settings import NodeAccount
from bootseer.agent.node.job import Job, JobFolder


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A process that serves a mount, or the error that prevented it.

    Attributes:
        handle: the broker's handle of the process.
        channel: channel to the process; None if there is none.
        error: why mounting failed; "" if it succeeded.
    """

    handle: int = 0
    channel: socket.socket | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class SupervisorStart:
    """A supervisor's job, mounts and ends of all sockets.

    Attributes:
        broker_pid: the broker's process id.
        folder, job: the job and its folder.
        account: the account whose rights the supervisor takes on.
        broker, lender: channels to the broker and the lender.
        control: the control socket; None when cleaning up after a dead agent.
        opener: socket with the image opener's answer; None without an image.
        checkpoint, image: servers of the job's mounts; None if not requested.
        born: pipe for the roles and process ids of the workers that the supervisor forks.
    """

    broker_pid: int
    folder: JobFolder
    job: Job
    account: NodeAccount
    broker: socket.socket
    lender: socket.socket
    control: socket.socket | None
    opener: socket.socket | None
    checkpoint: ServerProcess | None
    image: ServerProcess | None
    born: int

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets that the supervisor keeps; the opener's goes to the prefetch worker."""
        servers = [s.channel for s in (self.checkpoint, self.image) if s is not None]
        return [s for s in (self.broker, self.lender, self.control, *servers) if s is not None]

"""What a broker gives the supervisor that it starts.

Standard library only.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from bootseer.agent.node.broker_settings import NodeAccount
from bootseer.agent.node.job import Job, JobFolder


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A process that serves a mount, or why there is none.

    Attributes:
        handle: the broker's, of the process.
        channel: to it, None without.
        error: why it could not be mounted, "" if it was.
    """

    handle: int = 0
    channel: socket.socket | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class SupervisorStart:
    """What a supervisor begins with; its ends of all sockets.

    Attributes:
        broker_pid: process id of the broker.
        folder, job: the job and its folder.
        account: whose rights it takes on.
        broker, lender: channels to these two.
        control: the control socket; None to clear up after a dead agent.
        opener: where the opener of the job's image answers, None without.
        checkpoint, image: what has been mounted for the job, None if nothing was to be.
        warming: pipe that takes the process id of the worker that warms.
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
    warming: int

    @property
    def sockets(self) -> list[socket.socket]:
        """All that the supervisor keeps: the opener's goes to the worker that warms."""
        servers = [s.channel for s in (self.checkpoint, self.image) if s is not None]
        return [s for s in (self.broker, self.lender, self.control, *servers) if s is not None]

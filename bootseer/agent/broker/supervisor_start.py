"""The state that a broker passes to its supervisor.

Imports the standard library only.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple, TypeAlias

from bootseer.agent.node.broker_settings import NodeAccount
from bootseer.agent.node.job import Job, JobFolder

NewMount: TypeAlias = int | str
"""Descriptor of the FUSE connection of a mount without a server, or why mounting failed."""


class SupervisorStart(NamedTuple):
    """A supervisor's job, mounts and ends of all sockets.

    Attributes:
        broker_pid: the broker's process id.
        folder, job: the job and its folder.
        account: the account whose rights the supervisor takes on.
        broker, lender: channels to the broker and the lender.
        control: the control socket; None when cleaning up after a dead agent.
        opener: socket with the image opener's answer; None without an image.
        checkpoint, image: the job's mounts; None if not requested.
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
    checkpoint: NewMount | None
    image: NewMount | None
    born: int

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets that the supervisor keeps."""
        return [s for s in (self.broker, self.lender, self.control) if s is not None]

    def close_workers_ends(self) -> None:
        """Close what only the forked workers keep."""
        os.close(self.born)
        if self.opener is not None:
            self.opener.close()
        for mount in (self.checkpoint, self.image):
            if isinstance(mount, int):
                os.close(mount)

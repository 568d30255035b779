"""Mount a job's checkpoint, as root, and start the worker that is going to serve it.

One of the agent's first steps: the prolog waits for it. The standard library and our own extension
only; what takes longer happens while the first to touch the mount waits in it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bootseer.agent import process
from bootseer.agent.job import Job, JobFolder
from bootseer.errors import BootseerError
from bootseer.fuse.attach import MountOptions, attach


class Mounting:
    """A mount that has been made, or could not be.

    Attributes:
        error: why it could not be made, "" if it was.
        worker: process id of the one that serves it, and our end of its channel; None without.
    """

    def __init__(self, error: str, worker: tuple[int, socket.socket] | None) -> None:
        """Hold what came out."""
        self.error = error
        self.worker = worker

    @classmethod
    def of(cls, folder: JobFolder, job: Job) -> Mounting:
        """Mount the checkpoint of a job and tell prolog and plugin; they do not wait for more."""
        try:
            os.mkdir(folder.mount, 0o755)
            options = MountOptions(read_only=job.read_only, checks_modes=False)
            connection = attach(Path(folder.mount), job.uid, job.gid, options)
        except (BootseerError, OSError) as error:
            folder.write_mounted(0, job)
            return cls(str(error), None)
        try:
            # Whatever becomes of that process: without it the kernel answers with errors.
            worker = process.spawn_worker(folder, job, "checkpoint", connection)
        finally:
            os.close(connection)
        folder.write_mounted(os.getpid(), job)
        return cls("", worker)

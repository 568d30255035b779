"""Mount what a job's steps are to find, as root, and start the worker that is going to serve it.

One of the agent's first steps: the prolog waits for it. The standard library and our own extension
only; what takes longer happens while the first to touch the mount waits in it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bootseer.agent.node import process
from bootseer.agent.node.job import Job, JobFolder
from bootseer.core.reference import ENVIRONMENT
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
    def checkpoint(cls, folder: JobFolder, job: Job) -> Mounting:
        """Mount a job's checkpoint and tell prolog and plugin; they do not wait for more."""
        options = MountOptions(read_only=job.read_only, checks_modes=False)
        mounting = cls._of(folder, job, folder.mount, "serve_checkpoint", options)
        whose = "listed" if job.mountpoint_listed else "owned"
        folder.write_mounted(folder.mounted, mounting._state(whose), job.mountpoint)
        return mounting

    @classmethod
    def image(cls, folder: JobFolder, job: Job, number: int = 0) -> Mounting:
        """Mount an image for a job, and tell prolog and plugin of the first in the same way."""
        path = folder.image_mount(number)
        # An environment is shown in namespaces that its user may own.
        options = MountOptions(read_only=True, confined=job.image.startswith(ENVIRONMENT))
        mounting = cls._of(folder, job, path, "serve_image", options)
        if mounting.worker is not None:
            process.register_server(folder, mounting.worker[0])
        if number == 0:
            folder.write_mounted(folder.served, mounting._state("owned"))
        return mounting

    @classmethod
    def _of(
        cls, folder: JobFolder, job: Job, path: str, role: str, options: MountOptions
    ) -> Mounting:
        try:
            os.mkdir(path, 0o755)
            connection = attach(Path(path), job.uid, job.gid, options, job.groups)
        except (BootseerError, OSError) as error:
            return cls(str(error), None)
        try:
            # Whatever becomes of that process: without it the kernel answers with errors.
            return cls("", process.spawn_worker(folder, job, role, connection))
        finally:
            os.close(connection)

    def _state(self, mounted: str) -> str:
        return mounted if self.worker else "failed"

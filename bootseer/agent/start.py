"""The agent's first steps: mount what steps will look for, have the image opened, then import."""

from __future__ import annotations

import importlib
import socket
import sys

from bootseer.agent import control
from bootseer.agent.job import JobFolder
from bootseer.agent.mounting import Mounting
from bootseer.agent.opener import Opener
from bootseer.agent.process import register


def main() -> None:
    """Run as the command line says: mode, the job's folder, descriptor of the control socket."""
    mode, folder, fd = sys.argv[1], JobFolder(sys.argv[2]), int(sys.argv[3])
    job = folder.job()
    if job is None:
        raise SystemExit(f"{folder.path} holds no job")
    register(folder)
    listener = opener = checkpoint = image = None
    if mode == "warm":
        checkpoint = Mounting.checkpoint(folder, job) if job.checkpoint else None
        image = Mounting.image(folder, job) if job.is_served else None
        if job.image and image is None:
            folder.write_mounted(folder.served, 0, "plain", job.image)
        listener = socket.socket(fileno=fd) if fd >= 0 else control.listen(folder.socket, job.uid)
        opener = Opener.fork(job, listener) if job.image and not job.is_served else None
    # Imported only now: it takes longer than all of the above.
    supervisor = importlib.import_module("bootseer.agent.supervisor")
    if listener is None:
        supervisor.bury(folder, job)
    else:
        supervisor.serve(folder, job, listener, opener, checkpoint, image)

"""The agent's first steps: mount what steps will look for, have the image opened, then import."""

from __future__ import annotations

import importlib
import socket
import sys

from bootseer.agent.node import control_client
from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.process import register
from bootseer.agent.supervisor.premount import Mounting
from bootseer.agent.workers.identify_image import Opener


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
            folder.write_mounted(folder.served, "plain", job.image)
        listener = (
            socket.socket(fileno=fd) if fd >= 0 else control_client.listen(folder.socket, job.uid)
        )
        opener = Opener.fork(job, listener) if job.image and not job.is_served else None
    # Imported only now: it takes longer than all of the above.
    supervisor = importlib.import_module("bootseer.agent.supervisor.supervisor")
    if listener is None:
        supervisor.bury(folder, job)
    else:
        supervisor.serve(folder, job, listener, opener, checkpoint, image)

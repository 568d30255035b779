"""Have the image opened and identified, as the job's user, while the supervisor is still starting.

Standard library and our own extension only, but in the opener.
"""

from __future__ import annotations

import importlib
import os
import socket

from bootseer.agent.node.job import Job
from bootseer.agent.node.privileges import confine
from bootseer.agent.node.process import fork, take_time


def fork_opener(job: Job) -> tuple[int, socket.socket]:
    """Start the process that opens the image; only while this process has one thread.

    Returns:
        Its process id, and the socket on which it answers: see `identify_image.receive`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.getpid()

    def work() -> None:
        opener = importlib.import_module("bootseer.agent.workers.identify_image")
        take_time()
        confine(job.user, job.uid, job.gid, agent, keep=[theirs.fileno()])
        opener.answer(theirs, job.image)

    pid = fork(work)
    theirs.close()
    return pid, ours

"""The processes that the broker makes as copies of itself, before it has a second thread.

Each imports what it needs after that, for the broker does not wait for it, then gives up root's
rights, and does what it is there for.

Standard library and our own extension only, but in the copies.
"""

from __future__ import annotations

import importlib
import os
import socket

from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import Job
from bootseer.agent.node.privileges import confine
from bootseer.agent.node.process import fork, take_time


def fork_opener(job: Job) -> tuple[int, socket.socket]:
    """Have the job's image opened and identified as its user, while the supervisor still starts.

    Returns:
        The process id, and the socket on which it answers: see `identify_image.receive`.
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


def fork_lender(job: Job, settings: BrokerSettings, end: socket.socket) -> int:
    """Have what the node has of images lent to a job; returns the process id.

    Args:
        job: the job.
        settings: of the node.
        end: of the lender's channel; closed here.
    """
    agent = os.getpid()

    def work() -> None:
        lender = importlib.import_module("bootseer.agent.lender.lender")
        take_time()
        confine(*settings.cache_account, agent, keep=[end.fileno()], expendable=False)
        lender.serve(end, job.uid, settings)

    pid = fork(work)
    end.close()
    return pid

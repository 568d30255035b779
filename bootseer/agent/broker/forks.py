"""The processes that the broker makes as copies of itself, before it has a second thread.

Each imports what it needs after that, for the broker does not wait for it, then gives up root's
rights, and does what it is there for.

Standard library and our own extension only, but in the copies.
"""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import Job
from bootseer.agent.node.privileges import confine
from bootseer.agent.node.spawn import fork, reset_priority


def fork_opener(job: Job) -> tuple[int, socket.socket]:
    """Have the job's image opened and identified as its user, while the supervisor still starts.

    Returns:
        The process id, and the socket on which it answers: see `identify_image.receive`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    user = (job.user, job.uid, job.gid)
    return _fork("workers.images.identify_image", user, theirs, True, job.image), ours


def fork_lender(job: Job, settings: BrokerSettings, end: socket.socket) -> int:
    """Have what the node has of images lent to a job; returns the process id.

    Args:
        job: the job.
        settings: of the node.
        end: of the lender's channel; closed here.
    """
    account = settings.cache_account
    return _fork("lender.lender", account, end, False, job.uid, settings)


def _fork(
    module: str, account: tuple[str, int, int], end: socket.socket, expendable: bool, *args: Any
) -> int:
    """Run ``bootseer.agent.MODULE.serve`` in a copy with an account's rights; returns its id.

    Args:
        module: imported by the copy.
        account: name, uid and gid.
        end: all that the copy has of descriptors, and the first argument; closed here.
        expendable: see `confine`.
        args: the others.
    """
    agent = os.getpid()

    def work() -> None:
        serve = importlib.import_module(f"bootseer.agent.{module}").serve
        reset_priority()
        confine(*account, agent, keep=[end.fileno()], expendable=expendable)
        serve(end, *args)

    pid = fork(work)
    end.close()
    return pid

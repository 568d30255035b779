"""Forks of the broker, made before it has a second thread.

Each copy imports its own modules, so that the broker need not wait for them. It then drops root's
rights and does its work.

Imports the standard library and bootseer's C extension only, except in the copies.
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
    """Fork a process that opens and identifies the job's image as the job's user.

    Returns:
        The process id, and the socket with the result for `identify_image.receive`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    user = (job.user, job.uid, job.gid)
    return _fork("workers.images.identify_image", user, theirs, True, job.image), ours


def fork_lender(job: Job, settings: BrokerSettings, end: socket.socket) -> int:
    """Fork the job's lender of cached image blocks; returns its process id.

    Args:
        job: the job.
        settings: the node's settings for brokers.
        end: the lender's end of its channel; closed here.
    """
    return _fork("lender.lender", settings.cache_account, end, False, job.uid, settings)


def _fork(
    module: str, account: tuple[str, int, int], end: socket.socket, expendable: bool, *args: Any
) -> int:
    """Run ``bootseer.agent.MODULE.serve`` in a copy with an account's rights; returns its id.

    Args:
        module: module below `bootseer.agent`, imported by the copy.
        account: the account's name, uid and gid.
        end: the only descriptor the copy keeps, and the first argument; closed here.
        expendable: see `confine`.
        args: the remaining arguments.
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

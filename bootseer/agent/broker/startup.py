"""The broker's start: make the mounts, start the image's opener, then the supervisor.

The prolog waits for the mounts only. A process that touches one earlier waits in it. The supervisor
is a fork of this process. It imports its modules, forks the job's first workers and drops root's
rights before it reads anything but settings.

Imports the standard library and bootseer's C extension only, except in the supervisor.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from contextlib import suppress

from bootseer.agent.broker.broker import Broker
from bootseer.agent.broker.folders import make_folders
from bootseer.agent.broker.forks import fork_lender, fork_opener
from bootseer.agent.broker.processes import Processes
from bootseer.agent.broker.registration import note_ended, register
from bootseer.agent.broker.supervisor_start import SupervisorStart
from bootseer.agent.broker.user_slots import UserSlots
from bootseer.agent.messages.broker import FORKED
from bootseer.agent.node import control_socket
from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.node.privileges import adopt_orphans, limit_to_brokers
from bootseer.agent.node.spawn import CONTROL_FD, fork, reset_priority
from bootseer.errors import BootseerError
from bootseer.ipc.request import Reply


def run(mode: str, folder: JobFolder) -> int:
    """Run a job's broker until the job has ended; returns the process's exit code.

    Args:
        mode: "warm" to carry out a job's plan, "recover" to clear up after a dead agent.
        folder: the job's folder.
    """
    job, settings = folder.job(), folder.broker_settings()
    if job is None or settings is None:
        raise SystemExit(f"{folder.path} holds no job")
    register(folder)
    limit_to_brokers()
    try:
        is_finished = _serve_job(mode, folder, job, settings)
    except BootseerError as error:
        raise SystemExit(str(error)) from error
    if is_finished and mode == "recover":
        folder.remove()
    elif is_finished:
        note_ended(folder)
    return 0 if is_finished else 1


def _serve_job(mode: str, folder: JobFolder, job: Job, settings: BrokerSettings) -> bool:
    """Serve a job until it has ended; returns whether the supervisor reported that.

    Raises:
        BootseerError: the node is not set up correctly.
    """
    processes = Processes(folder, job, UserSlots(f"{settings.run_dir}/users", job.uid))
    broker = Broker(folder, job, settings, processes)
    checkpoint = image = control = opener = None
    if mode == "warm":
        checkpoint = broker.mounts.make_checkpoint() if job.checkpoint else None
        image = broker.mounts.make_first_image() if job.is_served else None
        control = socket.socket(fileno=CONTROL_FD)
        if job.image and image is None:
            folder.write_mounted(folder.served, "plain", job.image)
            pid, opener = fork_opener(job)
            processes.adopt(pid)
    mounts = control_socket.listen(folder.mounts, 0, socket.SOCK_SEQPACKET)
    try:
        make_folders(folder, settings)
    except (OSError, BootseerError) as error:  # a disk is full: the job runs with less recorded
        with suppress(OSError):
            print(error, file=sys.stderr)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lends, borrows = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    born, pid_end = os.pipe()
    node = (os.getpid(), folder, job, settings.account)
    start = SupervisorStart(*node, theirs, borrows, control, opener, checkpoint, image, pid_end)

    def supervise() -> None:
        for end in (ours, lends, mounts):
            end.close()
        # Imported only now: the import takes longer than all of the above.
        importlib.import_module("bootseer.agent.supervisor.start").begin(start)

    adopt_orphans(True)  # the workers that it forks become our children
    fork(supervise)
    for end in start.sockets:
        end.close()
    start.close_workers_ends()
    processes.adopt(fork_lender(job, settings, lends))
    reset_priority()
    with os.fdopen(born, "rb") as pipe:
        pids = {int(role): int(pid) for role, pid in map(bytes.split, pipe)}
    adopt_orphans(False)
    with suppress(OSError):  # it has ended
        for role in FORKED:
            handle = processes.adopt(pids[role], role) if role in pids else 0
            ours.send(Reply(0, value=handle).encode())
    is_finished = broker.run(ours, mounts)
    processes.end()
    return is_finished

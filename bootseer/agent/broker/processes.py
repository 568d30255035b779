"""The processes that the broker starts as the job's user, and that only it can kill.

Imports the standard library and bootseer's C extension only.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from itertools import count
from threading import Lock

from bootseer.agent.broker.registration import register_servers
from bootseer.agent.broker.user_slots import UserSlots
from bootseer.agent.messages.broker import SERVERS, Role
from bootseer.agent.node import spawn
from bootseer.agent.node.job import Job, JobFolder
from bootseer.errors import NotFound, Unavailable

MAX_WORKERS = 128
"""Workers that one job may have at a time."""
STOP_CHECK_S = 1.0
STOP_CHECKS = 3
"""Kill a mount's server found stopped so many times, with so many seconds between checks."""
_OUTLIVES = Role.SERVE_IMAGE
"""Worker that the job needs even after its agent has died."""
_KILL_S = 1.0
"""Time to wait for a killed process: in an uninterruptible read it may not end."""
_POLL_S = 0.002


class _Child:
    """A child process.

    Attributes:
        pid: process id; the child is not reaped while this object exists.
        slot: the `UserSlots` slot it occupies; None for what each job has.
        role: the worker's; None for a copy of the broker.
        times_stopped: how often it was found stopped.
    """

    def __init__(self, pid: int, slot: int | None, role: Role | None) -> None:
        self.pid, self.slot, self.role, self.times_stopped = pid, slot, role, 0


class Processes:
    """Children of the broker, by handle.

    A child is reaped only when its handle is released, so that its process id is not reused.

    Concurrency: any number of threads. Only the first thread starts children, because they die with
    the thread that started them.

    Attributes:
        folder, job: the job and its folder.
        slots: limits the processes of all of this user's jobs on the node.
    """

    def __init__(self, folder: JobFolder, job: Job, slots: UserSlots) -> None:
        self.folder, self.job, self.slots = folder, job, slots
        self._numbers = count(1)
        self._children: dict[int, _Child] = {}
        # Guards the children; a child is not reaped while it is held.
        self._lock = Lock()

    def adopt(self, pid: int, role: Role | None = None) -> int:
        """Register a child; returns its handle.

        Args:
            pid: the child, a copy of the broker or of the supervisor.
            role: the worker's, if it is one. An image's server outlives the broker; the server of
                any mount is killed if found stopped.
        """
        return self._keep(_Child(pid, None, role))

    def start(self, role: Role, connection: int | None = None) -> tuple[int, socket.socket]:
        """Start a worker; returns its handle and our end of its channel.

        Args:
            role: as for `adopt`.
            connection: FUSE connection of the mount it serves, if any; stays the caller's.

        Raises:
            Unavailable: the limit of workers is reached.
            OSError: the worker cannot be started.
        """
        if len(self._children) >= MAX_WORKERS:
            raise Unavailable(f"this job may have only {MAX_WORKERS} workers")
        with self._lock:
            slot = self.slots.take()
        try:
            pid, end = spawn.spawn_worker(self.folder, self.job, role.module, connection)
        except BaseException:
            with self._lock:
                self.slots.give(slot)
            raise
        return self._keep(_Child(pid, slot, role)), end

    def kill(self, handle: int) -> None:
        """Kill a process if it has not ended, and wait for its end, at most a second.

        Raises:
            NotFound: no process has that handle.
        """
        with self._lock:
            child = self._children.pop(handle, None)
            if child is None:
                raise NotFound(f"there is no process {handle}")
            if child.slot is not None:
                self.slots.give(child.slot)
        os.kill(child.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        until = time.monotonic() + _KILL_S
        while os.waitpid(child.pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(_POLL_S)

    def kill_stopped(self) -> None:
        """Kill mount servers that several calls found stopped.

        The job's user can stop a server. Processes waiting in its mount then cannot be killed, and
        Slurm drains a node whose processes do not end. The calls need not be consecutive: a user
        could continue the server in between.
        """
        with self._lock:
            for child in self._children.values():
                if child.role in SERVERS and _is_stopped(child.pid):
                    child.times_stopped += 1
                    if child.times_stopped == STOP_CHECKS:
                        os.kill(child.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill all children that do not outlive the broker, without waiting."""
        with self._lock:
            for child in self._children.values():
                if child.role is not _OUTLIVES:
                    os.kill(child.pid, signal.SIGKILL)

    def _keep(self, child: _Child) -> int:
        with self._lock:
            handle = next(self._numbers)
            self._children[handle] = child
            lasting = [each.pid for each in self._children.values() if each.role is _OUTLIVES]
        if child.role is _OUTLIVES:
            register_servers(self.folder, lasting)
        return handle


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nState:\tT" in file.read()
    except OSError:
        return False

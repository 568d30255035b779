"""The processes of a job's user that the broker starts, and alone can end.

Standard library and our own extension only.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from itertools import count
from threading import Lock

from bootseer.agent.broker.registration import register_servers
from bootseer.agent.broker.user_slots import UserSlots
from bootseer.agent.node import spawn
from bootseer.agent.node.job import Job, JobFolder
from bootseer.errors import NotFound, Unavailable

MAX_WORKERS = 128
"""Of a job, at once."""
LOOK_S = 1.0
LOOKS = 3
"""How often a mount's server must have been found stopped, and how far apart, to be killed."""
_KILL_S = 1.0
"""For the end of a process that was killed: one in an uninterruptible read cannot be waited for."""
_POLL_S = 0.002


@dataclass(slots=True)
class _Child:
    """A process that was started.

    Attributes:
        pid: its process id; it is not reaped as long as this is here.
        slot: of the user's, that it takes up; None for a copy of the broker.
        serves: a mount of the job's, so that others may wait for it.
        outlives: it does not end with the broker.
        times_stopped: how often it was found so.
    """

    pid: int
    slot: int | None = None
    serves: bool = False
    outlives: bool = False
    times_stopped: int = 0


class Processes:
    """Children of the broker, by the handles that the supervisor has for them.

    None is reaped before its handle is given up, so that its process id stays its own.

    Concurrency: any number of threads; but children are started by the first thread only, for they
    ask to die with the thread that has started them.
    """

    def __init__(self, folder: JobFolder, job: Job, slots: UserSlots) -> None:
        """Begin with none.

        Args:
            folder, job: the job and its folder.
            slots: for the processes of all jobs of this user on the node.
        """
        self._folder = folder
        self._job = job
        self._slots = slots
        self._numbers = count(1)
        self._children: dict[int, _Child] = {}
        self._lock = Lock()  # guards them: what is killed under it has not been reaped

    def adopt(self, pid: int) -> int:
        """Take charge of a child; returns its handle."""
        return self._keep(_Child(pid))

    def start(self, role: str, connection: int | None = None) -> tuple[int, socket.socket]:
        """Start a worker; returns its handle and our end of its channel.

        Args:
            role: see `bootseer.agent.workers.base`.
            connection: of a mount that it is to serve, if any; stays the caller's. An image's
                server outlives the broker; any server is killed once it is found stopped.

        Raises:
            Unavailable: there are too many.
            OSError: it cannot be started.
        """
        if len(self._children) >= MAX_WORKERS:
            raise Unavailable(f"{MAX_WORKERS} processes of this job are at work already")
        with self._lock:
            slot = self._slots.take()
        try:
            pid, end = spawn.spawn_worker(self._folder, self._job, role, connection)
        except BaseException:
            with self._lock:
                self._slots.give(slot)
            raise
        child = _Child(pid, slot, connection is not None, role == "serve_image")
        handle = self._keep(child)
        if child.outlives:
            with self._lock:
                lasting = [one.pid for one in self._children.values() if one.outlives]
            register_servers(self._folder, lasting)
        return handle, end

    def kill(self, handle: int) -> None:
        """Kill a process, if it has not ended, and wait for its end, a second at most.

        Raises:
            NotFound: there is none of that handle.
        """
        with self._lock:
            child = self._children.pop(handle, None)
            if child is None:
                raise NotFound(f"there is no process {handle}")
            if child.slot is not None:
                self._slots.give(child.slot)
        os.kill(child.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        until = time.monotonic() + _KILL_S
        while os.waitpid(child.pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(_POLL_S)

    def kill_stopped(self) -> None:
        """Kill the servers of mounts that were found stopped in several calls.

        The job's user can stop it. Processes that wait for it in a mount cannot be killed before,
        and Slurm takes a node away whose processes do not end. The calls do not have to follow each
        other: a user could let it go on in between.
        """
        with self._lock:
            for child in self._children.values():
                if child.serves and _is_stopped(child.pid):
                    child.times_stopped += 1
                    if child.times_stopped == LOOKS:
                        os.kill(child.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill all that do not outlive the broker, without waiting."""
        with self._lock:
            for child in self._children.values():
                if not child.outlives:
                    os.kill(child.pid, signal.SIGKILL)

    def _keep(self, child: _Child) -> int:
        with self._lock:
            handle = next(self._numbers)
            self._children[handle] = child
        return handle


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nState:\tT" in file.read()
    except OSError:
        return False

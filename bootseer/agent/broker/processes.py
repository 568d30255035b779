"""The processes of a job's user that the broker starts, and alone can end.

Standard library and our own extension only.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from itertools import count
from threading import Lock

from bootseer.agent.broker.registration import register_servers
from bootseer.agent.node import process
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


class Processes:
    """Children of the broker, by the handles that the supervisor has for them.

    None is reaped before its handle is given up, so that its process id stays its own.

    Concurrency: any number of threads; but children are started by the first thread only, for they
    ask to die with the thread that has started them.
    """

    def __init__(self, folder: JobFolder, job: Job) -> None:
        """Begin with none."""
        self._folder = folder
        self._job = job
        self._numbers = count(1)
        self._pids: dict[int, int] = {}
        self._outlive: set[int] = set()
        self._stopped: dict[int, int] = {}
        self._lock = Lock()  # guards them: what is killed under it has not been reaped

    def adopt(self, pid: int) -> int:
        """Take charge of a child; returns its handle."""
        with self._lock:
            handle = next(self._numbers)
            self._pids[handle] = pid
        return handle

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
        if len(self._pids) >= MAX_WORKERS:
            raise Unavailable(f"{MAX_WORKERS} processes of this job are at work already")
        pid, end = process.spawn_worker(self._folder, self._job, role, connection)
        handle = self.adopt(pid)
        with self._lock:
            if connection is not None:
                self._stopped[handle] = 0
            if role == "serve_image":
                self._outlive.add(handle)
                register_servers(self._folder, map(self._pids.__getitem__, self._outlive))
        return handle, end

    def kill(self, handle: int) -> None:
        """Kill a process, if it has not ended, and wait for its end, a second at most.

        Raises:
            NotFound: there is none of that handle.
        """
        with self._lock:
            pid = self._pids.pop(handle, None)
            if pid is None:
                raise NotFound(f"there is no process {handle}")
            self._stopped.pop(handle, None)
            self._outlive.discard(handle)
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        until = time.monotonic() + _KILL_S
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(_POLL_S)

    def kill_stopped(self) -> None:
        """Kill the servers of mounts that were found stopped in several calls.

        The job's user can stop it. Processes that wait for it in a mount cannot be killed before,
        and Slurm takes a node away whose processes do not end. The calls do not have to follow each
        other: a user could let it go on in between.
        """
        with self._lock:
            for handle, times in self._stopped.items():
                if not _is_stopped(self._pids[handle]):
                    continue
                self._stopped[handle] = times + 1
                if times + 1 == LOOKS:
                    os.kill(self._pids[handle], signal.SIGKILL)

    def end(self) -> None:
        """Kill all that do not outlive the broker, without waiting."""
        with self._lock:
            for handle, pid in self._pids.items():
                if handle not in self._outlive:
                    os.kill(pid, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nState:\tT" in file.read()
    except OSError:
        return False

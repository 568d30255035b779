"""The registry of this node's jobs and of their agents' live processes.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import start_time
from bootseer.folder_ownership import check_alone

_STARTING_S = 10.0
"""A folder younger than this may belong to an agent that is still starting."""


def job_folders(run_dir: str, kind: str = "jobs") -> list[JobFolder]:
    """List the folders of all jobs on this node, or of reaped ones ("dead")."""
    try:
        names = os.listdir(f"{run_dir}/{kind}")
    except OSError:
        return []
    return [JobFolder(f"{run_dir}/{kind}/{name}") for name in sorted(names)]


def claim(folder: JobFolder) -> bool:
    """Create a job's folder; returns False if it exists.

    Raises:
        Denied: users other than root can change the run directory.
    """
    jobs = os.path.dirname(folder.path)
    for above in (os.path.dirname(jobs), jobs):  # makedirs applies its mode to the last level only
        os.makedirs(above, mode=0o755, exist_ok=True)
    check_alone(os.path.dirname(jobs), jobs)
    try:
        os.mkdir(folder.path, 0o711)
    except FileExistsError:
        return False
    os.chmod(folder.path, 0o711)
    return True


def is_starting(folder: JobFolder) -> bool:
    """Return whether the folder's agent may still be starting, not yet registered."""
    return folder.read("process.json") is None and is_young(folder)


def is_young(folder: JobFolder) -> bool:
    """Return whether the folder changed only a moment ago."""
    try:
        return time.time() - os.stat(folder.path).st_mtime < _STARTING_S
    except OSError:
        return True


def deregister(folder: JobFolder) -> None:
    """Remove the agent from the registry, and give the next one time to start."""
    with suppress(FileNotFoundError):
        os.unlink(f"{folder.path}/process.json")
    os.utime(folder.path)


def has_ended(folder: JobFolder) -> bool:
    """Return whether the folder's agent has ended normally."""
    return folder.read("ended.json") is not None


def agent_pid(folder: JobFolder) -> int | None:
    """Return the process id of the folder's agent; None if it does not live."""
    return _living(folder.read("process.json"))


def is_served(folder: JobFolder) -> bool:
    """Return whether a server of one of the job's images lives."""
    return any(_living(server) is not None for server in _servers(folder))


def _servers(folder: JobFolder) -> list[Any]:
    servers = (folder.read("server.json") or {}).get("servers")
    return servers if isinstance(servers, list) else []


def _living(mark: Any) -> int | None:
    if not isinstance(mark, dict):
        return None
    pid, start = mark.get("pid"), mark.get("start")
    if isinstance(pid, int) and pid > 1 and start is not None and start_time(pid) == start:
        return pid
    return None

"""Which processes of a job's agent live, as its folder on the node says.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from bootseer.agent.node.job import JobFolder

_STARTING_S = 10.0
"""A folder younger than this may belong to an agent that is only starting."""


def is_starting(folder: JobFolder) -> bool:
    """Whether the folder's agent may be one that has not registered yet."""
    if folder.read("process.json") is not None:
        return False
    try:
        return time.time() - os.stat(folder.path).st_mtime < _STARTING_S
    except OSError:
        return True


def register(folder: JobFolder) -> None:
    """Note in the job's folder that this process is its agent."""
    folder.write("process.json", _mark(os.getpid()))


def register_server(folder: JobFolder, pid: int) -> None:
    """Note in the job's folder one more who serves an image: the job goes on without the agent."""
    folder.write("server.json", {"servers": [*_servers(folder), _mark(pid)]})


def deregister(folder: JobFolder) -> None:
    """Take back that the folder has an agent, and give the next one its time to start."""
    with suppress(FileNotFoundError):
        os.unlink(f"{folder.path}/process.json")
    os.utime(folder.path)


def agent_pid(folder: JobFolder) -> int | None:
    """Return the process id of the folder's agent if it lives."""
    return _living(folder.read("process.json"))


def is_served(folder: JobFolder) -> bool:
    """Whether somebody lives who serves an image of the job's."""
    return any(_living(server) is not None for server in _servers(folder))


def _mark(pid: int) -> dict[str, Any]:
    return {"pid": pid, "start": start_time(pid)}


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


def start_time(pid: int) -> str | None:
    """Return a process's start time, which tells it from a later one with the same id."""
    try:
        fields = status_fields(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def status_fields(pid: int | str) -> list[str]:
    """Return what /proc/PID/stat says after the name, which may hold anything: state first."""
    with open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()

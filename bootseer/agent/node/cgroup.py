"""The control group of a job's agent: all that is in it can be killed at once, whatever it does.

Where systemd runs, it is that of the agent's unit. Elsewhere the agent enters one below
`bootseer`, where control groups of version 2 are mounted and root may make some.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
"""Where version 2 is mounted: alone, or beside version 1."""
_FOLDER = "bootseer"
_END_S = 0.5
_POLL_S = 0.005
_YOUNG_NS = 60 * 10**9
"""A group younger than this may be one that nobody has been put into yet."""


def new_name(mode: str, job: str) -> str:
    """Name a group, and the unit that has it.

    Args:
        mode: of the agent.
        job: name of the job's folder. A job that is requeued may find the group of its first start
            still ending, and several nodes may be one machine: so the time is added.
    """
    return f"bootseer-{mode}-{job}-{time.time_ns()}"


def make(name: str) -> str:
    """Make a new group for an agent to enter; returns its folder, "" where that is not possible."""
    parent = _ours()
    if parent is None:
        return ""
    try:
        os.makedirs(f"{parent}/{name}", exist_ok=True)
    except OSError:
        return ""
    return f"{parent}/{name}"


def kill(path: str, job: str) -> bool:
    """Kill all that is in the group of a job's agent; returns whether that was done.

    Args:
        path: of the group, as /proc/PID/cgroup has it. Nothing is done if it is no agent's of this
            job: one that could not be put into a group is in slurmd's.
        job: name of the job's folder.
    """
    name = rf"bootseer-(warm|bury)-{re.escape(job)}-\d+(\.service)?"
    root = _root()
    if root is None or not re.fullmatch(name, os.path.basename(path)):
        return False
    try:
        _write(f"{root}{path}/cgroup.kill", "1")
    except OSError:  # Linux before 5.14 has no such file
        return False
    return True


def sweep(path: str = "") -> None:
    """Remove groups of ours whose processes have ended; systemd removes its own.

    Args:
        path: of one that is removed whatever its age, as /proc/PID/cgroup has it; a moment is
            waited for its last processes.
    """
    parent = _ours()
    if parent is None:
        return
    folder, own = os.path.split(path)
    until = time.monotonic() + _END_S
    while folder == f"/{_FOLDER}" and not _remove(f"{parent}/{own}") and time.monotonic() < until:
        time.sleep(_POLL_S)  # its processes have been killed, and end
    with suppress(OSError):
        for name in os.listdir(parent):
            made_ns = name.rpartition("-")[2]
            if made_ns.isdecimal() and time.time_ns() - int(made_ns) > _YOUNG_NS:
                _remove(f"{parent}/{name}")


def _remove(folder: str) -> bool:
    """Remove a group; returns whether it is gone."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:  # somebody is in it
        return False
    return True


def _root() -> str | None:
    return next((r for r in _ROOTS if os.path.exists(f"{r}/cgroup.procs")), None)


def _ours() -> str | None:
    root = _root()
    return f"{root}/{_FOLDER}" if root is not None else None


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)

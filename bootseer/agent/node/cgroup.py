"""The control group of a job's agent, with which all its processes can be killed.

Where systemd runs, it is the group of a scope. Elsewhere it is a group below `bootseer`, if control
groups of version 2 are mounted and root may create groups.

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
_MOVE_S = 1.0
_POLL_S = 0.005
_YOUNG_NS = 60 * 10**9
"""A group younger than this may still be empty because its agent is starting."""
_BUSCTL = "/usr/bin/busctl"
_START_SCOPE = (
    "--quiet --timeout=2 call org.freedesktop.systemd1 /org/freedesktop/systemd1 "
    "org.freedesktop.systemd1.Manager StartTransientUnit ssa(sv)a(sa(sv))"
)
_SCOPE = {
    "Slice": ("s", "bootseer.slice"),
    "CollectMode": ("s", "inactive-or-failed"),
    # Prefetched pages are charged to the agent's scope. This is half of the node's memory.
    "MemoryMaxScale": ("u", str(2**31)),
    "TasksMax": ("t", "4096"),
}
_SCOPE_FROM_253 = {"OOMPolicy": ("s", "continue")}
"""Properties that scopes have from systemd 253 on; before, they have no such policy."""


def new_name(mode: str, job: str) -> str:
    """Return a new name for a group or scope.

    Args:
        mode: the agent's mode.
        job: name of the job's folder. The time is appended, because a
            requeued job may find its first group still ending, and several nodes may share one
            machine.
    """
    return f"bootseer-{mode}-{job}-{time.time_ns()}"


def enter(name: str) -> None:
    """Move this process into a new control group, if that is possible.

    It must have no children yet. systemd takes some 20 ms, other kernels' groups some 15 ms.
    """
    if not (_under_systemd() and _enter_scope(name)) and (group := make(name)):
        with suppress(OSError):
            _write(f"{group}/cgroup.procs", "0")


def _under_systemd() -> bool:
    """Return whether systemd runs this node's services."""
    return os.path.isdir("/run/systemd/system")


def _enter_scope(name: str) -> bool:
    """Have systemd move this process into a new scope; returns whether systemd agrees to do so.

    A scope, unlike a service, takes a process that runs already, so nobody waits for systemd.
    """
    scope = f"{name}.scope"
    if not (_start_scope(scope, _SCOPE | _SCOPE_FROM_253) or _start_scope(scope, _SCOPE)):
        return False
    until = time.monotonic() + _MOVE_S
    while f"/{scope}\n" not in _own_groups() and time.monotonic() < until:
        time.sleep(_POLL_S)
    return True


def _start_scope(scope: str, properties: dict[str, tuple[str, str]]) -> bool:
    """Ask systemd for a scope with this process; returns whether it agrees."""
    fields = [word for key, value in properties.items() for word in (key, *value)]
    pids = ["PIDs", "au", "1", str(os.getpid())]
    arguments = [scope, "fail", str(len(properties) + 1), *pids, *fields, "0"]
    try:
        pid = os.posix_spawn(
            _BUSCTL,
            ["busctl", *_START_SCOPE.split(), *arguments],
            {},
            file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)],
        )
    except OSError:
        return False
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _own_groups() -> str:
    with open("/proc/self/cgroup") as file:
        return file.read()


def make(name: str) -> str:
    """Create a group for an agent; returns its folder, or "" if that is not possible."""
    parent = _ours()
    if parent is None:
        return ""
    try:
        os.makedirs(f"{parent}/{name}", exist_ok=True)
    except OSError:
        return ""
    return f"{parent}/{name}"


def kill(path: str, job: str) -> bool:
    """Kill the processes in the group of a job's agent; returns whether that was done.

    Args:
        path: the group, as in /proc/PID/cgroup. Nothing is killed unless it is a group of this
            job's agent: an agent without its own group is in slurmd's.
        job: name of the job's folder.
    """
    name = rf"bootseer-(warm|recover)-{re.escape(job)}-\d+(\.scope)?"
    root = _root()
    if root is None or not re.fullmatch(name, os.path.basename(path)):
        return False
    try:
        _write(f"{root}{path}/cgroup.kill", "1")
    except OSError:  # Linux before 5.14 has no such file
        return False
    return True


def sweep(path: str = "") -> None:
    """Remove BootSeer's empty groups; systemd removes its own.

    Args:
        path: a group, as in /proc/PID/cgroup, to remove whatever its age, after a short wait for
            its last processes.
    """
    parent = _ours()
    if parent is None:
        return
    folder, own = os.path.split(path)
    until = time.monotonic() + _END_S
    while folder == f"/{_FOLDER}" and not _remove(f"{parent}/{own}") and time.monotonic() < until:
        time.sleep(_POLL_S)  # its killed processes are still ending
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
    except OSError:  # it is not empty
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

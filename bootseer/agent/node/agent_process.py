"""Start the agent outside the job's processes, and kill it.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

from bootseer.agent.node import cgroup
from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import (
    CONTROL_FD,
    TAG,
    command,
    environment,
    start_time,
    status_fields,
)

_START_NICE = -10
_SLURMS = re.compile(r"(.*?)/slurm(_[^/]*)?/")
"""A group of Slurm's in version 1, up to where Slurm's own begin."""


def start(folder: JobFolder, mode: str, listener: socket.socket | None = None) -> int:
    """Start the agent without waiting; returns its process id.

    It leads its own session, with every descriptor redirected: slurmd reads a prolog's output to
    its end, so a process that kept it open would hold up the node. It enters its control group
    itself, but groups of version 1 have to be left before: a step's prolog is in those of its job.

    Args:
        folder: the job's folder.
        mode: "warm" to carry out a job's plan, "recover" to clear up after a dead agent.
        listener: the control socket, for an agent that carries out a plan.
    """
    argv = command("broker.__main__", mode, folder.path)
    if mode == "warm":  # the other mode ends soon
        argv.append(cgroup.new_name(mode, os.path.basename(folder.path)))
        _leave_slurms_groups()
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(f"{folder.path}/agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    actions = [(null, 0), (log, 1), (log, 2)]
    if listener is not None:
        actions.append((listener.fileno(), CONTROL_FD))
    # Everything else is close-on-exec: Python opens it so, and the plugin closed the rest.
    pid = os.posix_spawn(
        argv[0],
        argv,
        environment(folder),
        file_actions=[(os.POSIX_SPAWN_DUP2, *action) for action in actions],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
    )
    os.close(null)
    os.close(log)
    return pid


def _leave_slurms_groups() -> None:
    """Move this process out of Slurm's groups of version 1, which limit a job and kill it."""
    for folder in _above_slurms():
        with suppress(OSError), open(f"{folder}/cgroup.procs", "w") as file:
            file.write("0")


def _above_slurms() -> Iterator[str]:
    """Yield the folder above Slurm's groups, of each hierarchy where this process is in one."""
    with open("/proc/self/cgroup") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    above = {
        controllers: found[1] for _, controllers, path in lines if (found := _SLURMS.match(path))
    }
    with open("/proc/self/mountinfo", newline="\n", errors="surrogateescape") as file:
        mounts = [line.split() for line in file if above and " - cgroup " in line]
    for mount in mounts:
        root, mountpoint, options = mount[3].rstrip("/"), mount[4], mount[-1].split(",")
        for controllers, group in above.items():
            if set(controllers.split(",")) <= set(options) and group.startswith(root):
                yield mountpoint + group[len(root) :]


def raise_priority() -> None:
    """Raise the priority of this process and its children, until `reset_priority`.

    The agent spends a tenth of a second on imports while Slurm launches the job. Without this they
    share the processor, and the job's start waits longer.
    """
    with suppress(OSError):  # not permitted inside some containers
        os.setpriority(os.PRIO_PROCESS, 0, _START_NICE)


def kill_all(folder: JobFolder) -> list[int]:
    """Kill an agent's processes: its control group, or processes marked with its folder.

    Marked processes are killed only in the agent's session, or if root's when the agent is unknown:
    any user can set the mark. With a control group no environment is read: that can block forever
    if the process has mapped memory that a user's file system serves.

    Returns:
        Process ids of the marked processes.
    """
    mark = f"{TAG}={folder.path}".encode()
    noted = folder.read("process.json") or {}
    if cgroup.kill(str(noted.get("cgroup")), os.path.basename(folder.path)):
        return []
    session = noted.get("pid")
    killed = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            is_ours = status_fields(entry)[3] == str(session) if session else _is_roots(entry)
            if not is_ours:
                continue
            with open(f"/proc/{entry}/environ", "rb") as file:
                marked = mark in file.read(65536).split(b"\0")
            if marked:
                os.kill(int(entry), signal.SIGKILL)
                killed.append(int(entry))
        except OSError:
            continue  # gone meanwhile
    return killed


def await_end(pid: int, deadline_s: float) -> None:
    """Wait until a process has ended or until the deadline; it need not be our child."""
    until = time.monotonic() + deadline_s
    start = start_time(pid)
    while start_time(pid) == start is not None and time.monotonic() < until:
        time.sleep(0.005)


def age_ns() -> int:
    """Return the age of this process in nanoseconds, accurate to about 10 ms."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    started_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns)


def _is_roots(pid: str) -> bool:
    """Return whether a process's real user is root: false for set-uid programs of users."""
    # As bytes: a carriage return in the process's name begins no line.
    with open(f"/proc/{pid}/status", "rb") as file:
        return any(line.split()[:2] == [b"Uid:", b"0"] for line in file)

"""Start the agent outside the job's processes, and end it.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress

from bootseer.agent.node import cgroup
from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import TAG, command, environment, start_time, status_fields

CONTROL_FD = 3
"""Where an agent that is not systemd's finds its control socket."""
_HURRY_NICE = -10
_CAPABILITIES = (
    "CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_KILL CAP_SETUID CAP_SETGID "
    "CAP_SETPCAP CAP_IPC_LOCK CAP_SYS_CHROOT CAP_SYS_ADMIN CAP_SYS_NICE CAP_SYS_PTRACE "
    "CAP_SYS_RESOURCE"
)
"""Those that the broker keeps in any case, see c_ext/privilege.c."""


def start(folder: JobFolder, mode: str, listener: socket.socket | None = None) -> int:
    """Start the agent; returns at once, with the process id of what starts it or is it.

    Where systemd runs, the agent is a transient unit of its own, and makes its control socket
    itself; elsewhere it leads a session of its own, with every descriptor redirected: slurmd reads
    a prolog's output to its end, so that a process that kept it open would hold up the node.

    Args:
        folder: of the job.
        mode: "warm" to carry out a job's plan, "bury" to clear up after a dead agent.
        listener: the control socket, for the agent to answer on.
    """
    fd = CONTROL_FD if listener is not None else -1
    argv = command("broker.__main__", mode, folder.path, str(fd))
    group = cgroup.new_name(mode, os.path.basename(folder.path))
    if under_systemd():
        argv = _as_unit(folder, group, argv)
    elif mode == "warm":  # the other ends by itself, and soon
        argv.append(cgroup.make(group))
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


def raise_priority() -> None:
    """Give this process and those it starts more of the processor, until `reset_priority`.

    The agent has a tenth of a second of imports before it works, and Slurm launches the job
    beside it: without this they take turns, and the job's own start waits longer.
    """
    with suppress(OSError):  # no right to it inside some containers
        os.setpriority(os.PRIO_PROCESS, 0, _HURRY_NICE)


def under_systemd() -> bool:
    """Whether this node's services are systemd's."""
    return os.path.isdir("/run/systemd/system")


def _as_unit(folder: JobFolder, name: str, argv: list[str]) -> list[str]:
    return [
        "/usr/bin/systemd-run",
        "--quiet",
        "--collect",
        "--no-block",
        f"--unit={name}",
        "--slice=bootseer.slice",
        f"--description=BootSeer agent of job {os.path.basename(folder.path)}",
        f"--setenv={TAG}={folder.path}",
        "--setenv=LANG=C.UTF-8",
        f"--property=StandardOutput=append:{folder.path}/agent.log",
        f"--property=StandardError=append:{folder.path}/agent.log",
        # The image's server outlives an agent that dies: the job goes on. The epilog ends both.
        "--property=KillMode=process",
        "--property=OOMPolicy=continue",
        f"--property=CapabilityBoundingSet={_CAPABILITIES}",
        # What is read ahead counts as the memory of who reads it.
        "--property=MemoryMax=50%",
        "--property=TasksMax=4096",
        "--",
        *argv,
    ]


def kill_all(folder: JobFolder) -> list[int]:
    """Kill whatever is left of an agent: its control group, or what carries its folder's name.

    Of the latter, only processes of the agent's session are looked at, or root's where the agent is
    not known: anybody can put the name into an environment. What is in a group is not looked at:
    reading the environment of a process can take for ever, where it has mapped what a user serves.

    Returns:
        Process ids of the latter.
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
    """Wait until a process that is not our child has ended, or until the deadline."""
    until = time.monotonic() + deadline_s
    start = start_time(pid)
    while start_time(pid) == start is not None and time.monotonic() < until:
        time.sleep(0.005)


def age_ns() -> int:
    """Return how long ago this process was started, to about 10 ms: its interpreter's time."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    started_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns)


def _is_roots(pid: str) -> bool:
    """Whether a process's real user is root: what a user starts set-uid is not."""
    # As bytes: a carriage return in the process's name begins no line.
    with open(f"/proc/{pid}/status", "rb") as file:
        return any(line.split()[:2] == [b"Uid:", b"0"] for line in file)

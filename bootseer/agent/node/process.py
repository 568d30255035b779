"""Start the agent outside the job's processes, and find out whether it lives.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from bootseer.agent.node.job import Job, JobFolder

_BOOT = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from bootseer.agent.{module} import main; main()"
)
CONTROL_FD = 3
"""Where an agent that is not systemd's finds its control socket."""
CHANNEL_FD = 3
CONNECTION_FD = 4
"""Where a worker finds its channel, and the mount that it is to serve."""
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_HURRY_NICE = -10
_CAPABILITIES = (
    "CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_KILL CAP_SETUID CAP_SETGID "
    "CAP_SETPCAP CAP_IPC_LOCK CAP_SYS_CHROOT CAP_SYS_ADMIN CAP_SYS_NICE CAP_SYS_PTRACE "
    "CAP_SYS_RESOURCE"
)
"""Those that the broker keeps in any case, see c_ext/privilege.c."""
_STARTING_S = 10.0
"""A folder younger than this may belong to an agent that is only starting."""
TAG = "BOOTSEER_JOB_DIR"
"""Environment variable that marks every process of an agent with its job's folder."""


def command(module: str, *args: str) -> list[str]:
    """Build the command line that runs ``bootseer.agent.MODULE`` with what this process imports.

    That is this package's folder and, before it, what the entry script was installed with.
    """
    package = os.path.abspath(__file__).removesuffix("/bootseer/agent/node/process.py")
    sites = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    path = ":".join(dict.fromkeys([package, *sites]))
    return [sys.executable, "-ISB", "-c", _BOOT.format(module=module), path, *args]


def environment(folder: JobFolder) -> dict[str, str]:
    """Build the environment of all the agent's processes; nothing of the caller's is in it."""
    return {"PATH": _PATH, "LANG": "C.UTF-8", TAG: folder.path}


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
    if under_systemd():
        argv = _as_unit(folder, mode, argv)
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


def spawn_detached(module: str, *args: str) -> None:
    """Run ``bootseer.agent.MODULE`` as root in a session of its own, which nobody waits for.

    Raises:
        OSError: it cannot be started.
    """
    null = os.open(os.devnull, os.O_RDWR)
    try:
        argv = command(module, *args)
        os.posix_spawn(
            argv[0],
            argv,
            {"PATH": _PATH, "LANG": "C.UTF-8"},
            file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in range(3)],
            setsid=True,
        )
    finally:
        os.close(null)


def spawn_worker(
    folder: JobFolder, job: Job, role: str, connection: int | None = None
) -> tuple[int, socket.socket]:
    """Start a worker as a process of its own; returns its process id and our end of its channel.

    Args:
        folder, job: the job and its folder.
        role: see `bootseer.agent.workers.base`.
        connection: a descriptor for it to have as well; stays the caller's.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        # By way of high numbers: either may have the number that the other is to get.
        actions = [(_high(theirs.fileno()), CHANNEL_FD)]
        if connection is not None:
            actions.append((_high(connection), CONNECTION_FD))
        numbers = map(str, (job.uid, job.gid, os.getpid()))
        argv = command("workers.base", role, job.user, *numbers)
        pid = os.posix_spawn(
            argv[0],
            argv,
            environment(folder),
            file_actions=[(os.POSIX_SPAWN_DUP2, *action) for action in actions],
        )
    for high, _ in actions:
        os.close(high)
    return pid, ours


def _high(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, CONNECTION_FD + 1)


def fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a copy of this process, which ends with it; returns the copy's process id.

    Only while this process has one thread, and that is its first: the copy may ask to die with it.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 (the copy must never get back into the caller's code)
            import traceback  # only now: the hook path does not need it

            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def leave(code: int) -> NoReturn:
    """End this process at once, whatever its threads are doing.

    Otherwise Python ends those that were left behind in a call of a store, amid foreign code: that
    aborts the process.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed from the start
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    os._exit(code)


def hurry() -> None:
    """Give this process and those it starts more of the processor, until `take_time`.

    The agent has a tenth of a second of imports before it works, and Slurm launches the job
    beside it: without this they take turns, and the job's own start waits longer.
    """
    with suppress(OSError):  # no right to it inside some containers
        os.setpriority(os.PRIO_PROCESS, 0, _HURRY_NICE)


def take_time() -> None:
    """Take the processor as everyone does; for the calling thread and those it starts."""
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))


def under_systemd() -> bool:
    """Whether this node's services are systemd's."""
    return os.path.isdir("/run/systemd/system")


def _as_unit(folder: JobFolder, mode: str, argv: list[str]) -> list[str]:
    job_id = os.path.basename(folder.path)
    return [
        "/usr/bin/systemd-run",
        "--quiet",
        "--collect",
        "--no-block",
        # A job that is requeued may find the unit of its first start still ending.
        f"--unit=bootseer-{mode}-{job_id}-{time.time_ns()}",
        "--slice=bootseer.slice",
        f"--description=BootSeer agent of job {job_id}",
        f"--setenv={TAG}={folder.path}",
        "--setenv=LANG=C.UTF-8",
        f"--property=StandardOutput=append:{folder.path}/agent.log",
        f"--property=StandardError=append:{folder.path}/agent.log",
        # Who serves the image outlives an agent that dies: the job goes on. The epilog ends both.
        "--property=KillMode=process",
        "--property=OOMPolicy=continue",
        f"--property=CapabilityBoundingSet={_CAPABILITIES}",
        # What is read ahead counts as the memory of who reads it.
        "--property=MemoryMax=50%",
        "--property=TasksMax=4096",
        "--",
        *argv,
    ]


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


def _mark(pid: int) -> dict[str, Any]:
    return {"pid": pid, "start": _start_time(pid)}


def _servers(folder: JobFolder) -> list[Any]:
    servers = (folder.read("server.json") or {}).get("servers")
    return servers if isinstance(servers, list) else []


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


def _living(mark: Any) -> int | None:
    if not isinstance(mark, dict):
        return None
    pid, start = mark.get("pid"), mark.get("start")
    if isinstance(pid, int) and pid > 1 and start is not None and _start_time(pid) == start:
        return pid
    return None


def kill_all(folder: JobFolder) -> list[int]:
    """Kill whatever is left of an agent: its process, and those that carry its folder's name.

    Only root's processes and those of the agent's session, its workers, are looked at: anybody can
    put the name into an environment, and reading a hostile process's can take for ever.

    Returns:
        Process ids that were killed.
    """
    mark = f"{TAG}={folder.path}".encode()
    session = str((folder.read("process.json") or {}).get("pid"))
    killed = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if _fields(entry)[3] != session and not _is_roots(entry):
                continue
            with open(f"/proc/{entry}/environ", "rb") as file:
                marked = mark in file.read(65536).split(b"\0")
            if marked:
                os.kill(int(entry), signal.SIGKILL)
                killed.append(int(entry))
        except OSError:
            continue  # gone meanwhile
    return killed


def await_end(pid: int, deadline_s: float) -> bool:
    """Wait until a process that is not our child has ended; False when the deadline came first."""
    until = time.monotonic() + deadline_s
    start = _start_time(pid)
    while _start_time(pid) == start is not None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.005)
    return True


def age_ns() -> int:
    """Return how long ago this process was started, to about 10 ms: its interpreter's time."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    started_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns)


def _start_time(pid: int) -> str | None:
    """Return a process's start time, which tells it from a later one with the same id."""
    try:
        fields = _fields(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _fields(pid: int | str) -> list[str]:
    """Return what /proc/PID/stat says after the name, which may hold anything: state first."""
    with open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _is_roots(pid: str) -> bool:
    """Whether a process's real user is root: what a user starts set-uid is not."""
    # As bytes: a carriage return in the process's name begins no line.
    with open(f"/proc/{pid}/status", "rb") as file:
        return any(line.split()[:2] == [b"Uid:", b"0"] for line in file)

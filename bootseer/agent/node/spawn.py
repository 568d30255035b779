"""Start the processes of a job's agent.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

from bootseer.agent.node.job import Job, JobFolder

_BOOT = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from bootseer.agent.{module} import main; main()"
)
CONTROL_FD = 3
"""The agent's descriptor of its control socket."""
CHANNEL_FD = 3
CONNECTION_FD = 4
"""A worker's descriptors of its channel, and of the mount that it serves."""
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
TAG = "BOOTSEER_JOB_DIR"
"""Environment variable that marks every process of an agent with its job's folder."""


def command(module: str, *args: str) -> list[str]:
    """Return the command line that runs ``bootseer.agent.MODULE`` with this process's imports.

    Its import path is this package's folder, preceded by the entry script's path.
    """
    package = os.path.abspath(__file__).removesuffix("/bootseer/agent/node/spawn.py")
    sites = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    path = ":".join(dict.fromkeys([package, *sites]))
    return [sys.executable, "-ISB", "-c", _BOOT.format(module=module), path, *args]


def environment(folder: JobFolder) -> dict[str, str]:
    """Return the environment of the agent's processes, with none of the caller's variables."""
    return {"PATH": _PATH, "LANG": "C.UTF-8", TAG: folder.path}


def spawn_detached(module: str, *args: str) -> None:
    """Run ``bootseer.agent.MODULE`` as root in its own session, without waiting.

    Raises:
        OSError: the process cannot be started.
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
    """Start a worker process; returns its process id and our end of its channel.

    Args:
        folder, job: the job and its folder.
        role: see `bootseer.agent.workers.base`.
        connection: another descriptor to pass on; stays the caller's.

    Raises:
        OSError: the process cannot be started.
    """
    numbers = map(str, (job.uid, job.gid, os.getpid()))
    argv = command("workers.base", role, job.user, *numbers)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ExitStack() as opened, ExitStack() as kept:
        kept.enter_context(ours)
        given = {opened.enter_context(theirs).fileno(): CHANNEL_FD}
        if connection is not None:
            given[connection] = CONNECTION_FD
        actions = []
        for fd, wanted in given.items():
            # Through high numbers: either may have the number that the other shall get.
            high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, CONNECTION_FD + 1)
            opened.callback(os.close, high)
            actions.append((os.POSIX_SPAWN_DUP2, high, wanted))
        pid = os.posix_spawn(argv[0], argv, environment(folder), file_actions=actions)
        kept.pop_all()
    return pid, ours


def fork(work: Callable[[], None]) -> int:
    """Fork a process that runs ``work`` and exits; returns its process id.

    Call it only while this process has its first thread alone: the child may be set to die with it.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 (the copy must never get back into the caller's code)
            import traceback  # imported only now: the hook path does not need it

            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def leave(code: int) -> NoReturn:
    """Exit this process immediately, without waiting for its threads.

    Otherwise Python ends threads inside native code of a store's client, which aborts the process.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed from the start
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    os._exit(code)


def reset_priority() -> None:
    """Return the calling thread, and threads it starts later, to normal priority."""
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))


def start_time(pid: int) -> str | None:
    """Return a process's start time, which tells it from a later one with the same id."""
    try:
        fields = status_fields(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def status_fields(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, state first."""
    with open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()

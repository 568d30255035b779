"""Start mksquashfs for a worker, which must not run programs itself.

A small process is forked before the worker is confined; it reads none of the user's data. The
program is confined more tightly: no sockets, no processes, and it ends with the starter. The job's
user cannot trace the program: its file is executable but not readable, and the kernel protects the
memory of such programs.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

from bootseer.agent.node import spawn
from bootseer.agent.node.privileges import Confinement, confine, confine_system_calls, die_with
from bootseer.agent.workers.redirect_output import direct_output
from bootseer.errors import Unavailable
from bootseer.ipc.descriptors import receive
from bootseer.ipc.typed_json import from_object, read_object
from bootseer.squashfs.mksquashfs import (
    ENVIRONMENT,
    MAX_FDS,
    MAX_REQUEST_BYTES,
    ConfinedStart,
    Program,
    Start,
    StartRequest,
    find_program,
)

_MFD_EXEC = 0x10
_RUN_ONLY = 0o111
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_NOT_FOUND = 127
_SUID_DUMPABLE = "/proc/sys/fs/suid_dumpable"
_TRACEABLE = "1"


def start(user: str, uid: int, gid: int) -> tuple[Start, int | None]:
    """Fork the starter; call it as root, while this process has one thread.

    Args:
        user, uid, gid: the user whose rights the starter takes on.

    Returns:
        A function that starts mksquashfs, and the descriptor of its socket. If mksquashfs cannot be
        run, the function raises Unavailable and the descriptor is None.
    """
    try:
        _check_protection()
        program = _copy_program(find_program())
    except Unavailable as error:
        return _refusal(str(error)), None
    except OSError as error:
        return _refusal(f"mksquashfs cannot be copied: {error.strerror}"), None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()

    def work() -> None:
        ours.close()
        keep = [theirs.fileno(), program]
        with suppress(ProcessLookupError):  # the worker has ended, so this process is not needed
            confine(user, uid, gid, parent, keep=keep, profile=Confinement.EXEC | Confinement.FORK)
            direct_output(None)
            _serve(theirs, program)

    spawn.fork(work)
    theirs.close()
    os.close(program)
    confined = ConfinedStart(ours)
    return confined, confined.fileno()


def _refusal(why: str) -> Start:
    def refuse(*request: object) -> Program:
        raise Unavailable(why)

    return refuse


def _check_protection() -> None:
    """Check that users cannot trace programs that they cannot read.

    Raises:
        Unavailable: they can.
    """
    with open(_SUID_DUMPABLE) as file:
        if file.read().strip() == _TRACEABLE:
            raise Unavailable(
                "users can trace mksquashfs on this node: ask your administrator to set the "
                "sysctl fs.suid_dumpable to 0 or 2"
            )


def _copy_program(path: str) -> int:
    """Copy a program into memory; users other than root can execute but not read it.

    Raises:
        OSError: the program cannot be read or copied.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        copy = os.memfd_create("mksquashfs", flags | _MFD_EXEC)
    except OSError:  # before Linux 6.3 the flag does not exist, and all memory files are executable
        copy = os.memfd_create("mksquashfs", flags)
    try:
        with open(path, "rb") as file:
            while os.sendfile(copy, file.fileno(), None, 1 << 30):
                pass
        os.fchmod(copy, _RUN_ONLY)
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(copy)
        raise
    return copy


def _serve(requests: socket.socket, program: int) -> None:
    """Run the program once per request, until the worker has gone."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    while True:
        body, fds = receive(requests, MAX_REQUEST_BYTES, MAX_FDS)
        if not body:
            return
        request = from_object(read_object(body, "request"), StartRequest, "request")
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _run(program, *request, fds[1:], parent)
            finally:
                os._exit(_NOT_FOUND)
        for fd in fds[1:]:
            os.close(fd)
        with socket.socket(fileno=fds[0]) as connection:
            status = _await_end(pid, connection, woken)
            with suppress(OSError):  # the worker no longer waits
                connection.send(str(status).encode())


def _run(
    program: int, arguments: Sequence[str], numbers: Sequence[int], fds: Sequence[int], parent: int
) -> None:
    """Execute the program; ``fds`` begins with its standard input and error.

    All other descriptors are closed on exec.
    """
    die_with(parent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    targets = [0, 2, *numbers]
    first = max(targets) + 1
    program, *sources = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first) for fd in (program, *fds))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for source, target in zip(sources, targets, strict=True):
        os.dup2(source, target)
    confine_system_calls(Confinement.EXEC)
    os.execve(program, ["mksquashfs", *arguments], ENVIRONMENT)


def _await_end(pid: int, connection: socket.socket, woken: int) -> int:
    """Wait for the program's end, and kill it when the other end of the connection closes.

    Returns:
        Its exit status, or the negative number of a signal.
    """
    ended = 0
    while not ended:
        readable, _, _ = select.select([connection.fileno(), woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
        is_given_up = connection.fileno() in readable
        if is_given_up:
            os.kill(pid, signal.SIGKILL)
        ended, status = os.waitpid(pid, 0 if is_given_up else os.WNOHANG)
    return os.waitstatus_to_exitcode(status)

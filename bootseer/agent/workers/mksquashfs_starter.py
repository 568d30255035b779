"""Start mksquashfs for a worker, which may not run programs itself.

A small process that is forked before the worker is confined; it reads nothing of the user's. The
program is confined more tightly than the process is: no sockets, no processes, and the starter's
end is its own. The job's user cannot trace it: they may run, not read it, and the kernel protects
the memory of such programs.
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
    """Start the process; only as root, while this process has one thread.

    Args:
        user, uid, gid: whose rights it takes on.

    Returns:
        What starts mksquashfs, and the descriptor of the socket that it needs; None if it needs
        none, because mksquashfs cannot be run: then it raises Unavailable.
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
        with suppress(ProcessLookupError):  # the worker has ended, and nobody needs this one
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
    """Check that the kernel closes programs that their user cannot read.

    Raises:
        Unavailable: it does not.
    """
    with open(_SUID_DUMPABLE) as file:
        if file.read().strip() == _TRACEABLE:
            raise Unavailable(
                "users can trace mksquashfs on this node: ask your administrator to set the "
                "sysctl fs.suid_dumpable to 0 or 2"
            )


def _copy_program(path: str) -> int:
    """Copy a program into memory, where others than root can run it and not read it.

    Raises:
        OSError: it cannot be read or copied.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        copy = os.memfd_create("mksquashfs", flags | _MFD_EXEC)
    except OSError:  # before Linux 6.3 there is no such flag, and all can be run
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
    """Run the program for one request after another, until the worker has gone."""
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
            with suppress(OSError):  # nobody waits
                connection.send(str(status).encode())


def _run(
    program: int, arguments: Sequence[str], numbers: Sequence[int], fds: Sequence[int], parent: int
) -> None:
    """Become the program; standard input and error come first among the descriptors.

    All others are closed by its start.
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

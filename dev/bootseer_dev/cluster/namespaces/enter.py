"""How a command gets into a machine of the cluster."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bootseer.errors import BootseerError
from bootseer_dev.cluster.namespaces import syscalls

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CommandFailed(BootseerError):
    """A command inside the cluster ended with another exit code than 0.

    Attributes:
        result: the exit code and what the command wrote.
    """

    def __init__(self, where: str, result: subprocess.CompletedProcess[str]) -> None:
        """Word the error: command, machine, exit code and what was written."""
        self.result = result
        command = " ".join(map(str, result.args))
        output = "\n".join(filter(None, (result.stdout, result.stderr))).rstrip()
        super().__init__(f"`{command}` on {where} ended with {result.returncode}:\n{output}")


def command_line(
    pid: int,
    argv: Sequence[str],
    *,
    user: str,
    home: str,
    cwd: str | None,
    env: Mapping[str, str] | None,
    rootless: bool,
) -> list[str]:
    """Wrap `argv` so that it runs in the namespaces of process `pid`, as the user.

    The environment starts empty: HOME, USER, LOGNAME, SHELL, LANG, PATH, and `env`. When the
    wrapper dies the command gets SIGTERM, because a signal to the wrapper would reach nobody else.

    Args:
        pid: a process of the machine, as the host counts.
        argv: the command and its arguments.
        user: a user known inside the cluster.
        home: the user's home directory inside the cluster.
        cwd: the working directory, by default the home directory.
        env: variables to add or to replace.
        rootless: whether the machine is in a user namespace.
    """
    variables = {
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "PATH": PATH,
        **(env or {}),
    }
    # In a user namespace there are no groups but the caller's, and they can't be set.
    groups = "--keep-groups" if rootless else "--init-groups"
    return [
        *_nsenter(pid, ("mount", "net", "uts", "ipc", "pid"), rootless=rootless),
        *("setpriv", f"--reuid={user}", f"--regid={user}", groups, "--pdeathsig=TERM", "--"),
        *("env", "--ignore-environment", f"--chdir={cwd or home}"),
        *(f"{key}={value}" for key, value in variables.items()),
        *argv,
    ]


def connect(pid: int, host: str, port: int, *, rootless: bool, timeout_s: float) -> socket.socket:
    """Open a TCP connection from the network namespace of process `pid`.

    A socket stays in the namespace it was made in, and only a process of its own can go there: a
    user namespace is entered for good.

    Args:
        pid: a process of the machine, as the host counts.
        host: an address.
        port: of TCP.
        rootless: whether the machine is in a user namespace.
        timeout_s: of the connection's start, and then of each call of the socket.

    Raises:
        OSError: nobody listens there.
    """
    dial = [sys.executable, "-I", "-S", str(Path(__file__).with_name("dial.py"))]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [*_nsenter(pid, ("net",), rootless=rootless), *dial, host, str(port), str(timeout_s)]
        done = subprocess.run(
            argv, stdin=theirs.fileno(), stderr=subprocess.PIPE, text=True, check=False
        )
        theirs.close()
        said, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
    if descriptors:
        made = socket.socket(fileno=descriptors[0])
        # The dialler's limit made the connection non-blocking, and Python must know of that.
        made.settimeout(timeout_s)
        return made
    code = int(said or errno.EIO)
    raise OSError(code, done.stderr.strip() or os.strerror(code), f"{host}:{port}")


def _nsenter(pid: int, kinds: tuple[str, ...], *, rootless: bool) -> list[str]:
    user = ("--user", "--preserve-credentials") if rootless else ()
    return ["nsenter", f"--target={pid}", *user, *(f"--{kind}" for kind in kinds), "--"]


@contextmanager
def network(pid: int) -> Iterator[None]:
    """Have the calling thread in the network namespace of process `pid` within the block.

    Raises:
        OSError: the kernel refused.
    """
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            syscalls.setns(other, syscalls.CLONE_NEWNET)
        finally:
            os.close(other)
        try:
            yield
        finally:
            syscalls.setns(own, syscalls.CLONE_NEWNET)
    finally:
        os.close(own)

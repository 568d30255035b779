"""How a command gets into a machine of the cluster."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bootseer.errors import BootseerError
from bootseer.testing.cluster import syscalls

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
    return [
        *("nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--"),
        *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"),
        *("--pdeathsig=TERM", "--"),
        *("env", "--ignore-environment", f"--chdir={cwd or home}"),
        *(f"{key}={value}" for key, value in variables.items()),
        *argv,
    ]


def connect(pid: int, host: str, port: int, timeout_s: float = 5) -> socket.socket:
    """Open a TCP connection from the network namespace of process `pid`.

    A socket stays in the namespace it was made in, and only a thread of its own enters that.

    Raises:
        OSError: nobody listens there.
    """

    def work() -> socket.socket:
        with network(pid):
            return socket.create_connection((host, port), timeout_s)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


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

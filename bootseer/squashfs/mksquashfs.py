"""Start mksquashfs, directly or through a starter process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from bootseer.errors import Unavailable
from bootseer.ipc.typed_json import encode

ENVIRONMENT = {"LC_ALL": "C"}  # and no SOURCE_DATE_EPOCH, which would change the files' times
MAX_REQUEST_BYTES = 16 * 1024
MAX_FDS = 8
"""Limit of a request's descriptors: connection, standard input and error, inherited ones."""


class Program(Protocol):
    """A running mksquashfs."""

    def wait(self) -> int:
        """Wait for its end; returns its exit status, or the negative number of a signal."""

    def kill(self) -> None:
        """Kill it if it has not ended; call `wait` afterwards."""


Start = Callable[[Sequence[str], int, int, Sequence[int]], Program]
"""Starts mksquashfs with arguments, standard input, standard error, and descriptors that it
inherits under the same numbers. All stay the caller's. Raises Unavailable if starting fails."""


def find_program() -> str:
    """Return the path of mksquashfs.

    Raises:
        Unavailable: it is not installed.
    """
    search = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    program = shutil.which("mksquashfs", path=search)
    if program is None:
        raise Unavailable("mksquashfs not found: install the package squashfs-tools")
    return program


def start_plainly(arguments: Sequence[str], stdin: int, stderr: int, fds: Sequence[int]) -> Program:
    """Start mksquashfs as a child with this process's rights; see `Start`."""
    program = find_program()
    try:
        return subprocess.Popen(
            [program, *arguments],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=fds,
            env=ENVIRONMENT,
            start_new_session=True,  # this process handles Ctrl-C
        )
    except OSError as error:
        raise Unavailable(f"{program} cannot be run: {error.strerror}") from error


class StartRequest(NamedTuple):
    """A request to a starter.

    Its descriptors are a socket for the exit status, standard input and error, and one for each
    number.

    Attributes:
        arguments: arguments of mksquashfs.
        numbers: numbers of the other descriptors in mksquashfs.
    """

    arguments: list[str]
    numbers: list[int]


class ConfinedStart:
    """Starts mksquashfs through `bootseer.agent.workers.mksquashfs_starter`."""

    def __init__(self, starter: socket.socket) -> None:
        """Take over a socket to the starter."""
        self._starter = starter

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._starter.fileno()

    def __call__(
        self, arguments: Sequence[str], stdin: int, stderr: int, fds: Sequence[int]
    ) -> Program:
        """Start mksquashfs; see `Start`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = encode(StartRequest(list(arguments), list(fds)))
        with theirs:
            try:
                given = [theirs.fileno(), stdin, stderr, *fds]
                socket.send_fds(self._starter, [request], given)
            except OSError as error:
                ours.close()
                raise Unavailable(f"mksquashfs cannot be run: {error.strerror}") from error
        return _ConfinedProgram(ours)


class _ConfinedProgram:
    """A mksquashfs that is another process's child."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._status: int | None = None

    def wait(self) -> int:
        if self._status is None:
            with self._connection:
                answer = self._connection.recv(16)
            self._status = int(answer) if answer else -signal.SIGKILL  # it died with the starter
        return self._status

    def kill(self) -> None:
        if self._status is None:
            with suppress(OSError):  # the starter has gone
                self._connection.shutdown(socket.SHUT_WR)

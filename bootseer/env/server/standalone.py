"""The server where there is no agent: a process of the caller's, which unpacks and captures."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from bootseer import config as settings
from bootseer.config import User
from bootseer.core.event import StageReport
from bootseer.env.client.messages import Hello, Refused
from bootseer.env.server.connection import ServerConnection
from bootseer.env.server.session import serve
from bootseer.env.server.session_context import SessionContext, make_context
from bootseer.errors import BootseerError, Closed, Unavailable

_BOOT = (
    "import sys; sys.path[:0] = sys.argv[2:]; "
    "from bootseer.env.server.standalone import main; main()"
)


def start() -> socket.socket:
    """Start a server; returns a socket to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-ISB", "-c", _BOOT, str(theirs.fileno()), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the command's ends with the command
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is the command's; this ends with the conversation
        )
    return ours


def main() -> None:
    """Serve one client on the descriptor that the command line names."""

    async def run(end: socket.socket) -> None:
        connection = ServerConnection(end)
        with suppress(Closed):
            try:
                here = _context()
            except BootseerError as error:
                await connection.send(Refused(str(error), type(error).__name__))
            else:
                await connection.send(Hello(locks=True))
                await serve(connection, here)

    with socket.socket(fileno=int(sys.argv[1])) as end:
        trio.run(run, end)


def _context() -> SessionContext:
    """Make the context of this process's user and node.

    Raises:
        BootseerError: the settings are wrong, or the user has no name.
    """
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise Unavailable(f"user {os.getuid()} has no name here") from error
    config = settings.load()
    user = User(entry.pw_name, entry.pw_uid, entry.pw_dir)
    return make_context(config, user, os.uname().nodename, 1, _stage, None)


@asynccontextmanager
async def _stage(name: str) -> AsyncIterator[StageReport]:
    """Report nothing: what goes wrong is reported to the client."""
    yield StageReport(time.time_ns())

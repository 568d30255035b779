"""Processes for simulations of environments: `env run` on a node, and who has the store there.

Both are real processes that can be killed. A node is a mount namespace with a folder of its own at
a path that is the same on all of them; nodes may share that folder.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import trio

from bootseer.core.event import StageReport
from bootseer.env.client.messages import Hello
from bootseer.env.server import session
from bootseer.env.server.connection import ServerConnection
from bootseer.env.server.session_context import SessionContext
from bootseer.errors import Closed
from bootseer.store import key_lease
from bootseer.store.local.store import LocalStore
from bootseer.testing.fault_store import FlakyStore

_FAILS = 0.3
"""Of the calls while the store is away."""
_COMMAND = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from bootseer.env.client.options import RunOptions
from bootseer.env.client.run import run

def say(text):
    print(text, file=sys.stderr, flush=True)

end = socket.socket(fileno=int(sys.argv[2]))
sys.exit(run(RunOptions(sys.argv[4:], [sys.argv[3]], waits=True), lambda: end, os.environ, say))
"""
_SERVERS = """
import socket, sys
from bootseer_dev.actors.environment import fork_servers

fork_servers(socket.socket(fileno=int(sys.argv[1])))
"""
_ON_NODE = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def serve(end: socket.socket, folder: Path, node: str, seed: int, claim_s: float) -> None:
    """Have the store's side of a conversation, in a process of its own.

    Args:
        end: of the conversation.
        folder: with `store`, `scratch` and, while the store fails, `away`.
        node: name of the node.
        seed: of which calls fail then.
        claim_s: how long a claim lasts without being kept up.
    """
    faulthandler.register(signal.SIGUSR1, _trace_of(folder, seed).open("w"))
    os.environ["TMPDIR"] = str(folder / "scratch")
    key_lease.LASTS_S, key_lease._RENEW_S = claim_s, claim_s / 6
    key_lease._RELEASE_S = max(key_lease._RELEASE_S, claim_s)  # where all is well, it is let go
    session._PAUSES_S = (0.05, 0.05)
    chance = random.Random(seed)
    is_late = chance.random() < 0.5

    def fails(count: int, operation: str, name: str) -> bool:
        return (folder / "away").exists() and chance.random() < _FAILS

    context = SessionContext(
        store=FlakyStore(LocalStore(folder / "store"), fails, late=is_late),
        user="user",
        home="/home/user",
        node=node,
        nodes=1,
        shared=(),
        scratch=str(folder / "scratch"),
        stage=_stage,
        mounter=None,
        keep_days=0,
        quota_bytes=0,
    )

    async def run() -> None:
        talk = ServerConnection(end)
        with suppress(Closed):
            await talk.send(Hello(locks=True))
            await session.serve(talk, context)
        talk.close()

    trio.run(run)


def _trace_of(folder: Path, seed: int) -> Path:
    return folder / f"trace-{seed}"


@asynccontextmanager
async def _stage(name: str) -> AsyncIterator[StageReport]:
    yield StageReport(time.time_ns())


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class Servers:
    """A process that forks those who have the store: a new interpreter would take half a second.

    A fork of the test's own process would have what the tests before have left, too: locks of
    threads, and objects that wait for something when they are collected.
    """

    def __init__(self) -> None:
        """Start the process."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _SERVERS, str(fd)],
                stdin=subprocess.DEVNULL,
                pass_fds=[fd],
            )

    def start(self, end: socket.socket, *rest: object) -> int:
        """Fork one, with the arguments of `serve`; returns its pidfd, which the caller closes."""
        message = json.dumps(rest, default=str).encode()
        socket.send_fds(self._socket, [message], [end.fileno()])
        _, fds, _, _ = socket.recv_fds(self._socket, 1, 1)
        return fds[0]

    def close(self) -> None:
        """End the process; those that it has forked stay."""
        self._socket.close()
        self._process.wait()


def fork_servers(end: socket.socket) -> None:
    """Fork who has the store for each message, and send its pidfd, until nobody is there."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        message, fds, _, _ = socket.recv_fds(end, 4096, 1)
        if not message:
            return
        with socket.socket(fileno=fds[0]) as conversation:
            pid = os.fork()
            if pid == 0:
                end.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                folder, *rest = json.loads(message)
                serve(conversation, Path(folder), *rest)
                return
        pidfd = os.pidfd_open(pid)
        socket.send_fds(end, [b"."], [pidfd])
        os.close(pidfd)


class EnvRun:
    """An `env run` on a node, with its own process that has the store."""

    def __init__(
        self,
        servers: Servers,
        folder: Path,
        node: Path,
        place: Path,
        command: list[str],
        *,
        seed: int,
        claim_s: float,
    ):
        """Start both.

        Args:
            servers: starts who has the store.
            folder: see `serve`.
            node: what the node has at ``place``; its name is the node's.
            place: the folder with the target, on every node.
            command: that installs to its folder "target".
            seed: see `serve`.
            claim_s: see `serve`.
        """
        self.node = node
        self._trace = _trace_of(folder, seed)
        self.said = (folder / f"said-{seed}").open("w+b")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._server = servers.start(theirs, folder, node.name, seed, claim_s)
            fd = ours.fileno()
            package = Path(session.__file__).parents[3]
            argv = ["unshare", "--mount", "sh", "-c", _ON_NODE, "sh", str(node), str(place)]
            argv += [sys.executable, "-I", "-S", "-c", _COMMAND, str(package), str(fd)]
            self._client = subprocess.Popen(
                [*argv, str(place / "target"), *command],
                stdin=subprocess.DEVNULL,
                stdout=self.said,
                stderr=self.said,
                cwd="/",
                pass_fds=[fd],
                start_new_session=True,
            )

    def status(self) -> int | None:
        """Return the exit status, None as long as it runs."""
        return self._client.poll()

    def kill(self) -> None:
        """Kill it, and its command before: who waits for the target begins at once."""
        with suppress(psutil.NoSuchProcess):
            client = psutil.Process(self._client.pid)
            client.suspend()
            command = client.children(recursive=True)
            for process in command:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            while any(process.is_running() and not _is_dead(process) for process in command):
                time.sleep(0.001)
            client.kill()
        self._client.wait()

    def kill_server(self) -> None:
        """Kill who has the store."""
        self._signal_server(signal.SIGKILL)

    def end(self, patience_s: float) -> tuple[int, str]:
        """Wait until both have ended; returns exit status and what was said.

        Raises:
            AssertionError: one of them does not end.
        """
        try:
            status = self._client.wait(patience_s)
            assert self._server_ends(patience_s), self._where_server_is()
        except subprocess.TimeoutExpired:
            raise AssertionError("env run does not end") from None
        finally:
            self.kill()
            self.kill_server()
            self._server_ends(patience_s)
            os.close(self._server)
            self.said.seek(0)
            text = self.said.read().decode()
            self.said.close()
        return status, text

    def _signal_server(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._server, number)

    def _server_ends(self, patience_s: float) -> bool:
        return bool(select.select([self._server], [], [], patience_s)[0])

    def _where_server_is(self) -> str:
        self._signal_server(signal.SIGUSR1)
        time.sleep(1)
        return f"who has the store does not end:\n{self._trace.read_text()}"

"""The client's end of the conversation with the server of `bootseer env run`.

The server has the store: `bootseer.env.server.session`.
"""

from __future__ import annotations

import array
import socket
import time
from contextlib import suppress
from typing import Callable, Sequence

from bootseer.env.client.messages import (
    FROM_CLIENT,
    FROM_SERVER,
    CaptureDone,
    CommandEnded,
    FromClient,
    FromServer,
    Hello,
    KeepWaiting,
    Locks,
    Notice,
    Refused,
    Request,
    Restored,
    RestoreProgress,
    RunCommand,
)
from bootseer.env.client.terminal import ProgressLine
from bootseer.errors import Corrupt, Unavailable

_SILENCE_S = 90.0
"""Longest wait for a message from the server; the command runs then."""
_STOP_S = 10.0
"""Longest wait until the server has stopped work in the targets."""
_MAX_LINE_BYTES = 1 << 20

Say = Callable[[str], None]
"""Takes lines for the user."""
Connect = Callable[[], socket.socket]
"""Returns a socket to a server; raises OSError if there is none."""


class ServerLost(Exception):
    """The server does not answer any more, or not with what was asked for."""


def connect_agent(path: str) -> socket.socket:
    """Connect to the agent of a job, for one `env run`.

    Args:
        path: of its control socket.

    Raises:
        OSError: nobody listens there.
    """
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.settimeout(_SILENCE_S)
        end.connect(path)
        end.sendall(b'{"op": "env"}\n')
    except OSError:
        end.close()
        raise
    return end


def ask_agent_for_image(path: str) -> str:
    """Ask the agent of a job for the digest of the caller's image, "" for none.

    Args:
        path: of its control socket.

    Raises:
        Unavailable: it does not answer.
    """
    try:
        with ClientConnection(connect_agent(path)) as connection:
            connection.greet()
            return connection.image
    except (OSError, ServerLost) as error:
        raise Unavailable(f"the job's agent does not answer at {path}: {error}") from error


class ClientConnection:
    """A conversation with the server; a context that ends with it.

    Attributes:
        image: digest of the client's image, "" for none or unknown.
    """

    def __init__(self, end: socket.socket) -> None:
        self.image = ""
        self._takes_locks = False
        self._socket = end
        self._socket.settimeout(_SILENCE_S)
        self._rest = b""

    def __enter__(self) -> ClientConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def greet(self) -> None:
        """Take the server's first message.

        Raises:
            ServerLost: the server does not answer.
        """
        hello = self._receive()
        if not isinstance(hello, Hello):
            raise _unexpected(hello)
        self.image = hello.image
        self._takes_locks = hello.locks

    def ask(self, request: Request, fds: Sequence[int], locks: Sequence[int]) -> None:
        """Ask for the result of a command.

        Args:
            request: for the server.
            fds: descriptors of the targets, as `Request` says.
            locks: descriptors with the locks of the targets.

        Raises:
            ServerLost: the server is not there any more.
        """
        if self._takes_locks and locks:
            self._send(Locks(), locks)
        self._send(request, fds)

    def wait_for_answer(self, say: Say) -> Restored | RunCommand:
        """Wait until the result is restored, or the command is to run.

        Args:
            say: takes what the server has to say meanwhile.

        Raises:
            ServerLost: the server does not answer.
        """
        answer = self._answer(say)
        if not isinstance(answer, (Restored, RunCommand)):
            raise _unexpected(answer)
        return answer

    def report(self, ended: CommandEnded, say: Say) -> CaptureDone | None:
        """Report the command's end, and wait until the server needs the client no longer.

        Returns:
            What is captured; None if the command failed, and nothing is.

        Raises:
            ServerLost: the server does not answer.
        """
        self._send(ended)
        if ended.status != 0:
            return None
        answer = self._answer(say)
        if isinstance(answer, RunCommand):  # the server has not understood the report
            return CaptureDone(why=answer.why)
        if not isinstance(answer, CaptureDone):
            raise _unexpected(answer)
        return answer

    def give_up(self) -> None:
        """End the conversation, and wait until the server has stopped work in the targets."""
        with suppress(OSError):
            if self._takes_locks:
                until = time.monotonic() + _STOP_S
                self._socket.shutdown(socket.SHUT_WR)
                left_s = _STOP_S
                while left_s > 0:
                    self._socket.settimeout(left_s)
                    if not self._socket.recv(65536):
                        break
                    left_s = until - time.monotonic()
        self._socket.close()

    def _answer(self, say: Say) -> FromServer:
        """Wait for an answer; show what comes before it."""
        with ProgressLine() as line:
            while True:
                message = self._receive()
                if isinstance(message, Notice):
                    say(message.text)
                elif isinstance(message, RestoreProgress):
                    line.show(message.done_bytes, message.total_bytes)
                elif not isinstance(message, KeepWaiting):
                    return message

    def _send(self, message: FromClient, fds: Sequence[int] = ()) -> None:
        data = FROM_CLIENT.encode(message) + b"\n"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._socket.sendmsg([data], rights)
            if sent < len(data):  # a server that has answered already, and closed, is no error
                self._socket.sendall(data[sent:])
        except OSError as error:
            raise ServerLost(f"lost the connection to the server: {error}") from error

    def _receive(self) -> FromServer:
        try:
            while b"\n" not in self._rest:
                part = self._socket.recv(65536)
                if not part or len(self._rest) > _MAX_LINE_BYTES:
                    raise ServerLost("lost the connection to the server")
                self._rest += part
        except socket.timeout as error:
            raise ServerLost(f"no answer within {_SILENCE_S:g} s") from error
        except OSError as error:
            raise ServerLost(f"no answer: {error}") from error
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message = FROM_SERVER.decode(line)
        except Corrupt as error:
            raise ServerLost(f"the server's answer is not understood: {error}") from error
        if isinstance(message, Refused):
            raise ServerLost(message.error)
        return message


def _unexpected(message: FromServer) -> ServerLost:
    return ServerLost(f"the server's answer does not fit the question: {type(message).__name__}")

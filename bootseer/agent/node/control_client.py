"""Talk to a job's agent over its control socket: one line of JSON each way.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from bootseer.agent.messages.control import MAX_LINE_BYTES, REQUESTS, Answer, Refusal, Request
from bootseer.errors import Corrupt, NotFound, Unavailable
from bootseer.ipc.typed_json import from_object, read_object

A = TypeVar("A", bound=Answer)
_RETRY_S = 0.005


def tell(path: str, request: Request) -> None:
    """Send a request without waiting for its answer.

    Raises:
        NotFound, Unavailable: as for `begin`.
    """
    begin(path, request).close()


def begin(path: str, request: Request) -> socket.socket:
    """Send a request without waiting for its answer; returns the connection, to be closed.

    Raises:
        NotFound: no agent listens there.
        Unavailable: the agent's queue is full.
    """
    with _socket(path) as connection:
        connection.settimeout(0)
        connection.connect(path)
        connection.sendall(REQUESTS.encode(request) + b"\n")
        return socket.socket(fileno=connection.detach())


def ask(path: str, request: Request, answer: type[A], deadline_s: float) -> A:
    """Send a request and return the answer.

    Args:
        path: path of the control socket.
        request: the request.
        answer: the type of its answer.
        deadline_s: for the whole exchange.

    Raises:
        NotFound: no agent listens there.
        ConfigError, Corrupt, Denied, UnknownImage: the agent refused this request.
        Unavailable: no answer in time, or the agent refused for another reason.
    """
    line = _exchange(path, REQUESTS.encode(request), deadline_s)
    try:
        document = read_object(line, "answer")
        if "error" not in document:
            return from_object(document, answer, "answer")
        refusal = from_object(document, Refusal, "answer")
    except Corrupt as error:
        raise Unavailable(
            "the process at the control socket sent an answer that is not an agent's"
        ) from error
    raise refusal.exception()


def _exchange(path: str, line: bytes, deadline_s: float) -> bytes:
    """Send a line and return the answer's line.

    Raises:
        NotFound, Unavailable: as for `ask`.
    """
    until = time.monotonic() + deadline_s
    answer = b""
    with _socket(path) as connection:
        try:
            connection.settimeout(max(0.001, deadline_s))
            _connect(connection, path, until)
            connection.sendall(line + b"\n")
            while not answer.endswith(b"\n"):
                connection.settimeout(max(0.001, until - time.monotonic()))
                part = connection.recv(65536)
                if not part or len(answer) > MAX_LINE_BYTES:
                    raise Unavailable("the agent closed the connection without an answer")
                answer += part
        except TimeoutError as error:
            raise Unavailable(f"no answer from the agent within {deadline_s:g} s") from error
    return answer


@contextmanager
def _socket(path: str) -> Iterator[socket.socket]:
    """Make a socket that is to be connected to an agent, and say what its errors mean."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        try:
            yield connection
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NotFound(f"no agent listens at {path}") from error
        except OSError as error:
            raise Unavailable(f"cannot talk to the agent: {error.strerror}") from error


def _connect(connection: socket.socket, path: str, until: float) -> None:
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:  # the agent's queue is full, and connect does not wait
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_S)

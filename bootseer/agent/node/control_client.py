"""Talk to a job's agent over its control socket: one line of JSON each way.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from bootseer.errors import BootseerError, ConfigError, Corrupt, Denied, NotFound, Unavailable

MAX_LINE_BYTES = 256 * 1024
_RETRY_S = 0.005
_REFUSALS: dict[str, type[BootseerError]] = {
    kind.__name__: kind for kind in (ConfigError, Corrupt, Denied)
}
"""Classes that stay what they are; all others are Unavailable to who asks."""


def tell(path: str, request: dict[str, Any]) -> None:
    """Send a request whose answer is of no interest, without waiting for the agent to take it.

    Raises:
        NotFound: nobody listens there.
        Unavailable: the agent's queue is full.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(0)
        try:
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NotFound(f"no agent listens at {path}") from error
        except OSError as error:
            raise Unavailable(f"cannot talk to the agent: {error.strerror}") from error


def ask(path: str, request: dict[str, Any], deadline_s: float) -> Any:
    """Send a request and return the answer.

    Args:
        path: of the socket.
        request: with the operation under "op".
        deadline_s: for the whole exchange.

    Raises:
        NotFound: nobody listens there.
        ConfigError, Corrupt, Denied: the agent refused this request as it is.
        Unavailable: no answer in time, or the agent refused for another reason.
    """
    until = time.monotonic() + deadline_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        answer = b""
        try:
            connection.settimeout(max(0.001, deadline_s))
            _connect(connection, path, until)
            connection.sendall(json.dumps(request).encode() + b"\n")
            while not answer.endswith(b"\n"):
                connection.settimeout(max(0.001, until - time.monotonic()))
                part = connection.recv(65536)
                if not part or len(answer) > MAX_LINE_BYTES:
                    raise Unavailable("the agent closed the connection without an answer")
                answer += part
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NotFound(f"no agent listens at {path}") from error
        except TimeoutError as error:
            raise Unavailable(f"no answer from the agent within {deadline_s:g} s") from error
        except OSError as error:
            raise Unavailable(f"cannot talk to the agent: {error.strerror}") from error
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise Unavailable("the answer is not an agent's") from error
    if not isinstance(document, dict):
        raise Unavailable("the answer is not an agent's")
    if "error" in document:
        kind = _REFUSALS.get(str(document.get("kind")), Unavailable)
        raise kind(f"the agent refused: {document['error']}")
    return document


def _connect(connection: socket.socket, path: str, until: float) -> None:
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:  # the agent's queue is full, and such a socket does not wait
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_S)

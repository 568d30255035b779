"""The agent's control socket: who may connect, and one request and answer per connection."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import trio

from bootseer.agent.node.control_client import MAX_LINE_BYTES
from bootseer.agent.supervisor.containment import contain
from bootseer.errors import BootseerError

_MAX_CONNECTIONS = 64
_REQUEST_S = 5.0
_ANSWER_S = 5.0
_RETRY_S = 0.1
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Peer(NamedTuple):
    """Who makes a request.

    Attributes:
        uid, pid: of the process that has connected.
        connection: returns the connection, for who goes on talking on it.
    """

    uid: int
    pid: int
    connection: Callable[[], socket.socket]


Handler = Callable[[dict[str, Any], Peer], Awaitable[dict[str, Any] | None]]
Answered = Callable[[dict[str, Any]], None]


async def serve(listener: socket.socket, uid: int, handle: Handler, answered: Answered) -> None:
    """Answer requests until cancelled.

    The user's connections are limited; root's are not, or a user who opens many could keep the
    prolog and epilog out.

    Args:
        listener: from `control_socket.listen`.
        uid: the user who may connect besides root.
        handle: takes a request and who makes it, returns the answer; None if it has given one.
        answered: takes each answer once it has been sent, or nobody was there to take it.
    """
    server = trio.socket.from_stdlib_socket(listener)
    limiter = trio.CapacityLimiter(_MAX_CONNECTIONS)
    async with trio.open_nursery() as nursery:
        while True:
            try:
                connection, _ = await server.accept()
            except OSError:  # out of descriptors, or the peer has gone already
                await trio.sleep(_RETRY_S)
                continue
            nursery.start_soon(_answer, connection, uid, handle, answered, limiter)


async def _answer(
    connection: trio.socket.SocketType,
    uid: int,
    handle: Handler,
    answered: Answered,
    limiter: trio.CapacityLimiter,
) -> None:
    # Whoever asked may go at any time, and may be one too many.
    with connection, suppress(OSError, trio.BrokenResourceError, trio.WouldBlock):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, peer_uid, _ = _PEER.unpack(credentials)
        peer = Peer(peer_uid, pid, lambda: _copy(connection))
        if peer.uid == 0:
            await _converse(connection, peer, handle, answered)
        elif peer.uid == uid:
            limiter.acquire_nowait()
            try:
                await _converse(connection, peer, handle, answered)
            finally:
                limiter.release()


async def _converse(
    connection: trio.socket.SocketType, peer: Peer, handle: Handler, answered: Answered
) -> None:
    request = await _request(connection)
    if request is None:
        return
    try:
        answer = await handle(request, peer)
    except BootseerError as error:
        answer = {"error": str(error), "kind": type(error).__name__}
    except Exception:  # noqa: BLE001 (one request never ends the agent)
        contain("a request on the control socket")
        answer = {"error": "internal error; the node's agent.log says more"}
    if answer is None:
        return
    try:
        with trio.move_on_after(_ANSWER_S):
            await trio.SocketStream(connection).send_all(json.dumps(answer).encode() + b"\n")
    finally:
        answered(answer)


def _copy(connection: trio.socket.SocketType) -> socket.socket:
    """Return a connection as a socket of its own."""
    return socket.socket(fileno=os.dup(connection.fileno()))


async def _request(connection: trio.socket.SocketType) -> dict[str, Any] | None:
    line = bytearray()
    with trio.move_on_after(_REQUEST_S):
        while not line.endswith(b"\n"):
            part = await connection.recv(65536)
            if not part or len(line) + len(part) > MAX_LINE_BYTES:
                return None
            line += part
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return request if isinstance(request, dict) else None
    return None

"""Serve the agent's control socket: check peers; one request and answer per connection."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import trio

from bootseer.agent.messages.control import MAX_LINE_BYTES, REQUESTS, Answer, Refusal, Request
from bootseer.agent.supervisor.containment import contain
from bootseer.errors import BootseerError, Closed, Corrupt
from bootseer.ipc.line_stream import LineStream
from bootseer.ipc.typed_json import encode

_MAX_CONNECTIONS = 64
_REQUEST_S = 5.0
_ANSWER_S = 5.0
_RETRY_S = 0.1
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Peer(NamedTuple):
    """The process that sent a request.

    Attributes:
        uid, pid: its user and process id, when it connected.
        connection: returns a copy of the connection, for a longer conversation.
    """

    uid: int
    pid: int
    connection: Callable[[], socket.socket]


Handler = Callable[[Request, Peer], Awaitable[Answer | None]]
Answered = Callable[[Answer | Refusal], None]


async def serve(listener: socket.socket, uid: int, handle: Handler, answered: Answered) -> None:
    """Answer requests until cancelled.

    The user's connections are limited; root's are not, so that a user cannot lock out the prolog
    and epilog.

    Args:
        listener: from `control_socket.listen`.
        uid: the user who may connect besides root.
        handle: takes a request and its peer; returns the answer, None if it has sent one.
        answered: called with each answer once it has been sent, or the peer has gone.
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
    # The peer may disconnect at any time, or exceed the limit.
    with connection, suppress(OSError, Closed, Corrupt, trio.WouldBlock):
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
    lines = LineStream(connection, "the client", MAX_LINE_BYTES)
    line = None
    with trio.move_on_after(_REQUEST_S), suppress(Closed):
        line, _ = await lines.receive()
    if line is None:
        return
    answer: Answer | Refusal | None
    try:
        answer = await handle(REQUESTS.decode(line), peer)
    except BootseerError as error:
        answer = Refusal(str(error), type(error).__name__)
    except Exception:  # noqa: BLE001 (one request never ends the agent)
        contain("a request on the control socket")
        answer = Refusal("internal error; see agent.log on the node")
    if answer is None:
        return
    try:
        with trio.move_on_after(_ANSWER_S):
            await lines.send(encode(answer) + b"\n")
    finally:
        answered(answer)


def is_open(connection: socket.socket) -> bool:
    """Return whether a peer has not closed its connection.

    Args:
        connection: from `Peer.connection`.
    """
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


async def until_closed(connection: socket.socket) -> None:
    """Wait until a peer has closed its connection, while no more is expected from it.

    Args:
        connection: from `Peer.connection`.
    """
    end = trio.socket.from_stdlib_socket(connection)
    await LineStream(end, "the client", MAX_LINE_BYTES).closed()


def _copy(connection: trio.socket.SocketType) -> socket.socket:
    """Return a copy of a connection as a blocking socket."""
    return socket.socket(fileno=os.dup(connection.fileno()))

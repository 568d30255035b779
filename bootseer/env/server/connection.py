"""The server's end of the conversation with `bootseer.env.client.run`: messages and descriptors."""

from __future__ import annotations

import socket

import trio

from bootseer.env.client.messages import FROM_CLIENT, FROM_SERVER, FromClient, FromServer
from bootseer.ipc.descriptors import close_all
from bootseer.ipc.line_stream import LineStream

MAX_LINE_BYTES = 32 << 20
"""A key has up to 1,000 parts of 8 KiB."""
MAX_FDS = 32


class ServerConnection:
    """One end of a conversation; any number of tasks send, and one receives."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a socket of the kind SOCK_STREAM."""
        stream = trio.socket.from_stdlib_socket(end)
        self._lines = LineStream(stream, "`env run`", MAX_LINE_BYTES, MAX_FDS)

    async def send(self, message: FromServer) -> None:
        """Send a message.

        Raises:
            Closed: the client has gone.

        Cancellation: it is sent or not; half of one ends the conversation.
        """
        await self._lines.send(FROM_SERVER.encode(message) + b"\n")

    async def receive(self) -> tuple[FromClient, list[int]]:
        """Receive a message, and the descriptors that came with it; the caller closes them.

        Raises:
            Closed: the client has gone.
            UnknownVersion: its key is of another version.
            Corrupt: it is no message.
        """
        line, fds = await self._lines.receive()
        try:
            return FROM_CLIENT.decode(line), fds
        except BaseException:
            close_all(fds)
            raise

    async def gone(self) -> None:
        """Wait until the client has gone, while no message is expected from it."""
        await self._lines.closed()

    def close(self) -> None:
        self._lines.close()

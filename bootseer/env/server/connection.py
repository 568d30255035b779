"""The server's end of the conversation with `bootseer.env.client.run`: messages and descriptors."""

from __future__ import annotations

import array
import os
import socket
from contextlib import suppress

import trio

from bootseer.env.client import messages
from bootseer.env.client.messages import FromClient, FromServer
from bootseer.errors import Closed, Corrupt

MAX_LINE_BYTES = 32 << 20
"""A key has up to 1,000 parts of 8 KiB."""
MAX_FDS = 32


class Connection:
    """One end of a conversation; any number of tasks send, and one receives."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a socket of the kind SOCK_STREAM."""
        self._socket = trio.socket.from_stdlib_socket(end)
        self._rest = bytearray()
        self._sending = trio.Lock()  # of a line; that waits only for who reads it

    async def send(self, message: FromServer) -> None:
        """Send a message.

        Raises:
            Closed: the client has gone.

        Cancellation: it is sent or not; half of one ends the conversation.
        """
        data = memoryview(messages.encode(message))
        async with self._sending:
            left = data
            try:
                while left:
                    left = left[await self._socket.send(left) :]
            except (OSError, trio.ClosedResourceError) as error:
                raise Closed("lost the connection to `env run`") from error
            finally:
                if 0 < len(left) < len(data):
                    self.close()

    async def receive(self) -> tuple[FromClient, list[int]]:
        """Receive a message, and the descriptors that came with it; the caller closes them.

        Raises:
            Closed: the client has gone.
            UnknownVersion: its key is of another version.
            Corrupt: it is no message.
        """
        fds: list[int] = []
        try:
            while b"\n" not in self._rest:
                data, more = await self._receive_some()
                fds += more
                self._rest += data
                if not data:
                    raise Closed("lost the connection to `env run`")
                if len(self._rest) > MAX_LINE_BYTES or len(fds) > MAX_FDS:
                    raise Corrupt("a message of `env run` is too long")
            line, _, self._rest = self._rest.partition(b"\n")
            message = messages.decode(bytes(line), messages.FROM_CLIENT)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return message, fds

    async def gone(self) -> None:
        """Wait until the client has gone, while no message is expected from it."""
        with suppress(OSError, trio.ClosedResourceError):
            if await self._socket.recv(1, socket.MSG_PEEK):
                await trio.sleep_forever()  # it is told by who reads that

    def close(self) -> None:
        """End the conversation."""
        self._socket.close()

    async def _receive_some(self) -> tuple[bytes, list[int]]:
        space = socket.CMSG_SPACE(4 * MAX_FDS)
        try:
            data, ancillary, _, _ = await self._socket.recvmsg(
                1 << 20, space, socket.MSG_CMSG_CLOEXEC
            )
        except (OSError, trio.ClosedResourceError) as error:
            raise Closed("lost the connection to `env run`") from error
        fds = array.array("i")
        for level, kind, found in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                with suppress(ValueError):
                    fds.frombytes(found[: len(found) - len(found) % fds.itemsize])
        return data, list(fds)

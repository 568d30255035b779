"""Messages between the agent and a worker: length, JSON, and at most one descriptor.

The agent is root and the worker is the job's user, so the agent takes nothing for granted that
arrives here.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any

import trio

from bootseer.errors import Closed, Corrupt

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""From the agent: events that have waited for a store among them."""
MAX_TOLD_BYTES = 16 * 1024 * 1024
"""From a worker: 200,000 touches and more. Decoded, hostile JSON takes 20 times as much memory."""
STALLED_S = 5.0
_LENGTH = struct.Struct("<I")


class Channel:
    """One end of a socket pair; one task may send and one may receive at a time."""

    def __init__(self, end: socket.socket, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """Take over the socket; longer messages than this are refused."""
        self._socket = trio.socket.from_stdlib_socket(end)
        self._max_bytes = max_bytes
        self._sending = trio.Lock()  # keeps one message's bytes together

    async def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Send a message and, with it, a copy of a descriptor.

        Raises:
            Closed: the other end is gone, or has taken nothing for STALLED_S: its user can stop
                it. The channel is of no use then.

        Cancellation: once begun, a message is sent whole, or the next one could not be read.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        rights = (
            [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        )
        async with self._sending:
            try:
                deadline = trio.current_time() + STALLED_S
                with trio.CancelScope(deadline=deadline, shield=True) as scope:
                    await self._socket.sendmsg([_LENGTH.pack(len(body))], rights)
                    view = memoryview(body)
                    while view:
                        scope.deadline = trio.current_time() + STALLED_S
                        view = view[await self._socket.send(view) :]
            except (OSError, trio.ClosedResourceError) as error:
                raise Closed("the other end of the channel is gone") from error
            if scope.cancelled_caught:
                raise Closed("the other end of the channel does not read")

    async def receive(self) -> tuple[dict[str, Any], int | None]:
        """Receive a message, and the descriptor that came with it; the caller closes that.

        Raises:
            Closed: the other end is gone.
            Corrupt: it does not speak this protocol.
        """
        head, ancillary, _, _ = await self._recvmsg()
        fds = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        for extra in fds[1:]:
            os.close(extra)
        fd = fds[0] if fds else None
        try:
            head += await self._exactly(_LENGTH.size - len(head))
            length = _LENGTH.unpack(head)[0]
            if length > self._max_bytes:
                raise Corrupt(f"a message of {length} bytes is over the limit")
            message = json.loads(await self._exactly(length))
            if not isinstance(message, dict):
                raise Corrupt("a message that is not an object")
        except (ValueError, RecursionError) as error:
            _close(fd)
            raise Corrupt("a message that is not JSON") from error
        except BaseException:
            _close(fd)
            raise
        return message, fd

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    async def _recvmsg(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        space = socket.CMSG_SPACE(4)
        try:
            got = await self._socket.recvmsg(_LENGTH.size, space, socket.MSG_CMSG_CLOEXEC)
        except (OSError, trio.ClosedResourceError) as error:
            raise Closed("the other end of the channel is gone") from error
        if not got[0]:
            raise Closed("the other end of the channel is gone")
        return got

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = await self._socket.recv(min(size - len(data), 1 << 20))
            except (OSError, trio.ClosedResourceError) as error:
                raise Closed("the other end of the channel is gone") from error
            if not part:
                raise Closed("the other end of the channel is gone")
            data += part
        return bytes(data)


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)

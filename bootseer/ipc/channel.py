"""A channel of JSON messages with descriptors, over a socket pair.

The receiver does not trust its peer: it limits the length of messages, and accepts only those that
the peer may send.
"""

from __future__ import annotations

import logging
import socket
import struct
from array import array
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import trio

from bootseer.errors import Closed, Corrupt
from bootseer.ipc.descriptors import close_all, received
from bootseer.ipc.typed_json import Messages

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_log = logging.getLogger("channel")
MAX_FDS = 32
"""Limit of descriptors with one message."""
STALLED_S = 5.0
_LENGTH = struct.Struct("<I")


class Channel(Generic[Sent, Received]):
    """One end of a socket pair; any number of tasks send, and one at a time receives."""

    def __init__(
        self, end: socket.socket, sent: Messages[Sent], received: Messages[Received], max_bytes: int
    ) -> None:
        """Take over the socket.

        Args:
            end: a stream socket.
            sent: messages that this end sends.
            received: messages that this end receives.
            max_bytes: limit of a received message.
        """
        self._socket = trio.socket.from_stdlib_socket(end)
        self._sent = sent
        self._received = received
        self._max_bytes = max_bytes
        self._sending = trio.Lock()  # keeps one message's bytes together

    async def send(self, message: Sent, fds: Sequence[int] = ()) -> None:
        """Send a message and, with it, copies of descriptors.

        Raises:
            Closed: the other end is gone, or has not read for STALLED_S, as its user can stop it.
                The channel is unusable then.

        Cancellation: a message once begun is sent completely, to keep the stream readable.
        """
        body = self._sent.encode(message)
        _log.debug("send %s of %d bytes", type(message).__name__, len(body))
        async with self._sending:
            try:
                deadline = trio.current_time() + STALLED_S
                with trio.CancelScope(deadline=deadline, shield=True) as scope:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))]
                    await self._socket.sendmsg([_LENGTH.pack(len(body))], rights if fds else [])
                    view = memoryview(body)
                    while view:
                        scope.deadline = trio.current_time() + STALLED_S
                        view = view[await self._socket.send(view) :]
            except (OSError, trio.ClosedResourceError) as error:
                raise Closed("the other end of the channel is gone") from error
            if scope.cancelled_caught:
                raise Closed("the other end of the channel does not read")

    async def receive(self) -> tuple[Received, list[int]]:
        """Receive a message, and the descriptors that came with it; the caller closes them.

        Raises:
            Closed: the other end is gone.
            Corrupt: the message is invalid.
        """
        # Read only the length first: the descriptors come with it.
        head, fds = await self._receive_head()
        try:
            head += await self._exactly(_LENGTH.size - len(head))
            length = _LENGTH.unpack(head)[0]
            if length > self._max_bytes:
                raise Corrupt(f"a message of {length} bytes is over the limit")
            message = self._received.decode(await self._exactly(length))
            _log.debug("received %s with %d descriptors", type(message).__name__, len(fds))
            return message, fds
        except BaseException:
            close_all(fds)
            raise

    async def receive_only(self) -> Received:
        """Receive a message, and close its descriptors; see `receive`."""
        message, fds = await self.receive()
        close_all(fds)
        return message

    def close(self) -> None:
        self._socket.close()

    async def _receive_head(self) -> tuple[bytes, list[int]]:
        space = socket.CMSG_SPACE(MAX_FDS * struct.calcsize("i"))
        try:
            head, ancillary, _, _ = await self._socket.recvmsg(
                _LENGTH.size, space, socket.MSG_CMSG_CLOEXEC
            )
        except (OSError, trio.ClosedResourceError) as error:
            raise Closed("the other end of the channel is gone") from error
        if not head:
            raise Closed("the other end of the channel is gone")
        return head, received(ancillary)

    async def _exactly(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            try:
                part = await self._socket.recv(min(size - len(data), 1 << 20))
            except (OSError, trio.ClosedResourceError) as error:
                raise Closed("the other end of the channel is gone") from error
            if not part:
                raise Closed("the other end of the channel is gone")
            data += part
        return data


class Awaited(Generic[Received]):
    """A message that tasks wait for until it is received."""

    def __init__(self) -> None:
        self._has_come = trio.Event()
        self._message: Received | None = None

    def set(self, message: Received) -> None:
        self._message = message
        self._has_come.set()

    async def wait(self) -> Received:
        await self._has_come.wait()
        assert self._message is not None
        return self._message


def unexpected(message: Any) -> Corrupt:
    """Return the error for a message that is not allowed now."""
    return Corrupt(f"a {type(message).__name__} was not expected from the other end")

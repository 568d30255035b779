"""A stream of lines, with descriptors.

Descriptors may arrive with the line before theirs, so the ends must take turns.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import trio

from bootseer.errors import Closed, Corrupt
from bootseer.ipc.descriptors import close_all, received


@dataclass(eq=False)
class LineStream:
    """One end of a stream; any number of tasks send, and one at a time receives.

    Attributes:
        end: a SOCK_STREAM socket.
        name: name of the other end, for errors.
        max_line_bytes, max_fds: limits of one received line.
    """

    end: trio.socket.SocketType
    name: str
    max_line_bytes: int
    max_fds: int = 0
    _rest: bytearray = field(default_factory=bytearray)
    # Keeps one line's bytes together.
    _sending: trio.Lock = field(default_factory=trio.Lock)

    async def send(self, line: bytes) -> None:
        """Send a line, which ends with a line break.

        Raises:
            Closed: the other end is gone.

        Cancellation: the line is sent or not; a partial line closes the stream.
        """
        data = memoryview(line)
        async with self._sending:
            left = data
            try:
                while left:
                    left = left[await self.end.send(left) :]
            except (OSError, trio.ClosedResourceError) as error:
                raise self._closed() from error
            finally:
                if 0 < len(left) < len(data):
                    self.close()

    async def receive(self) -> tuple[bytes, list[int]]:
        """Receive a line, and the descriptors that came with it; the caller closes them.

        Raises:
            Closed: the other end is gone.
            Corrupt: a line or its descriptors exceed the limits.
        """
        fds: list[int] = []
        try:
            while b"\n" not in self._rest:
                data, more = await self._receive_some()
                fds += more
                self._rest += data
                if not data:
                    raise self._closed()
                if len(self._rest) > self.max_line_bytes or len(fds) > self.max_fds:
                    raise Corrupt(f"a message of {self.name} is too long")
        except BaseException:
            close_all(fds)
            raise
        line, _, self._rest = self._rest.partition(b"\n")
        return bytes(line), fds

    async def closed(self) -> None:
        """Wait until the other end is gone, while nothing is expected from it."""
        try:
            if await self.end.recv(1, socket.MSG_PEEK):
                await trio.sleep_forever()  # the next to receive is told of it
        except (OSError, trio.ClosedResourceError):
            return

    def close(self) -> None:
        self.end.close()

    def _closed(self) -> Closed:
        return Closed(f"lost the connection to {self.name}")

    async def _receive_some(self) -> tuple[bytes, list[int]]:
        space = socket.CMSG_SPACE(4 * self.max_fds)
        try:
            data, ancillary, _, _ = await self.end.recvmsg(1 << 20, space, socket.MSG_CMSG_CLOEXEC)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._closed() from error
        return data, received(ancillary)

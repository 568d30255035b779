"""The pages of a file that the broker looks at, see `bootseer.agent.broker.residency_server`."""

from __future__ import annotations

import socket

from bootseer.agent.broker import residency_server
from bootseer.errors import Unavailable
from bootseer.image.hot.residency import PAGE_BYTES

_ANSWER_S = 10.0
"""For the broker to look, longer than it may take to read pages of a slow file system again."""


class ResidencyClient:
    """The supervisor's end: the `ResidentPages` of a file that the broker looks at."""

    def __init__(self, end: socket.socket, size_bytes: int) -> None:
        """Take over a socket."""
        end.settimeout(_ANSWER_S)
        self.size_bytes = size_bytes
        self._end = end

    def newly_resident(self, most: int) -> list[tuple[int, int]]:
        """See `ResidentPages`; there may be some more, for they come in messages."""
        found: list[tuple[int, int]] = []
        while len(found) < most:
            some = list(residency_server.RANGE.iter_unpack(self._ask(0, 0)[1:]))
            found += some
            if len(some) < residency_server.RANGES:
                break
        return found

    def active(self, start: int, stop: int) -> bytes | None:
        """See `ResidentPages`."""
        found = b""
        for at in range(start - start % PAGE_BYTES, stop, residency_server.PAGES * PAGE_BYTES):
            until = min(stop, at + residency_server.PAGES * PAGE_BYTES)
            some = self._ask(max(start, at), until)
            if some == b"-":
                return None
            found += some
        return found

    def close(self) -> None:
        """See `ResidentPages`."""
        self._end.close()

    def _ask(self, start: int, stop: int) -> bytes:
        try:
            self._end.send(residency_server.RANGE.pack(start, stop))
            answer = self._end.recv(1 + residency_server.MAX_ANSWER_BYTES)
        except OSError as error:
            self.close()  # an answer that comes too late must not be taken for that to a later one
            raise Unavailable(f"nobody looks at the image any more: {error}") from error
        if not answer:
            raise Unavailable("nobody looks at the image any more")
        return answer

"""Client of the broker's page residency, see `bootseer.agent.broker.residency_server`."""

from __future__ import annotations

import socket

from bootseer.agent.broker import residency_server
from bootseer.errors import Unavailable
from bootseer.image.hot.residency import PAGE_BYTES

_ANSWER_S = 10.0
"""Timeout for the broker's answer, longer than re-reading pages of a slow file system takes."""


class ResidencyClient:
    """`ResidentPages` of a file that the broker watches for the supervisor."""

    def __init__(self, end: socket.socket, size_bytes: int) -> None:
        end.settimeout(_ANSWER_S)
        self.size_bytes = size_bytes
        self._end = end

    def newly_resident(self, most: int) -> list[tuple[int, int]]:
        """See `ResidentPages`; may return more than ``most``, as ranges come in messages."""
        found: list[tuple[int, int]] = []
        while len(found) < most:
            some = list(residency_server.RANGE.iter_unpack(self._ask(0, 0)[1:]))
            found += some
            if len(some) < residency_server.RANGES:
                break
        return found

    def active(self, start: int, stop: int) -> bytes | None:
        found = b""
        for at in range(start - start % PAGE_BYTES, stop, residency_server.PAGES * PAGE_BYTES):
            until = min(stop, at + residency_server.PAGES * PAGE_BYTES)
            some = self._ask(max(start, at), until)
            if some == b"-":
                return None
            found += some
        return found

    def close(self) -> None:
        self._end.close()

    def _ask(self, start: int, stop: int) -> bytes:
        try:
            self._end.send(residency_server.RANGE.pack(start, stop))
            answer = self._end.recv(1 + residency_server.MAX_ANSWER_BYTES)
        except OSError as error:
            self.close()  # a late answer must not be taken for that of a later request
            raise Unavailable(f"lost the broker's watch of the image: {error}") from error
        if not answer:
            raise Unavailable("lost the broker's watch of the image")
        return answer

"""Tell a supervisor which pages of a file are in memory: both ends of a socket for one file.

A request is a range; an empty one asks for the ranges that have become resident since the last
time, and is answered by messages with as many as fit, of which the last is not full. Any other is
answered by a byte for each of its pages, or by an empty message where the kernel does not say.

Standard library and our own extension only.
"""

from __future__ import annotations

import socket
import struct

from bootseer.errors import Unavailable
from bootseer.image.residency import PAGE_BYTES, Residency

_RANGE = struct.Struct("=QQ")
_RANGES = 2048
"""In one message."""
_PAGES = 32 * 1024
"""The same of pages."""
_ANSWER_S = 10.0
"""For the broker to look, longer than it may take to read pages of a slow file system again."""


def serve(pages: Residency, end: socket.socket) -> None:
    """Answer requests until the other end is closed; both are closed then. In a thread.

    Args:
        pages: of the file.
        end: ours, SOCK_SEQPACKET.
    """
    try:
        with end:
            while len(request := end.recv(_RANGE.size + 1)) == _RANGE.size:
                start, stop = _RANGE.unpack(request)
                if start == stop:
                    _send_resident(pages, end)
                elif start < stop <= pages.size_bytes and stop - start <= _PAGES * PAGE_BYTES:
                    end.send(pages.active(start, stop) or b"-")
                else:
                    return
    except (OSError, Unavailable):
        return  # the other end is told by the end of the connection
    finally:
        pages.close()


def _send_resident(pages: Residency, end: socket.socket) -> None:
    while True:
        found = pages.newly_resident(_RANGES)
        end.send(b"=" + b"".join(_RANGE.pack(*one) for one in found))
        if len(found) < _RANGES:
            return


class BrokersPages:
    """The supervisor's end: the `Pages` of a file that the broker looks at."""

    def __init__(self, end: socket.socket, size_bytes: int) -> None:
        """Take over a socket."""
        end.settimeout(_ANSWER_S)
        self.size_bytes = size_bytes
        self._end = end

    def newly_resident(self, most: int) -> list[tuple[int, int]]:
        """See `Pages`; there are never more than are told at once."""
        found: list[tuple[int, int]] = []
        self._send(0, 0)
        while True:
            some = list(_RANGE.iter_unpack(self._receive()[1:]))
            found += some
            if len(some) < _RANGES:
                return found

    def active(self, start: int, stop: int) -> bytes | None:
        """See `Pages`."""
        found = b""
        for at in range(start - start % PAGE_BYTES, stop, _PAGES * PAGE_BYTES):
            until = min(stop, at + _PAGES * PAGE_BYTES)
            self._send(max(start, at), until)
            some = self._receive()
            if some == b"-":
                return None
            found += some
        return found

    def close(self) -> None:
        """See `Pages`."""
        self._end.close()

    def _send(self, start: int, stop: int) -> None:
        try:
            self._end.send(_RANGE.pack(start, stop))
        except OSError as error:
            raise Unavailable(f"nobody looks at the image any more: {error}") from error

    def _receive(self) -> bytes:
        try:
            answer = self._end.recv(1 + max(_RANGES * _RANGE.size, _PAGES))
        except OSError as error:
            raise Unavailable(f"nobody looks at the image any more: {error}") from error
        if not answer:
            raise Unavailable("nobody looks at the image any more")
        return answer

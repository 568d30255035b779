"""Tell a supervisor which pages of a file are in memory: both ends of a socket for one file.

A request is a range; an empty one asks for ranges that have become resident since the last time,
and is answered by "=" and as many as fit, or all there are. Any other is answered by a byte for
each of its pages, or by "-" where the kernel does not say.

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
                    found = pages.newly_resident(_RANGES)
                    end.send(b"=" + b"".join(_RANGE.pack(*one) for one in found))
                elif start < stop <= pages.size_bytes and stop - start <= _PAGES * PAGE_BYTES:
                    end.send(pages.active(start, stop) or b"-")
                else:
                    return
    except (OSError, Unavailable):
        return  # the other end is told by the end of the connection
    finally:
        pages.close()


class BrokersPages:
    """The supervisor's end: the `Pages` of a file that the broker looks at."""

    def __init__(self, end: socket.socket, size_bytes: int) -> None:
        """Take over a socket."""
        end.settimeout(_ANSWER_S)
        self.size_bytes = size_bytes
        self._end = end

    def newly_resident(self, most: int) -> list[tuple[int, int]]:
        """See `Pages`; there may be some more, for they come in messages."""
        found: list[tuple[int, int]] = []
        while len(found) < most:
            some = list(_RANGE.iter_unpack(self._ask(0, 0)[1:]))
            found += some
            if len(some) < _RANGES:
                break
        return found

    def active(self, start: int, stop: int) -> bytes | None:
        """See `Pages`."""
        found = b""
        for at in range(start - start % PAGE_BYTES, stop, _PAGES * PAGE_BYTES):
            until = min(stop, at + _PAGES * PAGE_BYTES)
            some = self._ask(max(start, at), until)
            if some == b"-":
                return None
            found += some
        return found

    def close(self) -> None:
        """See `Pages`."""
        self._end.close()

    def _ask(self, start: int, stop: int) -> bytes:
        try:
            self._end.send(_RANGE.pack(start, stop))
            answer = self._end.recv(1 + max(_RANGES * _RANGE.size, _PAGES))
        except OSError as error:
            self.close()  # an answer that comes too late must not be taken for that to a later one
            raise Unavailable(f"nobody looks at the image any more: {error}") from error
        if not answer:
            raise Unavailable("nobody looks at the image any more")
        return answer

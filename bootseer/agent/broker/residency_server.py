"""Tell a supervisor which pages of a file are in memory, on a socket for one file.

A request is a range; an empty one asks for ranges that have become resident since the last time,
and is answered by "=" and as many as fit, or all there are. Any other is answered by a byte for
each of its pages, or by "-" where the kernel does not say.

Standard library and our own extension only.
"""

from __future__ import annotations

import socket
import struct

from bootseer.errors import Unavailable
from bootseer.image.hot.residency import PAGE_BYTES, KernelResidency

RANGE = struct.Struct("=QQ")
RANGES = 2048
"""In one message."""
PAGES = 32 * 1024
"""The same of pages."""
MAX_ANSWER_BYTES = max(RANGES * RANGE.size, PAGES)


def serve(pages: KernelResidency, end: socket.socket) -> None:
    """Answer requests until the other end is closed; both are closed then. In a thread.

    Args:
        pages: of the file.
        end: ours, SOCK_SEQPACKET.
    """
    try:
        with end:
            while len(request := end.recv(RANGE.size + 1)) == RANGE.size:
                start, stop = RANGE.unpack(request)
                if start == stop:
                    found = pages.newly_resident(RANGES)
                    end.send(b"=" + b"".join(RANGE.pack(*one) for one in found))
                elif start < stop <= pages.size_bytes and stop - start <= PAGES * PAGE_BYTES:
                    end.send(pages.active(start, stop) or b"-")
                else:
                    return
    except (OSError, Unavailable):
        return  # the other end is told by the end of the connection
    finally:
        pages.close()

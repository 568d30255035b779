"""Report which pages of a file are in memory, on one socket per file.

A request is a range. An empty range requests the ranges that became resident since the last
request; the answer is "=" and as many of them as fit. For any other range the answer is a byte for
each page, or "-" if the kernel does not report residency.

Imports the standard library and bootseer's C extension only.
"""

from __future__ import annotations

import socket
import struct

from bootseer.errors import Unavailable
from bootseer.image.hot.residency import PAGE_BYTES, KernelResidency

RANGE = struct.Struct("=QQ")
RANGES = 2048
"""Ranges in one message."""
PAGES = 32 * 1024
"""Pages in one message."""
MAX_ANSWER_BYTES = max(RANGES * RANGE.size, PAGES)


def serve(pages: KernelResidency, end: socket.socket) -> None:
    """Answer requests until the other end is closed; blocks its thread.

    Args:
        pages: residency of the file; closed at the end.
        end: our end of the socket, SOCK_SEQPACKET; closed at the end.
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
        return  # closing the connection tells the other end
    finally:
        pages.close()

"""Reservations of space for blocks, by fixed-size messages: the lender's end.

The keeper's request is 24 bytes: its number, the bytes to be written now, and the bytes that may
follow later. The answer is 16 bytes: the number of the request, and the bytes granted, 0 for
none. All numbers are unsigned, in native byte order. The socket preserves message boundaries
(SOCK_SEQPACKET). Unused grants are returned when the entry is closed.

Used by the lender: imports the standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from bootseer.errors import Corrupt
from bootseer.units import MIB

REQUEST = struct.Struct("=3Q")
ANSWER = struct.Struct("=2Q")
STEP_BYTES = 64 * MIB
"""Bytes of a keeper's request, and the limit of a grant."""


def answer_reservation(message: bytes, reserve: Callable[[int, int], int]) -> bytes:
    """Answer one request.

    Args:
        message: the received message.
        reserve: `CacheEntry.reserve` of the keeper's entry.

    Raises:
        Corrupt: the message is invalid; close the connection.
    """
    if len(message) != REQUEST.size:
        raise Corrupt(f"invalid request for block cache space: {len(message)} bytes")
    number, size_bytes, wanted_bytes = REQUEST.unpack(message)
    if not 0 < size_bytes <= STEP_BYTES or wanted_bytes > STEP_BYTES:
        raise Corrupt(
            f"invalid request for block cache space: {size_bytes} of {wanted_bytes} bytes"
        )
    return ANSWER.pack(number, reserve(size_bytes, wanted_bytes))

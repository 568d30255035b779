"""Room for blocks: the keeper asks the lender for it, in messages of fixed size; the lender's end.

A request is 24 bytes: its number, the bytes to be written now, and those that may be later. The
answer is 16 bytes: the number of the request, and how many bytes may be written, 0 for none. All
numbers are unsigned, in the machine's own order, for both ends are on it. The socket keeps messages
apart (SOCK_SEQPACKET). What was granted and is not used is given back with the entry.

Part of the lender's side: imports the standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from bootseer.errors import Corrupt
from bootseer.units import MIB

REQUEST = struct.Struct("=3Q")
ANSWER = struct.Struct("=2Q")
STEP_BYTES = 64 * MIB
"""How much a keeper asks for at once, and the most that it gets."""


def answer_reservation(message: bytes, reserve: Callable[[int, int], int]) -> bytes:
    """Answer one request.

    Args:
        message: as it was received.
        reserve: `CacheEntry.reserve` of the entry that the other end writes to.

    Raises:
        Corrupt: the message makes no sense: the other end is to be given up.
    """
    if len(message) != REQUEST.size:
        raise Corrupt(f"{len(message)} bytes are no request for room in the block cache")
    number, size_bytes, wanted_bytes = REQUEST.unpack(message)
    if not 0 < size_bytes <= STEP_BYTES or wanted_bytes > STEP_BYTES:
        raise Corrupt(f"room for {size_bytes} bytes, or {wanted_bytes}, is no sensible request")
    return ANSWER.pack(number, reserve(size_bytes, wanted_bytes))

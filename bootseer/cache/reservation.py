"""Room for blocks: the keeper asks root's side for it, in messages of fixed size.

A request is 24 bytes: its number, the bytes to be written now, and those that may be later. The
answer is 16 bytes: the number of the request, and how many bytes may be written, 0 for none. All
numbers are unsigned, in the machine's own order, for both ends are on it. The socket keeps messages
apart (SOCK_SEQPACKET). What was granted and is not used is given back with the entry.

Part of root's side: imports the standard library only.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

from bootseer.errors import Corrupt, Unavailable
from bootseer.units import MIB

REQUEST = struct.Struct("=3Q")
ANSWER = struct.Struct("=2Q")
STEP_BYTES = 64 * MIB
"""How much a keeper asks for at once, and the most that it gets."""
_ANSWER_S = 30.0
"""For root's side to make room."""


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


class ReservationClient:
    """The keeper's end.

    Concurrency: any number of threads; one request at a time.
    """

    def __init__(self, end: socket.socket, answer_s: float = _ANSWER_S) -> None:
        """Take over a socket (SOCK_SEQPACKET) that `answer_reservation` answers at the other end.

        Args:
            end: ours.
            answer_s: how long to wait for an answer; one that comes later counts for nothing.
        """
        end.settimeout(answer_s)
        self._end = end
        self._number = 0
        self._lock = threading.Lock()  # guards the socket: a request and its answer

    def reserve(self, size_bytes: int, wanted_bytes: int) -> int:
        """See `CacheEntry.reserve`.

        Raises:
            Unavailable: the other end is gone, or does not answer.
        """
        with self._lock:
            self._number += 1
            try:
                self._end.sendall(REQUEST.pack(self._number, size_bytes, wanted_bytes))
                while True:
                    answer = self._end.recv(ANSWER.size + 1)
                    if len(answer) != ANSWER.size:
                        raise Unavailable("nobody grants room in the block cache any more")
                    number, granted_bytes = ANSWER.unpack(answer)
                    if number == self._number:
                        return int(granted_bytes)
            except OSError as error:
                raise Unavailable(f"no answer about room in the block cache: {error}") from error

    def close(self) -> None:
        """Close it."""
        self._end.close()


class Room:
    """What a keeper may write: asks for more in large steps.

    Concurrency: any number of threads.
    """

    def __init__(self, reserve: Callable[[int, int], int]) -> None:
        """Name what grants it: `CacheEntry.reserve`, or that of a `ReservationClient`."""
        self._reserve = reserve
        self._granted_bytes = 0
        self._lock = threading.Lock()  # guards the number

    def take(self, size_bytes: int) -> bool:
        """Take room for so many bytes; returns whether there was.

        Raises:
            Unavailable: nobody says so.
        """
        if self._take(size_bytes):
            return True
        granted_bytes = self._reserve(size_bytes, max(size_bytes, STEP_BYTES))
        return self._take(size_bytes, granted_bytes)

    def _take(self, size_bytes: int, granted_bytes: int = 0) -> bool:
        with self._lock:
            self._granted_bytes += granted_bytes
            if self._granted_bytes < size_bytes:
                return False
            self._granted_bytes -= size_bytes
            return True

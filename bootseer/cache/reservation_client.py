"""Room for blocks: the keeper's end, see `bootseer.cache.reservation`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from bootseer.cache.reservation import ANSWER, REQUEST, STEP_BYTES
from bootseer.errors import Unavailable

_ANSWER_S = 30.0
"""For the lender to make room."""


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

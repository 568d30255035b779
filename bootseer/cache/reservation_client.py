"""Reservations of space for blocks: the keeper's end, see `bootseer.cache.reservation`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from bootseer.cache.reservation import ANSWER, REQUEST, STEP_BYTES
from bootseer.errors import Unavailable

_ANSWER_S = 30.0
"""Timeout for the lender, which may have to evict entries."""


class ReservationClient:
    """Requests space from the lender.

    Concurrency: any number of threads; one request at a time.
    """

    def __init__(self, end: socket.socket, answer_s: float = _ANSWER_S) -> None:
        """Take over a socket (SOCK_SEQPACKET) that `answer_reservation` answers at the other end.

        Args:
            end: the keeper's end.
            answer_s: timeout for an answer; later answers are ignored.
        """
        end.settimeout(answer_s)
        self._end = end
        self._number = 0
        self._lock = threading.Lock()  # guards the socket: a request and its answer

    def reserve(self, size_bytes: int, wanted_bytes: int) -> int:
        """See `CacheEntry.reserve`.

        Raises:
            Unavailable: the lender is gone, or does not answer.
        """
        with self._lock:
            self._number += 1
            try:
                self._end.sendall(REQUEST.pack(self._number, size_bytes, wanted_bytes))
                while True:
                    answer = self._end.recv(ANSWER.size + 1)
                    if len(answer) != ANSWER.size:
                        raise Unavailable("lost the connection to the block cache's lender")
                    number, granted_bytes = ANSWER.unpack(answer)
                    if number == self._number:
                        return int(granted_bytes)
            except OSError as error:
                raise Unavailable(f"no answer from the block cache's lender: {error}") from error

    def close(self) -> None:
        self._end.close()


class Room:
    """The space that a keeper may write to, requested in large steps.

    Concurrency: any number of threads.
    """

    def __init__(self, reserve: Callable[[int, int], int]) -> None:
        """Take the function that grants space, such as `ReservationClient.reserve`."""
        self._reserve = reserve
        self._granted_bytes = 0
        self._lock = threading.Lock()  # guards the number

    def take(self, size_bytes: int) -> bool:
        """Take space for so many bytes; returns whether it was granted.

        Raises:
            Unavailable: the lender does not answer.
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

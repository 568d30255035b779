"""A rate that several readers share."""

from __future__ import annotations

from threading import Lock


class RateLimit:
    """So many bytes a second for all who ask, in the order in which they ask.

    Concurrency: any number of threads.
    """

    def __init__(self, bytes_per_s: float) -> None:
        """Share a rate in bytes per second; 0 is no limit."""
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0
        self._lock = Lock()

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take so many bytes; returns how many seconds to wait before reading them.

        Args:
            size_bytes: to be read.
            now_s: any clock that goes forward.
        """
        if not self._bytes_per_s:
            return 0.0
        with self._lock:
            at_s = max(self._free_at_s, now_s)
            self._free_at_s = at_s + size_bytes / self._bytes_per_s
        return at_s - now_s

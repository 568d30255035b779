"""Measure transferred bytes and their rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Meter:
    """Counts bytes, and the time with at least one transfer in progress.

    Attributes:
        size_bytes: bytes transferred so far, added by the caller.
        began_ns, ended_ns: begin of the first and end of the last transfer, nanoseconds since the
            epoch; 0 before the first.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        """Create a meter with a clock in nanoseconds since the epoch."""
        self.size_bytes = 0
        self.began_ns = self.ended_ns = 0
        self._clock_ns = clock_ns
        self._busy_ns = 0
        self._under_way = 0
        self._since_ns = 0

    @property
    def bytes_per_s(self) -> float:
        """Return the rate during transfers; 0 if they took no time."""
        return self.size_bytes * 1e9 / self._busy_ns if self._busy_ns else 0.0

    @contextmanager
    def transfer(self) -> Iterator[None]:
        """Time a transfer; any number may overlap."""
        if not self._under_way:
            self._since_ns = self._clock_ns()
            self.began_ns = self.began_ns or self._since_ns
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.ended_ns = self._clock_ns()
                self._busy_ns += max(0, self.ended_ns - self._since_ns)

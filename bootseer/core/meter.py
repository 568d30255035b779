"""How much was transferred, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Meter:
    """Bytes, and the time in which at least one transfer was under way.

    Attributes:
        size_bytes: transferred so far, as its user counts them.
        began_ns, ended_ns: of the first and of the last transfer, nanoseconds since the epoch; 0 as
            long as there was none.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        """Read the time from a clock, in nanoseconds since the epoch."""
        self.size_bytes = 0
        self.began_ns = self.ended_ns = 0
        self._clock_ns = clock_ns
        self._busy_ns = 0
        self._under_way = 0
        self._since_ns = 0

    @property
    def bytes_per_s(self) -> float:
        """While it was at work; 0 if that took no time."""
        return self.size_bytes * 1e9 / self._busy_ns if self._busy_ns else 0.0

    @contextmanager
    def transfer(self) -> Iterator[None]:
        """Transfer something; any number at a time."""
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

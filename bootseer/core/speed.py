"""Measure a store's latency and rate from concurrent reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bootseer.core.fields import Fields
from bootseer.units import MIB

_CROWD = 8
"""Concurrent reads that use the full rate of a store for one node."""
_LEAST_BYTES = 16 * MIB
"""Minimum of reads for a measurement."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A store's speed, measured on one node.

    Attributes:
        latency_us: latency of one short read with few others in progress, in microseconds; 0 if
            unknown.
        bytes_per_s: rate of many concurrent reads, 0 if unknown.
        nodes: number of nodes that read when the rate was measured.
    """

    latency_us: int = 0
    bytes_per_s: int = 0
    nodes: int = 1

    @classmethod
    def of(cls, fields: Fields) -> Speed:
        """Decode the speed from the fields of its ``asdict``.

        Raises:
            Corrupt: a value is invalid.
        """
        latency_us, bytes_per_s = fields.count("latency_us"), fields.count("bytes_per_s")
        return cls(latency_us, bytes_per_s, max(1, fields.count("nodes")))

    def or_else(self, other: Speed) -> Speed:
        """Return the speed with unknown values taken from another."""
        rate = self if self.bytes_per_s else other
        return Speed(self.latency_us or other.latency_us, rate.bytes_per_s, rate.nodes)


UNKNOWN = Speed()


@dataclass(slots=True)
class SpeedMeter:
    """Measures reads of one trio run.

    Attributes:
        clock: monotonic clock in seconds.
    """

    clock: Callable[[], float]
    _latency_s: float = 0.0
    _running: int = 0
    _since: float = 0.0
    _crowded_s: float = 0.0
    _crowded_bytes: int = 0

    @contextmanager
    def read(self, size_bytes: int) -> Iterator[None]:
        """Measure one read of so many bytes; failed reads do not count."""
        began = self._advance()
        self._running += 1
        try:
            yield
            took_s = self._advance() - began
            self._latency_s = min(took_s, self._latency_s or took_s)
            if self._running >= _CROWD:
                self._crowded_bytes += size_bytes
        finally:
            self._advance()
            self._running -= 1

    def speed(self, nodes: int) -> Speed:
        """Return the speed measured so far.

        Args:
            nodes: number of nodes that read at the same time.
        """
        known = self._crowded_bytes >= _LEAST_BYTES and self._crowded_s > 0
        return Speed(
            latency_us=round(self._latency_s * 1e6),
            bytes_per_s=round(self._crowded_bytes / self._crowded_s) if known else 0,
            nodes=max(1, nodes),
        )

    def _advance(self) -> float:
        now = self.clock()
        if self._running >= _CROWD:
            self._crowded_s += now - self._since
        self._since = now
        return now

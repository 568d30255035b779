"""How fast a store is, as its reads show while they are under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bootseer.core.fields import Fields
from bootseer.units import MIB

_CROWD = 8
"""So many reads at once take all that the store has to give to one node."""
_LEAST_BYTES = 16 * MIB
"""Of fewer, nothing can be told."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a node has of a store.

    Attributes:
        latency_us: of one short read while few others are under way, in microseconds; 0 if that is
            not known.
        bytes_per_s: of many at once, 0 if that is not known.
        nodes: that read at the same time when the rate was measured.
    """

    latency_us: int = 0
    bytes_per_s: int = 0
    nodes: int = 1

    @classmethod
    def of(cls, fields: Fields) -> Speed:
        """Take it from what was decoded of its ``asdict``.

        Raises:
            Corrupt: it is not acceptable.
        """
        latency_us, bytes_per_s = fields.count("latency_us"), fields.count("bytes_per_s")
        return cls(latency_us, bytes_per_s, max(1, fields.count("nodes")))

    def or_else(self, other: Speed) -> Speed:
        """Take from another what is not known."""
        rate = self if self.bytes_per_s else other
        return Speed(self.latency_us or other.latency_us, rate.bytes_per_s, rate.nodes)


UNKNOWN = Speed()


@dataclass(slots=True)
class SpeedMeter:
    """Measures while reads go on, of one trio run.

    Attributes:
        clock: in seconds, that goes forward.
    """

    clock: Callable[[], float]
    _latency_s: float = 0.0
    _running: int = 0
    _since: float = 0.0
    _crowded_s: float = 0.0
    _crowded_bytes: int = 0

    @contextmanager
    def read(self, size_bytes: int) -> Iterator[None]:
        """Count one read of so many bytes; one that fails does not count."""
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
        """Say what is known by now.

        Args:
            nodes: that read at the same time.
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

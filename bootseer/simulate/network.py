"""Time and links of simulated machines."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count


class Clock:
    """Simulated time, and what is to happen.

    Attributes:
        now_s: the time, in seconds since the beginning.
    """

    def __init__(self) -> None:
        """Begin at 0, with nothing to do."""
        self.now_s = 0.0
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Have something done at a time; what is due at one time is done in the order of calls."""
        heapq.heappush(self._actions, (time_s, next(self._numbers), action))

    def run(self) -> None:
        """Do all that is to happen, until nothing is left."""
        while self._actions:
            self.now_s, _, action = heapq.heappop(self._actions)
            action()


@dataclass(slots=True)
class Link:
    """A link in one direction, which sends one thing after the other.

    Real links send them at the same time and more slowly: the last of them ends at the same time.

    Attributes:
        bytes_per_s: its rate.
        free_s: when all that was given to it is sent.
        sent_bytes: given to it so far.
    """

    bytes_per_s: float
    free_s: float = field(default=0.0, init=False)
    sent_bytes: int = field(default=0, init=False)

    def send(self, now_s: float, size_bytes: int) -> float:
        """Send something; returns when its first byte is sent."""
        began_s = max(now_s, self.free_s)
        self.free_s = began_s + size_bytes / self.bytes_per_s
        self.sent_bytes += size_bytes
        return began_s


def transfer(now_s: float, size_bytes: int, sender: Link, receiver: Link) -> float:
    """Send something through two links; returns when its last byte has come."""
    began_s = sender.send(now_s, size_bytes)
    receiver.send(began_s, size_bytes)
    return max(sender.free_s, receiver.free_s)

"""Which piece to fetch next, so that no machine idles while two requests wait for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from heapq import heappop, heappush


class Lanes:
    """Pieces that wait to be fetched, each in the lane of whoever has it.

    A lane is what bounds a rate: a DataNode where it is known who has a piece, else a part file or
    a block. The least busy lane goes first, and in it the earliest piece; so all lanes are kept
    busy, and what is needed first comes first.
    """

    def __init__(self, per_lane: int) -> None:
        """Begin with nothing waiting.

        Args:
            per_lane: fetches at once of one lane.
        """
        self._per_lane = per_lane
        self._waiting: dict[Hashable, list[int]] = {}
        self._busy: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        """Count the pieces that wait."""
        return sum(len(heap) for heap in self._waiting.values())

    def add(self, piece: int, lane: Hashable) -> None:
        """Have a piece wait in its lane."""
        heappush(self._waiting.setdefault(lane, []), piece)

    def take(self) -> tuple[int, Hashable] | None:
        """Take the piece to fetch now; None if all who have pieces waiting are busy."""
        free = [
            (self._busy[lane], heap[0], lane)
            for lane, heap in self._waiting.items()
            if self._busy[lane] < self._per_lane
        ]
        if not free:
            return None
        _, _, lane = min(free, key=lambda choice: choice[:2])
        piece = heappop(self._waiting[lane])
        if not self._waiting[lane]:
            del self._waiting[lane]
        self._busy[lane] += 1
        return piece, lane

    def done(self, lane: Hashable) -> None:
        """Learn that a fetch that was taken has ended."""
        self._busy[lane] -= 1
        if not self._busy[lane]:
            del self._busy[lane]

    def clear(self) -> None:
        """Forget what waits; what was taken is still under way."""
        self._waiting.clear()

"""Choose the next piece to fetch, so that no machine idles while two requests wait for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from heapq import heappop, heappush


class Lanes:
    """Pieces that wait to be fetched, each in the lane of the machine or file that has it.

    A lane is what bounds a rate: a DataNode where it is known which one has a piece, else a part
    file or a block. The least busy lane goes first, and in it the earliest piece; so all lanes are
    kept busy, and what is needed first comes first.
    """

    def __init__(self, per_lane: int) -> None:
        """Begin with nothing waiting.

        Args:
            per_lane: fetches at once of one lane.
        """
        self._per_lane = per_lane
        self._waiting: set[int] = set()
        self._heaps: dict[Hashable, list[int]] = {}  # with pieces that do not wait any more
        self._busy: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, piece: int) -> bool:
        return piece in self._waiting

    def add(self, piece: int, lane: Hashable) -> None:
        self._waiting.add(piece)
        heappush(self._heaps.setdefault(lane, []), piece)

    def remove(self, piece: int) -> None:
        self._waiting.discard(piece)

    def take(self) -> tuple[int, Hashable] | None:
        """Take the piece to fetch now, and its lane; None while all lanes are busy."""
        free = [
            (self._busy[lane], heap[0], lane)
            for lane, heap in list(self._heaps.items())
            if self._busy[lane] < self._per_lane and self._has_first(lane, heap)
        ]
        if not free:
            return None
        _, piece, lane = min(free, key=lambda choice: choice[:2])
        heappop(self._heaps[lane])
        self._waiting.remove(piece)
        self._busy[lane] += 1
        return piece, lane

    def done(self, lane: Hashable) -> None:
        """Learn that the fetch of a piece that was taken has ended."""
        self._busy[lane] -= 1
        if not self._busy[lane]:
            del self._busy[lane]

    def clear(self) -> None:
        """Let nothing wait any longer; what was taken still keeps its lane busy."""
        self._waiting.clear()
        self._heaps.clear()

    def _has_first(self, lane: Hashable, heap: list[int]) -> bool:
        """Bring the first piece that waits to the top of a lane's heap; returns if there is one."""
        while heap and heap[0] not in self._waiting:
            heappop(heap)
        if not heap:
            del self._heaps[lane]
        return bool(heap)

"""First touches of a file, as its reads come in."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from bootseer.image.hot.trace import MAX_TOUCHES, Touch


class FirstTouches:
    """Which ranges were read, each when it was first.

    Attributes:
        touches: in the order of first touch; they do not overlap. No more than a trace can hold.
    """

    def __init__(self) -> None:
        """Begin with nothing read."""
        self.touches: list[Touch] = []
        self._starts: list[int] = []  # of what was read, joined; and where that ends
        self._stops: list[int] = []

    def add(self, start: int, stop: int, now_ms: int) -> None:
        """Note a read; what of it was read before is no news.

        Args:
            start, stop: bytes that were read.
            now_ms: milliseconds from the start of recording.
        """
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        at = start
        for index in range(first, last):
            self._note(at, min(stop, self._starts[index]), now_ms)
            at = max(at, self._stops[index])
        self._note(at, stop, now_ms)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def _note(self, start: int, stop: int, now_ms: int) -> None:
        if start < stop and len(self.touches) < MAX_TOUCHES:
            self.touches.append(Touch(start, stop, now_ms))

"""Record the first touches of a served image: of reads in Python and of reads by the fast path."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from typing import Protocol

from bootseer.image.hot.trace import MAX_TOUCHES, Touch
from bootseer.units import NS_PER_MS


class FastReads(Protocol):
    """Returns the reads that the fast path has answered since the last call."""

    def __call__(self, *, go_on: bool) -> list[tuple[int, int, int]]:
        """Return start and stop of each read, and when it was, in monotonic nanoseconds.

        Args:
            go_on: record the reads to come as well.
        """


class FirstTouches:
    """Which ranges of a file were read, and when each was read first.

    Attributes:
        touches: in the order of first touch; they do not overlap. No more than a trace can hold.
    """

    def __init__(self) -> None:
        self.touches: list[Touch] = []
        self._starts: list[int] = []  # of what was read, joined; and where that ends
        self._stops: list[int] = []

    def add(self, start: int, stop: int, now_ms: int) -> None:
        """Add the part of a read that was not read before.

        Args:
            start, stop: bytes that were read.
            now_ms: milliseconds since the recording began.
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


class TouchLog:
    """First touches from now on, until it is stopped."""

    def __init__(self) -> None:
        self._touched = FirstTouches()
        self._began_ns = time.monotonic_ns()
        self._records = True
        self._fast_reads: FastReads | None = None

    def attach(self, fast_reads: FastReads) -> None:
        """Record the reads of a fast path as well."""
        self._fast_reads = fast_reads

    def note(self, start: int, stop: int) -> None:
        """Record a read that is answered now."""
        if self._records:
            self._collect(go_on=True)
            self._add(start, stop, time.monotonic_ns())

    def touches(self) -> list[Touch]:
        """Return all first touches so far."""
        self._collect(go_on=True)
        return self._touched.touches

    def stop(self) -> None:
        """End the recording; `touches` stay as they are."""
        self._collect(go_on=False)
        self._records = False

    def _collect(self, *, go_on: bool) -> None:
        if self._fast_reads is not None and self._records:
            for start, stop, at_ns in self._fast_reads(go_on=go_on):
                self._add(start, stop, at_ns)

    def _add(self, start: int, stop: int, at_ns: int) -> None:
        if start < stop:
            self._touched.add(start, stop, (at_ns - self._began_ns) // NS_PER_MS)

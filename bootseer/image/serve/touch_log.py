"""What is read of an image while it is served: here, and by what answers before."""

from __future__ import annotations

import time
from typing import Protocol

from bootseer.image.hot.first_touch import FirstTouches
from bootseer.image.hot.trace import Touch
from bootseer.units import NS_PER_MS


class AnsweredReads(Protocol):
    """Who answers reads without asking."""

    def __call__(self, *, go_on: bool) -> list[tuple[int, int, int]]:
        """Tell what was read since the last time: start, stop, monotonic nanoseconds."""


class TouchLog:
    """First touches, from now on until it is stopped."""

    def __init__(self) -> None:
        """Begin to record."""
        self._touched = FirstTouches()
        self._began_ns = time.monotonic_ns()
        self._records = True
        self._reads: AnsweredReads | None = None

    def attach(self, reads: AnsweredReads) -> None:
        """Learn who answers reads without asking."""
        self._reads = reads

    def note(self, start: int, stop: int) -> None:
        """Note what is read now."""
        if self._records:
            self._collect(go_on=True)
            self._add(start, stop, time.monotonic_ns())

    def touches(self) -> list[Touch]:
        """Return what has been read, until `stop`."""
        self._collect(go_on=True)
        return self._touched.touches

    def stop(self) -> None:
        """Let the record be what it is."""
        self._collect(go_on=False)
        self._records = False

    def _collect(self, *, go_on: bool) -> None:
        if self._reads is not None and self._records:
            for start, stop, at_ns in self._reads(go_on=go_on):
                self._add(start, stop, at_ns)

    def _add(self, start: int, stop: int, at_ns: int) -> None:
        if start < stop:
            self._touched.add(start, stop, (at_ns - self._began_ns) // NS_PER_MS)

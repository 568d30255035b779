"""Record which ranges of an image enter the page cache during a start-up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from bootseer.core.ranges import ByteRange, subtract, total_bytes
from bootseer.image.hot.residency import PAGE_BYTES
from bootseer.image.hot.trace import MAX_TOUCHES, Touch

_SAMPLE_RANGES = 16_384

MIN_USED_SHARE = 0.25
"""Of a start's pages: if fewer are in active use, the kernel's lists say nothing about it."""

COMPLETE_SHARE = 0.02
"""A recording is complete if no more of the image was resident before."""


class ResidentPages(Protocol):
    """The pages of one file that are resident; not safe from several threads at once.

    Attributes:
        size_bytes: length of the file.
    """

    size_bytes: int

    def newly_resident(self, most: int) -> list[tuple[int, int]]:
        """List the ranges that have become resident since the last call, in file order.

        Args:
            most: the limit of their number, at least one; if it is reached, there may be more.

        Raises:
            Unavailable: the kernel does not tell.
        """

    def active(self, start: int, stop: int) -> bytes | None:
        """Return for each page of a range how it is used; this can block in reading the file.

        Returns:
            A byte for each page. 0: it was read ahead only; 1: it is in active use; 2: it is not
            resident any more. None if the kernel does not tell.
        """

    def close(self) -> None:
        """Close the file."""


class ResidencyRecorder:
    """Samples the residency of one image; not safe from several threads at once."""

    def __init__(self, pages: ResidentPages, leading: Iterable[ByteRange] = ()) -> None:
        """Take the first sample.

        Args:
            pages: of the image; `close` closes them.
            leading: superblock and tables, which are read at every start and not recorded.

        Raises:
            Unavailable: the kernel does not tell which pages are resident.
        """
        self._pages = pages
        self._leading = list(leading)
        self._stop = False
        self.touches: list[Touch] = []
        self.size_bytes = pages.size_bytes
        try:
            self.resident_before = subtract(self._newly_resident(), self._leading)
        except BaseException:
            self.close()
            raise

    @property
    def found_cold(self) -> bool:
        """The image was practically absent from the page cache when recording began."""
        return total_bytes(self.resident_before) <= COMPLETE_SHARE * self.size_bytes

    def sample(self, now_ms: int) -> int:
        """Record what has become resident since the last sample; returns how many bytes.

        Args:
            now_ms: milliseconds since recording began, the time noted for these ranges.
        """
        fresh = subtract(self._newly_resident(), self._leading)
        room = MAX_TOUCHES - len(self.touches)
        self.touches += [Touch(start, stop, now_ms) for start, stop in fresh[:room]]
        return total_bytes(fresh)

    def settle(self) -> None:
        """Remove what was only read ahead, at the end of the recording.

        The kernel's read-ahead makes a trace a third larger than what a start needs, and so the
        time to prefetch it. If a removed page is needed after all, the start that misses it records
        it. Pages that are not resident any more are kept, for their use is unknown. If the kernel
        does not tell which pages are in use, or names hardly any, nothing is removed.

        It can block in reading the image: call it in a thread of its own; `stop_settling` ends it
        at the next touch.
        """
        kept: list[Touch] = []
        bytes_of = [0, 0, 0]  # by how they are used, see `ResidentPages.active`
        for touch in self.touches:
            if self._stop:
                return
            pages = self._pages.active(touch.start, touch.stop)
            if pages is None:
                return
            for start, stop, use in _runs(touch, pages):
                bytes_of[use] += stop - start
                if use:
                    kept.append(Touch(start, stop, touch.first_ms))
        ahead, used, _ = bytes_of
        if not self._stop and used >= MIN_USED_SHARE * (used + ahead):
            self.touches = kept

    def stop_settling(self) -> None:
        """End a `settle` in another thread; it removes nothing then."""
        self._stop = True

    def close(self) -> None:
        """Close the pages; `touches` stay readable."""
        self._pages.close()

    def _newly_resident(self) -> list[ByteRange]:
        ranges: list[ByteRange] = []
        while True:
            found = self._pages.newly_resident(_SAMPLE_RANGES)
            ranges += [ByteRange(start, stop) for start, stop in found]
            if len(found) < _SAMPLE_RANGES or len(ranges) >= MAX_TOUCHES:
                return ranges


def _runs(touch: Touch, pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut a touched range where its pages' state changes."""
    first = touch.start // PAGE_BYTES
    at, state = touch.start, pages[0]
    for page in range(first + 1, -(-touch.stop // PAGE_BYTES)):
        if pages[page - first] != state:
            yield at, page * PAGE_BYTES, state
            at, state = page * PAGE_BYTES, pages[page - first]
    yield at, touch.stop, state

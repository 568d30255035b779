"""Record which ranges of an image enter the page cache during a start-up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from bootseer.core.ranges import ByteRange, subtract, total_bytes
from bootseer.image.hot.residency import PAGE_BYTES
from bootseer.image.hot.trace import MAX_TOUCHES, Touch

_SAMPLE_RANGES = 16_384

MIN_USED_SHARE = 0.25
"""With fewer pages than this in active use, the kernel's lists say nothing about this start."""

COMPLETE_SHARE = 0.02
"""Up to this share of the image may be resident beforehand for the recording to count as whole."""


class ResidentPages(Protocol):
    """What tells of the pages of one file; not safe from several threads at once.

    Attributes:
        size_bytes: length of the file.
    """

    size_bytes: int

    def newly_resident(self, most: int) -> list[tuple[int, int]]:
        """List the ranges that have become resident since the last call, in file order.

        Args:
            most: of them, at least one; with as many, there may be more.

        Raises:
            Unavailable: it cannot be told.
        """

    def active(self, start: int, stop: int) -> bytes | None:
        """Tell of each page of a range how it is used.

        It can block in reading the file.

        Returns:
            A byte for each: 0, it was read ahead only; 1, it is in active use; 2, it has gone
            meanwhile. None where the kernel does not say.
        """

    def close(self) -> None:
        """Look no more."""


class ResidencyRecorder:
    """Samples the residency of one image; not safe from several threads at once."""

    def __init__(self, pages: ResidentPages, leading: Iterable[ByteRange] = ()) -> None:
        """Take the sample that later ones differ from.

        Args:
            pages: of the image; closed by `close`.
            leading: superblock and tables, which are read at every start and not recorded.

        Raises:
            Unavailable: they cannot be looked at.
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
        """Note what has become resident since the last sample; returns how many bytes.

        Args:
            now_ms: milliseconds since recording began, the time noted for these ranges.
        """
        fresh = subtract(self._newly_resident(), self._leading)
        room = MAX_TOUCHES - len(self.touches)
        self.touches += [Touch(start, stop, now_ms) for start, stop in fresh[:room]]
        return total_bytes(fresh)

    def settle(self) -> None:
        """Forget what was only read ahead, at the end of the recording.

        The kernel's read-ahead makes a trace a third larger than what a start needs, and the time
        to prefetch it. Should a forgotten page be needed after all, the start that misses it
        records it. Of a page that the kernel has given up nobody knows, so it is kept. Where the
        kernel does not say which pages are in use, or calls hardly any so, nothing is forgotten.

        It can block in reading the image: call it in a thread of its own, which `stop_settling`
        ends at the next touch.
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
        """Have a `settle` that is under way in another thread forget nothing more, and end."""
        self._stop = True

    def close(self) -> None:
        """Stop watching; what was recorded stays readable."""
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

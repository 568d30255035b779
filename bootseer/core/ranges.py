"""Half-open ranges of bytes, and operations on lists of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from bootseer.errors import Corrupt


class ByteRange(NamedTuple):
    """Bytes ``start`` up to, not including, ``stop``."""

    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


def total_bytes(ranges: Iterable[ByteRange]) -> int:
    """Sum the lengths of ranges that do not overlap, in bytes."""
    return sum(stop - start for start, stop in ranges)


def coalesce(ranges: Iterable[ByteRange], gap_bytes: int = 0) -> list[ByteRange]:
    """Sort ranges and join those that overlap or lie at most ``gap_bytes`` apart."""
    joined: list[ByteRange] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1].stop + gap_bytes:
            if stop > joined[-1].stop:
                joined[-1] = ByteRange(joined[-1].start, stop)
        elif start < stop:
            joined.append(ByteRange(start, stop))
    return joined


def subtract(ranges: Iterable[ByteRange], holes: Iterable[ByteRange]) -> list[ByteRange]:
    """Return ``ranges`` without ``holes``, in the order of ``ranges``.

    Args:
        ranges: in any order.
        holes: in any order, overlapping or not.
    """
    cuts = coalesce(holes)
    starts = [cut.start for cut in cuts]
    kept: list[ByteRange] = []
    for start, stop in ranges:
        index = max(0, bisect_right(starts, start) - 1)
        at = start
        while at < stop:
            while index < len(cuts) and cuts[index].stop <= at:
                index += 1
            if index == len(cuts) or cuts[index].start >= stop:
                kept.append(ByteRange(at, stop))
                break
            if cuts[index].start > at:
                kept.append(ByteRange(at, cuts[index].start))
            at = cuts[index].stop
    return kept


def split(byte_range: ByteRange, size_bytes: int) -> Iterator[ByteRange]:
    """Cut a range into pieces that end at multiples of ``size_bytes`` of the file."""
    at = byte_range.start
    while at < byte_range.stop:
        stop = min(byte_range.stop, at - at % size_bytes + size_bytes)
        yield ByteRange(at, stop)
        at = stop


def runs(
    indexes: Iterable[int], kind: Callable[[int], Hashable] = lambda index: None
) -> Iterator[range]:
    """Cut sorted indexes into runs of consecutive ones of the same kind."""
    for _, group in groupby(enumerate(indexes), lambda pair: (pair[1] - pair[0], kind(pair[1]))):
        run = [index for _, index in group]
        yield range(run[0], run[-1] + 1)


def check_ranges(ranges: Collection[ByteRange], maximum: int, name: str) -> None:
    """Check ranges from another process.

    Raises:
        Corrupt: a range is invalid, or there are more than ``maximum``.
    """
    if len(ranges) > maximum:
        raise Corrupt(f"{name}: more than {maximum} ranges")
    if not all(0 <= start < stop < 2**63 for start, stop in ranges):
        raise Corrupt(f"{name}: invalid range")

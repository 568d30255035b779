"""A holdout: pieces of a hot set that one node does not read ahead, to see whether its start asks.

What is read ahead is in memory when the start comes to it, and nobody sees whether it does. What it
asks for of the holdout tells how much of the rest it reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, compress
from random import Random
from typing import NamedTuple

from bootseer.core.ranges import ByteRange, coalesce
from bootseer.units import KIB, MIB

PIECES = 32
"""In a holdout: a read of some milliseconds each, of a start of seconds."""
PIECE_BYTES = 64 * KIB
LEAST_BYTES = 64 * MIB
"""A smaller hot set is read ahead before anybody could judge it."""

MOSTLY = 0.5
"""Of a holdout: whose start asks for less has mostly not read the hot set."""
IDLE_BYTES = 16 * MIB
"""A start that reads less than that, hot or not, says nothing of the hot set."""

_BEGUN_BYTES = 8 * MIB
"""Read by the start itself: it is under way, and in want of something."""
_UNDER_WAY_BYTES = 32 * MIB
"""What may have been read ahead, and is not said to be yet."""
_GRACE_MS = 500
"""For the start to come to what has been read ahead."""


class HeldOutPiece(NamedTuple):
    """A piece that is held out, and how many hot bytes are read ahead before it would be."""

    start: int
    stop: int
    at_bytes: int

    @property
    def range(self) -> ByteRange:
        """What is held out."""
        return ByteRange(self.start, self.stop)


def draw(hot: Sequence[ByteRange], random: Random) -> list[HeldOutPiece]:
    """Draw a holdout; each byte of the hot set is as likely to be in it. Empty if it is small.

    Args:
        hot: ranges in the order in which they are read ahead; they do not overlap.
        random: where chance comes from.
    """
    ends = list(accumulate(r.size_bytes for r in hot))
    if not ends or ends[-1] < LEAST_BYTES:
        return []
    pieces = {}
    for at in random.sample(range(ends[-1]), PIECES):
        index = bisect_right(ends, at)
        within = hot[index]
        before = ends[index] - within.size_bytes
        start = within.start + (at - before) // PIECE_BYTES * PIECE_BYTES
        piece = HeldOutPiece(
            start, min(start + PIECE_BYTES, within.stop), before + start - within.start
        )
        pieces[start] = piece
    return sorted(pieces.values(), key=lambda piece: piece.at_bytes)


def touching(ranges: Iterable[ByteRange], touched: Iterable[ByteRange]) -> Iterator[bool]:
    """Yield for each range whether any byte of it is among what was touched."""
    joined = coalesce(touched)
    starts = [r.start for r in joined]
    for start, stop in ranges:
        last = bisect_left(starts, stop) - 1
        yield last >= 0 and joined[last].stop > start


def count_read(pieces: Iterable[ByteRange], touched: Iterable[ByteRange]) -> int:
    """Count the pieces that have something touched."""
    return sum(touching(pieces, touched))


class HoldoutJudge:
    """Says while a start runs whether reading ahead for it is worth while.

    It is until the start reads for itself: what is not hot, or will not be read ahead soon. From
    then on it is if, by the holdout, half of what was read ahead a while ago has been read: who
    reads less of it would rather have the store to himself.
    """

    def __init__(self, pieces: Sequence[HeldOutPiece], ahead: Sequence[ByteRange]) -> None:
        """Take the holdout, and what is read ahead without it, in that order."""
        self._pieces = pieces
        self._piece_ranges = [piece.range for piece in pieces]
        self._due_ms: dict[HeldOutPiece, int] = {}
        self._read: set[HeldOutPiece] = set()
        ends = accumulate(r.size_bytes for r in ahead)
        ordered = sorted(zip(ahead, ends, strict=True))
        self._ranges = [r for r, _ in ordered]
        self._starts = [r.start for r, _ in ordered]
        self._ends = [end for _, end in ordered]
        self._own_bytes = 0
        self._fresh: Sequence[ByteRange] = ()

    def note(self, fresh: Sequence[ByteRange], done_bytes: int, now_ms: int) -> None:
        """Note what has come into memory since the last time.

        Whose it is, is told the next time: only then is all of it said that was read ahead of it.

        Args:
            fresh: that is; in file order.
            done_bytes: of the hot set, that are said to have been read ahead by now.
            now_ms: of a clock.
        """
        self._own_bytes += sum(self._own(r, done_bytes + _UNDER_WAY_BYTES) for r in self._fresh)
        self._fresh = fresh
        is_read = touching(self._piece_ranges, fresh)
        self._read.update(compress(self._pieces, is_read))
        for piece in self._pieces:
            if piece.at_bytes <= done_bytes:
                self._due_ms.setdefault(piece, now_ms + _GRACE_MS)

    def is_worth(self, now_ms: int) -> bool:
        """Say whether to read on, at a time of the same clock."""
        if self._own_bytes < _BEGUN_BYTES:
            return True
        due = [piece for piece, due_ms in self._due_ms.items() if due_ms <= now_ms]
        read = sum(piece in self._read for piece in due)
        # As if two more had been looked at, of which one was read: a few say little.
        return (read + 1) / (len(due) + 2) >= MOSTLY

    def _own(self, fresh: ByteRange, done_bytes: int) -> int:
        """Count what of a range nobody can have read ahead."""
        first = max(0, bisect_right(self._starts, fresh.start) - 1)
        last = bisect_left(self._starts, fresh.stop)
        own_bytes = fresh.size_bytes
        for (start, stop), end in zip(
            self._ranges[first:last], self._ends[first:last], strict=True
        ):
            # Of a range that is being read, the first part.
            done_to = min(stop, stop - end + done_bytes)
            own_bytes -= max(0, min(done_to, fresh.stop) - max(start, fresh.start))
        return own_bytes

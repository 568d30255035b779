"""A holdout: pieces of a hot set that one node does not read ahead, to see if its start reads them.

What was read ahead is in memory when the start reads it, so those reads cannot be seen. The share
of the holdout that the start reads is an estimate of the share of the rest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, compress
from random import Random
from typing import NamedTuple

from bootseer.core.ranges import ByteRange, coalesce
from bootseer.errors import Corrupt
from bootseer.units import KIB, MIB

PIECES = 32
"""In a holdout. A start of seconds waits some milliseconds for each."""
PIECE_BYTES = 64 * KIB
LEAST_BYTES = 64 * MIB
"""A smaller hot set has been read ahead before it could be judged."""

MOSTLY = 0.5
"""Of a holdout: a start that reads less of it has not read most of the hot set."""
IDLE_BYTES = 16 * MIB
"""A start that reads less, hot or not, says nothing about the hot set."""

_BEGUN_BYTES = 8 * MIB
"""Read by the start itself: it is running, and waits for the store."""
_UNDER_WAY_BYTES = 32 * MIB
"""What may have been read ahead and is not reported yet."""
_GRACE_MS = 500
"""For the start to read what has been read ahead."""


class HeldOutPiece(NamedTuple):
    """A piece that is held out; ``at_bytes`` hot bytes are read ahead before its turn."""

    start: int
    stop: int
    at_bytes: int

    @property
    def range(self) -> ByteRange:
        return ByteRange(self.start, self.stop)


def draw(hot: Sequence[ByteRange], random: Random) -> list[HeldOutPiece]:
    """Draw a holdout: each hot byte is equally likely to be in it. Empty for a small hot set.

    Args:
        hot: ranges in the order in which they are read ahead; they do not overlap.
        random: the random generator.
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
    """Yield for each range whether any byte of it was touched."""
    joined = coalesce(touched)
    starts = [r.start for r in joined]
    for start, stop in ranges:
        last = bisect_left(starts, stop) - 1
        yield last >= 0 and joined[last].stop > start


def count_read(pieces: Iterable[ByteRange], touched: Iterable[ByteRange]) -> int:
    """Count the pieces of which any byte was touched."""
    return sum(touching(pieces, touched))


class HoldoutJudge:
    """Judges, while a start runs, whether read-ahead is worth it.

    It is worth it until the start itself reads from the store: ranges that are not hot, or are not
    read ahead soon. From then on it is worth it if the start has read half of what was read ahead a
    while ago, estimated by the holdout. A start that reads less needs the store for itself.
    """

    def __init__(self, pieces: Sequence[HeldOutPiece], ahead: Sequence[ByteRange]) -> None:
        """Judge by a holdout.

        Args:
            pieces: of the holdout.
            ahead: the other hot ranges, in the order in which they are read ahead.
        """
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
        """Note what has come into memory since the last call.

        Whether the start or the read-ahead has read it is decided at the next call: only then is
        all read-ahead reported that came before.

        Args:
            fresh: the ranges that have come, in file order.
            done_bytes: how much of the hot set is reported as read ahead.
            now_ms: the time, in milliseconds.
        """
        self._own_bytes += sum(self._own(r, done_bytes + _UNDER_WAY_BYTES) for r in self._fresh)
        self._fresh = fresh
        is_read = touching(self._piece_ranges, fresh)
        self._read.update(compress(self._pieces, is_read))
        for piece in self._pieces:
            if piece.at_bytes <= done_bytes:
                self._due_ms.setdefault(piece, now_ms + _GRACE_MS)

    def is_worth(self, now_ms: int) -> bool:
        """Whether to go on with the read-ahead, at a time of the same clock."""
        if self._own_bytes < _BEGUN_BYTES:
            return True
        due = [piece for piece, due_ms in self._due_ms.items() if due_ms <= now_ms]
        read = sum(piece in self._read for piece in due)
        # As if two more had been looked at, of which one was read: a few say little.
        return (read + 1) / (len(due) + 2) >= MOSTLY

    def _own(self, fresh: ByteRange, done_bytes: int) -> int:
        """Count the bytes of a range that cannot have been read ahead."""
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


def check_pieces(pieces: Sequence[HeldOutPiece], name: str) -> None:
    """Check a holdout that another process has named.

    Raises:
        Corrupt: a piece is none, or there are too many.
    """
    if len(pieces) > PIECES:
        raise Corrupt(f"{name}: more than {PIECES} pieces are held out")
    if not all(0 <= p.start < p.stop < 2**63 and p.at_bytes >= 0 for p in pieces):
        raise Corrupt(f"{name}: a piece that is none is held out")

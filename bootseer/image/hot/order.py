"""The order in which ranges of an image are read ahead, and where that stops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bootseer.core.ranges import ByteRange, split, subtract


def prefetch_order(
    first: Iterable[ByteRange],
    hot: Iterable[ByteRange],
    budget_bytes: int,
    piece_bytes: int,
) -> Iterator[ByteRange]:
    """Yield pieces to read: ``first`` in order, then ``hot`` in order, nothing twice.

    Args:
        first: superblock and tables.
        hot: the hot set's ranges in first-touch order.
        budget_bytes: stop before more than this has been yielded.
        piece_bytes: largest piece; pieces end at its multiples.
    """
    leading = list(first)
    left = budget_bytes
    for whole in (*leading, *subtract(hot, leading)):
        for piece in split(whole, piece_bytes):
            left -= piece.size_bytes
            if left < 0:
                return
            yield piece

"""Where the data of an image has gone that was written anew, and with it its hot set."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from bootseer.core.ranges import ByteRange
from bootseer.image.hot.hotset import HotRange


class DataMove(NamedTuple):
    """A stretch of data that lies elsewhere now; or one block, stored anew.

    ``length`` is what such a block's inode is to say, with BLOCK_RAW; None where nothing changes.
    """

    old: ByteRange
    new: ByteRange
    length: int | None = None


class DataMoves:
    """Where all data of an image is now."""

    def __init__(self, moves: Iterable[DataMove]) -> None:
        """Take moves in any order, of stretches that do not overlap."""
        self._moves = sorted(moves)
        self._starts = [move.old.start for move in self._moves]

    def find(self, start: int, length: int) -> tuple[int, int]:
        """Return where a data block is now, and its length with BLOCK_RAW, given both as it was."""
        move = self._moves[bisect_right(self._starts, start) - 1]
        return start + move.new.start - move.old.start, move.length or length

    def hot_ranges(self, hot: Iterable[HotRange]) -> tuple[HotRange, ...]:
        """Return what is hot of the new image, given that of the old one, in the same order.

        What is hot of its tables is left out: superblock and tables are read ahead at any start.
        """
        whole: set[int] = set()
        found: list[HotRange] = []
        for start, stop, first_ms, weight_ppm in hot:
            parts: list[ByteRange] = []
            first = max(0, bisect_right(self._starts, start) - 1)
            for old, new, length in islice(self._moves, first, None):
                if old.start >= stop:
                    break
                if old.stop <= start or new.start in whole:
                    continue
                if length is not None:
                    whole.add(new.start)
                else:
                    shift = new.start - old.start
                    new = ByteRange(max(start, old.start) + shift, min(stop, old.stop) + shift)
                if parts and parts[-1].stop == new.start:
                    parts[-1] = ByteRange(parts[-1].start, new.stop)
                else:
                    parts.append(new)
            found += [HotRange(*part, first_ms, weight_ppm) for part in parts]
        return tuple(found)

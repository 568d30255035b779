"""Which pieces of a file the kernel's page cache should have."""

from __future__ import annotations

from collections import defaultdict
from enum import Enum

from bootseer.checkpoint.files.stripe_manifest import units_between

_LOST_PIECES = 4


class ReadKind(Enum):
    """What the kernel asks for: what it never had, a hole in what it had, or all anew."""

    NEW = 1
    HOLE = 2
    DROPPED = 3


class CachedPieces:
    """The pieces of one file that were given to the kernel as a whole.

    What is asked for again of such a piece is a hole that memory pressure has made: it shows
    nothing of where a reader is going, and nothing is to be read ahead for it. Only who finds holes
    in one piece after another reads a file that was dropped, and is followed anew.

    Attributes:
        numbers: of the pieces; one that is put into the page cache unasked is added by who does so.
    """

    def __init__(self, piece_bytes: int, size_bytes: int) -> None:
        """Begin with nothing.

        Args:
            piece_bytes: length of a piece; the last may be shorter.
            size_bytes: length of the file.
        """
        self.numbers: set[int] = set()
        self._piece_bytes = piece_bytes
        self._size_bytes = size_bytes
        self._asked: defaultdict[int, int] = defaultdict(int)  # bytes of what is not whole yet
        self._holes: set[int] = set()  # pieces that have one

    def ask(self, offset: int, size_bytes: int) -> ReadKind:
        """Note what the kernel asks for."""
        stop = min(self._size_bytes, offset + size_bytes)
        asked = ReadKind.NEW
        for number in units_between(offset, stop, self._piece_bytes):
            if number in self.numbers:
                asked = self._hole(number)
                continue
            start = number * self._piece_bytes
            end = min(self._size_bytes, start + self._piece_bytes)
            self._asked[number] += min(stop, end) - max(offset, start)
            if self._asked[number] >= end - start:
                del self._asked[number]
                self.numbers.add(number)
        return asked

    def _hole(self, number: int) -> ReadKind:
        # The kernel asks for several ranges at once, and they do not arrive in order.
        self._holes.add(number)
        if not self._holes.issuperset(range(number - _LOST_PIECES + 1, number + 1)):
            return ReadKind.HOLE
        self.numbers.clear()
        self._holes.clear()
        return ReadKind.DROPPED

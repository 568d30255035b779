"""Which pieces of a file the kernel's page cache should have."""

from __future__ import annotations

from collections import defaultdict

from bootseer.core.stripe import units_between

_LOST_PIECES = 4


class CachedPieces:
    """The pieces of one file that were given to the kernel as a whole.

    What is asked for again of such a piece is a hole that memory pressure has made: it shows
    nothing of where a reader is going, and nothing is to be read ahead for it. Only who finds holes
    in one piece after another reads a file that is no longer cached, and is followed like anybody.

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
        self._hole = -1
        self._holes = 0

    def ask(self, offset: int, size_bytes: int) -> bool:
        """Note what the kernel asks for; returns whether that is a hole."""
        stop = min(self._size_bytes, offset + size_bytes)
        is_hole = False
        for number in units_between(offset, stop, self._piece_bytes):
            if number in self.numbers:
                is_hole = self._is_hole(number)
                continue
            start = number * self._piece_bytes
            end = min(self._size_bytes, start + self._piece_bytes)
            self._asked[number] += min(stop, end) - max(offset, start)
            if self._asked[number] >= end - start:
                del self._asked[number]
                self.numbers.add(number)
        return is_hole

    def _is_hole(self, number: int) -> bool:
        if number != self._hole:
            self._holes = self._holes + 1 if number == self._hole + 1 else 1
            self._hole = number
        if self._holes < _LOST_PIECES:
            return True
        self.numbers.clear()
        return False

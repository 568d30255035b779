"""Track which pieces of a file the kernel's page cache should have."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

from bootseer.checkpoint.files.stripe_manifest import units_between

_LOST_PIECES = 4


class ReadKind(Enum):
    """What the kernel reads: content it never had, a page it lost, or a file it has dropped."""

    NEW = 1
    HOLE = 2
    DROPPED = 3


@dataclass(eq=False)
class CachedPieces:
    """The pieces of one file that the kernel has been given as a whole.

    A read of such a piece is of pages that memory pressure has dropped. It does not show where the
    reader goes, so nothing is read ahead for it. Reads of this kind in several pieces in a row mean
    that the whole file was dropped; reading ahead begins again then.

    Attributes:
        numbers: of the pieces; a piece that is pushed into the page cache is added by the caller.
        piece_bytes: length of a piece; the last may be shorter.
        size_bytes: length of the file.
    """

    piece_bytes: int
    size_bytes: int
    numbers: set[int] = field(default_factory=set)
    # Bytes of what is not whole yet; pieces that have a hole.
    _asked: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    _holes: set[int] = field(default_factory=set)

    def ask(self, offset: int, size_bytes: int) -> ReadKind:
        """Note a read of the kernel, and return its kind."""
        stop = min(self.size_bytes, offset + size_bytes)
        asked = ReadKind.NEW
        for number in units_between(offset, stop, self.piece_bytes):
            if number in self.numbers:
                asked = self._hole(number)
                continue
            start = number * self.piece_bytes
            end = min(self.size_bytes, start + self.piece_bytes)
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

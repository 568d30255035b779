"""How far to read ahead of a reader: far for reads in sequence, not at all for random ones."""

from __future__ import annotations

from bootseer.core.ranges import ByteRange

GROWTH = 64


class ReadaheadWindow:
    """Follows the reads of one file and says what to read ahead.

    A read is in sequence if it begins near the end of the last ones, on either side: the kernel
    asks for several pieces at once, and not always in order. A first read at the beginning of the
    file counts as in sequence; elsewhere, only the second read can.

    Attributes:
        window_bytes: how far it reads ahead; 0 while reads are not in sequence.
    """

    def __init__(self, size_bytes: int, first_bytes: int, limit_bytes: int) -> None:
        """Begin with nothing read.

        Args:
            size_bytes: length of the file.
            first_bytes: how far to read ahead at first.
            limit_bytes: how far at most.
        """
        self._size_bytes = size_bytes
        self._first_bytes = first_bytes
        self._limit_bytes = max(first_bytes, limit_bytes)
        self.window_bytes = 0
        self._position = 0
        self._ahead = 0

    def restart(self, offset: int) -> None:
        """Forget all earlier read-ahead: a reader continues in sequence from here."""
        self.window_bytes = 0
        self._position = self._ahead = offset

    def read(self, offset: int, size_bytes: int) -> ByteRange:
        """Note a read; returns what to read ahead now, beyond what earlier calls returned."""
        stop = min(self._size_bytes, offset + size_bytes)
        near = self._position - self._first_bytes <= offset <= self._ahead + self._first_bytes
        if not near:
            # Nothing ahead until the next read shows a direction.
            self.restart(stop)
            return ByteRange(stop, stop)
        self._position = max(self._position, stop)
        self._ahead = max(self._ahead, self._position)
        if self._ahead - self._position > self.window_bytes // 2:
            return ByteRange(self._ahead, self._ahead)
        grown = self.window_bytes * GROWTH or self._first_bytes
        self.window_bytes = min(self._limit_bytes, grown)
        start = self._ahead
        self._ahead = min(self._size_bytes, self._position + self.window_bytes)
        self._ahead = max(start, self._ahead)
        return ByteRange(start, self._ahead)

"""How far to read ahead of a reader: far for reads in sequence, not at all for random ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from bootseer.core.ranges import ByteRange


@dataclass(eq=False, slots=True)
class ReadaheadWindow:
    """Follows the reads of one file and says what to read ahead.

    A read is in sequence if it begins at most `first_bytes` from the last ones, on either side: the
    kernel asks for several pieces at once, and not always in order. A first read at the beginning
    of the file counts as in sequence; elsewhere, only the second read can.

    Attributes:
        size_bytes: length of the file.
        first_bytes: how far to read ahead at first.
        limit_bytes: how far at most, if that is more.
        growth: factor by which the window grows, each time that half of it has been read.
        step_bytes: read-ahead ends at a multiple of this length, if it reaches one.
        window_bytes: how far it reads ahead; 0 while reads are not in sequence.
        position: offset of the end of what was read.
        ahead: offset of the end of what was read ahead; at least `position`.
    """

    size_bytes: int
    first_bytes: int
    limit_bytes: int
    growth: int
    step_bytes: int = 1
    window_bytes: int = field(default=0, init=False)
    position: int = field(default=0, init=False)
    ahead: int = field(default=0, init=False)

    def restart(self, offset: int) -> None:
        """Forget all earlier read-ahead: a reader continues in sequence from here."""
        self.window_bytes = 0
        self.position = self.ahead = offset

    def read(self, offset: int, size_bytes: int) -> ByteRange:
        """Note a read; returns what to read ahead now, beyond what earlier calls returned."""
        stop = min(self.size_bytes, offset + size_bytes)
        if not self.position - self.first_bytes <= offset <= self.ahead + self.first_bytes:
            # Nothing ahead until the next read shows a direction.
            self.restart(stop)
            return ByteRange(stop, stop)
        self.position = max(self.position, stop)
        start = self.ahead = max(self.ahead, self.position)
        if start - self.position <= self.window_bytes // 2:
            grown = min(self.limit_bytes, self.window_bytes * self.growth)
            self.window_bytes = max(self.first_bytes, grown)
            stop = self.position + self.window_bytes
            whole = stop - stop % self.step_bytes
            self.ahead = max(start, min(self.size_bytes, whole if whole > start else stop))
        return ByteRange(start, self.ahead)

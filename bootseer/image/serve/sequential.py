"""Find sequential readers of an image, and say what to read ahead for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bootseer.readahead_window import ReadaheadWindow
from bootseer.units import KIB, MIB

_READERS = 16
"""Readers that are followed at a time: those that missed last."""
_IN_ORDER_BYTES = 384 * KIB
"""That a reader must have read in order; of shorter runs, much would be fetched for nothing."""
_FIRST_BYTES = 256 * KIB
_MOST_BYTES = 8 * MIB
_GROWTH = 2

_Reader = tuple[int, ReadaheadWindow]
"""The offset in the image at which a reader began, and its window."""


@dataclass(slots=True)
class SequentialReaders:
    """Follows readers by what they miss; what is cached is read without this process.

    Read-ahead starts once a reader has read a while sequentially. Most of it is used.

    Attributes:
        blocks: the number of blocks of the image.
        block_bytes: length of a block.
        step: the number of blocks that are fetched together.
    """

    blocks: int
    block_bytes: int
    step: int
    _readers: deque[_Reader] = field(default_factory=lambda: deque(maxlen=_READERS))

    def ahead(self, missed: range) -> range:
        """Return the blocks to read ahead for the reader that missed these; often none."""
        block_bytes = self.block_bytes
        start, stop = missed.start * block_bytes, missed.stop * block_bytes
        reader = self._take(start)
        begin, window = reader or (start, self._window())
        self._readers.append((begin, window))
        if reader is None or stop - begin < _IN_ORDER_BYTES:
            window.restart(stop)
            return range(0)
        ahead = window.read(start, stop - start)
        return range(ahead.start // block_bytes, ahead.stop // block_bytes)

    def _take(self, offset: int) -> _Reader | None:
        """Remove and return the reader that continues at this offset; None if there is none."""
        for reader in reversed(self._readers):
            _, window = reader
            # Reads in order may share a block.
            if window.position - self.block_bytes <= offset <= window.ahead:
                self._readers.remove(reader)
                return reader
        return None

    def _window(self) -> ReadaheadWindow:
        size_bytes, step_bytes = self.blocks * self.block_bytes, self.step * self.block_bytes
        first_bytes = max(_FIRST_BYTES, self.block_bytes)
        return ReadaheadWindow(size_bytes, first_bytes, _MOST_BYTES, _GROWTH, step_bytes)

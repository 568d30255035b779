"""Find sequential readers of an image, and say what to read ahead for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bootseer.units import KIB, MIB

_READERS = 16
"""Readers that are followed at a time: those that missed last."""
_IN_ORDER_BYTES = 384 * KIB
"""That a reader must have read in order; of shorter runs, much would be fetched for nothing."""
_FIRST_BYTES = 256 * KIB
_MOST_BYTES = 8 * MIB


@dataclass(eq=False, slots=True)
class _Reader:
    """A reader that may go on.

    Attributes:
        read_from: the first block that it has missed.
        read_to: the block after the last one that it has missed.
        fetched_to: the block after the last one that was fetched ahead of it.
        ahead: the number of blocks that were fetched ahead of it last.
    """

    read_from: int
    read_to: int
    fetched_to: int = 0
    ahead: int = 0


@dataclass(slots=True)
class SequentialReaders:
    """Follows readers by what they miss; what is cached is read without this process.

    Read-ahead starts once a reader has read a while sequentially, and doubles each time that the
    reader has used half of it. Most of what is read ahead is used.

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
        reader = self._find(missed)
        if reader is None:
            self._readers.append(_Reader(missed.start, missed.stop))
            return range(0)
        reader.read_to = missed.stop
        if (missed.stop - reader.read_from) * self.block_bytes < _IN_ORDER_BYTES:
            return range(0)
        start = max(missed.stop, reader.fetched_to)
        if start - missed.stop > reader.ahead // 2:
            return range(0)
        more = min(max(_FIRST_BYTES, 2 * reader.ahead * self.block_bytes), _MOST_BYTES)
        reader.ahead = max(1, more // self.block_bytes)
        stop = missed.stop + reader.ahead
        if stop - stop % self.step > start:
            stop -= stop % self.step  # whole fetches
        reader.fetched_to = min(stop, self.blocks)
        return range(start, reader.fetched_to)

    def _find(self, missed: range) -> _Reader | None:
        """Return the reader that continues with these blocks, as the latest from now on."""
        for reader in reversed(self._readers):
            if reader.read_to - 1 <= missed.start <= max(reader.read_to, reader.fetched_to):
                self._readers.remove(reader)
                self._readers.append(reader)
                return reader
        return None

"""Options of striping, and what all files that are being written share."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import trio

from bootseer.checkpoint.files.stripe_manifest import check_unit_bytes
from bootseer.core.meter import Meter
from bootseer.store.api.base import Store
from bootseer.units import GIB, MIB

_WARY_S = 600.0
"""Seconds after a part broke in which HDFS may still choose a machine that has died."""
_BLOCK_BYTES = 128 * MIB
"""HDFS's default."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of striping.

    Attributes:
        unit_bytes: length of a stripe unit, a power of two.
        width: most parts that one file is written to at once; more than there are DataNodes, for
            HDFS places parts at random.
        streams: most parts written to at once by all files together.
        memory_bytes: most memory for units that are being written or are not yet synced.
        replication: copies of each part; None for the file system's default.
        block_bytes: length of the parts' blocks; None for the file system's default.
        spill_dir: folder on a disk of the node, for what is written out of order.
        spill_bytes: most that one file has there.
        stuck_s: seconds after which a write fails if a part broke and nothing was stored since.
        recovery_s: seconds in which the content of a broken part is read again until that works.
            HDFS ends such a part, and may ask the dead machine to do it; it asks another one 90 s
            later.
    """

    unit_bytes: int = 4 * MIB
    width: int = 16
    streams: int = 32
    memory_bytes: int = 192 * MIB
    replication: int | None = None
    block_bytes: int | None = None
    spill_dir: str = "/var/tmp"
    spill_bytes: int = 8 * GIB
    stuck_s: float = 60.0
    recovery_s: float = 120.0

    def __post_init__(self) -> None:
        check_unit_bytes(self.unit_bytes)


@dataclass(slots=True)
class WriteContext:
    """What all files that are being written share.

    Attributes:
        store: where parts are written.
        nursery: for the tasks that write them.
        options: of striping.
        open: parts that are being written.
        written: bytes that the store has acknowledged, and the time it took.
        broken: number of parts whose machines failed.
        moved: number of parts that were ended because their machine had too many.
        broke_s: when a part last broke, by trio's clock.
    """

    store: Store
    nursery: trio.Nursery
    options: WriteOptions
    open: int = 0
    written: Meter = field(default_factory=lambda: Meter(time.time_ns))
    broken: int = 0
    moved: int = 0
    broke_s: float = -math.inf

    def unsynced_bytes(self) -> int:
        """Return how many bytes a part may leave unsynced, with so many parts open."""
        return self.options.memory_bytes // max(1, self.open) - self.options.unit_bytes

    def is_full(self, size_bytes: int) -> bool:
        """Tell whether a part of `size_bytes` should end here rather than begin another block.

        HDFS avoids dead machines for a new file; for the next block of an open one it does not.
        """
        if trio.current_time() - self.broke_s > _WARY_S:
            return False
        block_bytes = self.options.block_bytes or _BLOCK_BYTES
        return -size_bytes % block_bytes < self.options.unit_bytes

"""How files are striped, and what all that are being written have in common."""

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
"""After a part broke: so long HDFS may go on choosing a machine that has died."""
_BLOCK_BYTES = 128 * MIB
"""HDFS's default."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How files are striped.

    Attributes:
        unit_bytes: length of a stripe unit, a power of two.
        width: parts that one file is written to at once; more than there are DataNodes, for where
            HDFS puts a part is chance.
        streams: parts written to at once by all files together.
        memory_bytes: of all units that are being written or are not yet synced.
        replication: copies of each part; None for the file system's default.
        block_bytes: length of the parts' blocks; None for the file system's default.
        spill_dir: for what is written out of order; on a disk of the node.
        spill_bytes: of one file, at most.
        stuck_s: when nothing was stored for so many seconds after a part broke, what is being
            written fails.
        recovery_s: so long what a broken part has is tried to be read again. HDFS ends such a
            part, and may ask the dead machine to do it; it asks another one 90 s later.
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
        """Check the unit."""
        check_unit_bytes(self.unit_bytes)


@dataclass(slots=True)
class WriteContext:
    """What all files that are being written have in common.

    Attributes:
        store: where parts are made.
        nursery: for the tasks that write them.
        options: how to.
        open: parts that are being written.
        written: so far, acknowledged.
        broken: parts so far whose machines failed.
        moved: parts so far that were ended because others crowd on their machine.
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
        """Return how much a part may hold back, with so many at work."""
        return self.options.memory_bytes // max(1, self.open) - self.options.unit_bytes

    def is_full(self, size_bytes: int) -> bool:
        """Tell whether a part of that length had better not grow by a unit.

        Where machines die, a new file finds its way round them; the next block of an old one
        does not.
        """
        if trio.current_time() - self.broke_s > _WARY_S:
            return False
        block_bytes = self.options.block_bytes or _BLOCK_BYTES
        return -size_bytes % block_bytes < self.options.unit_bytes

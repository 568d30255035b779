"""A trace: which ranges of an image one node's start touched, in the order of first touch."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange, subtract
from bootseer.errors import Corrupt
from bootseer.image.hot.holdout import PIECES
from bootseer.units import MIB

MAGIC = b"BSTRACE\0"
VERSION = 1
_ROW = struct.Struct("<QQI")  # start, stop, milliseconds from the start of recording
MAX_BYTES = 16 * 1024 * 1024
MAX_TOUCHES = 200_000
"""Of a start at most: 4 MB of trace."""

COMPLETE = "complete"
"""All reads of a start: little was in memory before, and nothing was prefetched."""
PARTIAL = "partial"
"""Reads of a start and what was in memory before, which was much; nothing was prefetched."""
MISSED = "missed"
"""Reads of a start beyond what was prefetched for it."""
KINDS = (COMPLETE, PARTIAL, MISSED)

MOUNTED = "mounted"
"""Programs ran from the image, and read parts of it."""
UNPACKED = "unpacked"
"""The image was unpacked or copied: read from its beginning, to the end or not yet so far."""
USAGES = ("", MOUNTED, UNPACKED)
"""How a start used the image; "" if that is not known."""
UNPACKED_SHARE = 0.9
"""A start that reads so much of the bytes up to the last one, or of what is not hot, unpacks."""
UNPACKED_LEAST_BYTES = 64 * MIB
"""A smaller image is read ahead as a whole before a program starts."""


class Touch(NamedTuple):
    """A range and when it was first seen, in milliseconds from the start of recording."""

    start: int
    stop: int
    first_ms: int

    @property
    def range(self) -> ByteRange:
        return ByteRange(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class Trace:
    """What one node recorded of the reads of one image in one run.

    Attributes:
        digest: identity digest of the image.
        size_bytes: of the image.
        run: name of the run, the same on all its nodes.
        started_ns: start of recording, nanoseconds since the epoch.
        node: name of the node.
        kind: COMPLETE, PARTIAL or MISSED: what it means that a range is not in the trace.
        touches: ordered by first touch; ranges do not overlap.
        holdout: hot ranges that were not prefetched, to see whether the start reads them; empty if
            there was no holdout, or if it says nothing.
        usage: see `USAGES`.
    """

    digest: str
    size_bytes: int
    run: str
    started_ns: int
    node: str
    kind: str
    touches: tuple[Touch, ...]
    holdout: tuple[ByteRange, ...] = ()
    usage: str = ""

    def encode(self) -> bytes:
        header = {
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "run": self.run,
            "started_ns": self.started_ns,
            "node": self.node,
            "kind": self.kind,
            "holdout": self.holdout,
            "usage": self.usage,
        }
        return table.encode(MAGIC, VERSION, header, _ROW, self.touches)


def decode(data: bytes, name: str) -> Trace:
    """Decode a trace file.

    Raises:
        Corrupt: it is damaged, of another version, or its ranges lie outside the image.
    """
    header, rows = table.decode(MAGIC, VERSION, _ROW, data, name)
    fields = Fields(header, name)
    trace = Trace(
        digest=fields.text("digest", 200),
        size_bytes=fields.count("size_bytes"),
        run=fields.text("run", 200),
        started_ns=fields.count("started_ns"),
        node=fields.text("node", 300),
        kind=fields.text("kind", 20),
        touches=tuple(Touch(*row) for row in rows),
        holdout=tuple(fields.ranges("holdout", PIECES)) if fields.has("holdout") else (),
        usage=fields.text("usage", 20) if fields.has("usage") else "",
    )
    if trace.kind not in KINDS:
        raise Corrupt(f"{name}: {trace.kind!a} is not a kind of trace")
    if trace.usage not in USAGES:
        raise Corrupt(f"{name}: {trace.usage!a} is no usage of an image")
    check_disjoint([touch.range for touch in trace.touches], trace.size_bytes, name)
    check_disjoint(list(trace.holdout), trace.size_bytes, name)
    return trace


def join_touches(one: Sequence[Touch], other: Sequence[Touch]) -> list[Touch]:
    """Merge touches of an image that were recorded in two ways, each range once, in order of time.

    Args:
        one: touches that do not overlap each other.
        other: the same; where both have a range, the time of ``one`` counts.
    """
    joined = [*one, *touched_beyond(other, (touch.range for touch in one))]
    return sorted(joined, key=lambda touch: touch.first_ms)


def touched_beyond(touches: Sequence[Touch], known: Iterable[ByteRange]) -> list[Touch]:
    """Return the touches without what lies in some ranges, in the same order."""
    beyond: list[Touch] = []
    index = 0
    # One pass, for there may be 100,000 of both: `subtract` keeps the order of the touches.
    for start, stop in subtract((touch.range for touch in touches), known):
        while not touches[index].start <= start < touches[index].stop:
            index += 1
        beyond.append(Touch(start, stop, touches[index].first_ms))
    return beyond


def usage_of(kind: str, touches: Sequence[Touch]) -> str:
    """Return how a start used the image, judged by its reads; see `USAGES`.

    Args:
        kind: of the trace; that of a prefetched start shows nothing.
        touches: all touches of the trace.
    """
    if kind == MISSED or not touches:
        return ""
    end = max(touch.stop for touch in touches)
    touched_bytes = sum(touch.stop - touch.start for touch in touches)
    is_unpacking = end >= UNPACKED_LEAST_BYTES and touched_bytes >= UNPACKED_SHARE * end
    return UNPACKED if is_unpacking else MOUNTED


def check_disjoint(ranges: list[ByteRange], size_bytes: int, name: str) -> None:
    """Check that ranges are not empty, do not overlap and lie inside the image.

    Raises:
        Corrupt: one of these does not hold.
    """
    at = 0
    for start, stop in sorted(ranges):
        if not at <= start < stop <= size_bytes:
            raise Corrupt(f"{name}: range {start}-{stop} overlaps another or leaves the image")
        at = stop

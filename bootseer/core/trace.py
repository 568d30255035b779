"""A trace: which ranges of an image one node's start touched, in the order of first touch."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt

MAGIC = b"BSTRACE\0"
VERSION = 1
_ROW = struct.Struct("<QQI")  # start, stop, milliseconds from the start of recording
MAX_BYTES = 16 * 1024 * 1024


class Touch(NamedTuple):
    """A range and when it was first seen, in milliseconds from the start of recording."""

    start: int
    stop: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What one node recorded of one image in one run.

    Attributes:
        digest: identity digest of the image.
        size_bytes: of the image.
        run: name of the run, the same on all its nodes; newer runs started later.
        started_ns: start of recording, nanoseconds since the epoch.
        node: name of the node.
        complete: the image was not in the page cache when recording began and nothing was
            prefetched, so that the trace holds all that the start read.
        touches: ordered by first touch; ranges do not overlap.
    """

    digest: str
    size_bytes: int
    run: str
    started_ns: int
    node: str
    complete: bool
    touches: tuple[Touch, ...]

    def encode(self) -> bytes:
        """Encode as a file."""
        header = {
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "run": self.run,
            "started_ns": self.started_ns,
            "node": self.node,
            "complete": self.complete,
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
        complete=fields.flag("complete"),
        touches=tuple(Touch(*row) for row in rows),
    )
    check_disjoint([ByteRange(t.start, t.stop) for t in trace.touches], trace.size_bytes, name)
    return trace


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

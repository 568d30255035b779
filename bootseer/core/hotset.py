"""A hot set: the traces of an image merged into the ranges worth having before a start.

Merging is a pure function of the set of traces: their order and repetition do not matter, so
that every node may merge what it finds and publish the result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange
from bootseer.core.trace import Trace, check_disjoint

MAGIC = b"BSHOTSET"
VERSION = 1
_ROW = struct.Struct("<QQII")  # start, stop, milliseconds, parts per million
MAX_BYTES = 16 * 1024 * 1024

AGEING = 0.7
"""Weight of a run against the next newer one's."""

MIN_WEIGHT = 0.15
"""Ranges that weigh less are left out: seen once, and not in the runs since."""

JOIN_MS = 250
"""Ranges touched within this time of each other become one: about a sampling interval."""

JOIN_GAP_BYTES = 16 * 1024
"""Ranges closer than this become one: a gap costs less to read than a request."""


class HotRange(NamedTuple):
    """A range of the image, typical time of first touch, and how often it was touched.

    ``weight_ppm`` is the aged share of runs that touched it, in parts per million.
    """

    start: int
    stop: int
    first_ms: int
    weight_ppm: int


@dataclass(frozen=True, slots=True)
class HotSet:
    """The hot ranges of one image, ordered by typical first touch; they do not overlap.

    Attributes:
        digest: identity digest of the image.
        size_bytes: of the image.
        runs: names of the runs that were merged, oldest first.
        ranges: what to have before a start.
    """

    digest: str
    size_bytes: int
    runs: tuple[str, ...]
    ranges: tuple[HotRange, ...]

    @property
    def hot_bytes(self) -> int:
        """Bytes of all ranges together."""
        return sum(r.stop - r.start for r in self.ranges)

    def encode(self) -> bytes:
        """Encode as a file."""
        header = {"digest": self.digest, "size_bytes": self.size_bytes, "runs": list(self.runs)}
        return table.encode(MAGIC, VERSION, header, _ROW, self.ranges)


def decode(data: bytes, name: str) -> HotSet:
    """Decode a hot set file.

    Raises:
        Corrupt: it is damaged, of another version, or its ranges lie outside the image.
    """
    header, rows = table.decode(MAGIC, VERSION, _ROW, data, name)
    fields = Fields(header, name)
    hot_set = HotSet(
        digest=fields.text("digest", 200),
        size_bytes=fields.count("size_bytes"),
        runs=tuple(str(run)[:200] for run in fields.items("runs")),
        ranges=tuple(HotRange(*row) for row in rows),
    )
    check_disjoint([ByteRange(r.start, r.stop) for r in hot_set.ranges], hot_set.size_bytes, name)
    return hot_set


def merge(digest: str, traces: Iterable[Trace]) -> HotSet:
    """Merge traces of one image.

    Runs with a complete trace decide what is hot, each aged by the runs after it. Incomplete
    traces (of runs that were prefetched, or met a warm page cache) add what they saw beyond that:
    it was missing when it was needed. Where no run is complete they are all there is.

    Args:
        digest: identity digest of the image.
        traces: in any order, at least one of this image; those of other images are passed over.
    """
    ordered = sorted(
        {(t.started_ns, t.run, t.node): t for t in traces if t.digest == digest}.values(),
        key=lambda t: (t.started_ns, t.run, t.node),
    )
    runs = list(dict.fromkeys(t.run for t in ordered))
    judges = {t.run for t in ordered if t.complete} or set(runs)
    weights = _run_weights([run for run in runs if run in judges])
    hot = [
        HotRange(start, stop, median_low(times), _weigh(weights, touched))
        for start, stop, times, touched in _segments(ordered)
        if touched - judges or _weigh(weights, touched) >= MIN_WEIGHT * 1_000_000
    ]
    return HotSet(
        digest,
        max(t.size_bytes for t in ordered),
        tuple(runs),
        tuple(sorted(_join(hot), key=lambda r: (r.first_ms, r))),
    )


def _run_weights(runs: list[str]) -> dict[str, float]:
    raw = {run: AGEING**age for age, run in enumerate(reversed(runs))}
    whole = sum(raw.values())
    return {run: weight / whole for run, weight in raw.items()}


def _weigh(weights: dict[str, float], touched: frozenset[str]) -> int:
    judged = [weights[run] for run in sorted(touched) if run in weights]
    # What only an incomplete trace saw was missed by everything known before: take it as certain.
    return round(sum(judged) * 1_000_000) if judged else 1_000_000


def _segments(
    traces: list[Trace],
) -> Iterable[tuple[int, int, list[int], frozenset[str]]]:
    """Sweep over the image; yield each stretch with its first-touch times and the runs it is in."""
    edges: list[tuple[int, int, int, int]] = []
    for index, trace in enumerate(traces):
        for start, stop, first_ms in trace.touches:
            edges.append((start, 1, index, first_ms))
            edges.append((stop, 0, index, 0))
    edges.sort()
    active: dict[int, int] = {}
    at = 0
    for offset, opens, index, first_ms in edges:
        if active and offset > at:
            runs = frozenset(traces[i].run for i in active)
            yield at, offset, list(active.values()), runs
        at = offset
        if opens:
            active[index] = first_ms
        else:
            del active[index]


def _join(ranges: list[HotRange]) -> list[HotRange]:
    """Join neighbours that were touched at about the same time; the earlier time is kept."""
    joined: list[HotRange] = []
    for r in ranges:
        last = joined[-1] if joined else None
        if (
            last is not None
            and r.start - last.stop <= JOIN_GAP_BYTES
            and abs(r.first_ms - last.first_ms) <= max(JOIN_MS, last.first_ms // 16)
        ):
            joined[-1] = HotRange(
                last.start,
                r.stop,
                min(last.first_ms, r.first_ms),
                max(last.weight_ppm, r.weight_ppm),
            )
        else:
            joined.append(r)
    return joined

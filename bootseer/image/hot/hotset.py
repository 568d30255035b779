"""A hot set: the traces of an image merged into the ranges worth having before a start.

Merging is a pure function of the set of traces: order and repetition do not matter. So every node
may merge the traces that it finds, and publish the result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import median_low
from typing import NamedTuple

from bootseer.core import table
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange, coalesce, subtract, total_bytes
from bootseer.errors import Corrupt
from bootseer.image.hot.holdout import MOSTLY, count_read
from bootseer.image.hot.trace import (
    COMPLETE,
    MISSED,
    PARTIAL,
    UNPACKED,
    UNPACKED_LEAST_BYTES,
    UNPACKED_SHARE,
    Touch,
    Trace,
    check_disjoint,
)

MAGIC = b"BSHOTSET"
VERSION = 1
_ROW = struct.Struct("<QQII")  # start, stop, milliseconds, parts per million
MAX_BYTES = 16 * 1024 * 1024
MAX_RANGES = 200_000
"""More than a start touches; the lightest are left out."""

MAX_RUNS = 1000
"""Named in a hot set: readers refuse a longer list."""

AGEING = 0.7
"""Weight of a run against the next newer one's."""

MIN_WEIGHT = 0.15
"""Ranges that weigh less are left out: seen once, and not in the runs since."""

JOIN_MS = 250
"""Ranges touched within this time of each other become one: about a sampling interval."""

JOIN_GAP_BYTES = 16 * 1024
"""Ranges closer than this become one: a gap costs less to read than a request."""

DOUBTS = 3
"""After so many starts in a row that read little of what was prefetched, it is given up."""

_MISSED = ""
FOLDED = "+folded"
"""The node of a trace that holds what several old starts missed."""


class HotRange(NamedTuple):
    """A range of the image, typical time of first touch, and how often it was touched.

    ``weight_ppm`` is the aged share of runs that touched it, in parts per million.
    """

    start: int
    stop: int
    first_ms: int
    weight_ppm: int

    @property
    def range(self) -> ByteRange:
        return ByteRange(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class HotSet:
    """The hot ranges of one image, ordered by typical first touch; they do not overlap.

    Attributes:
        digest: identity digest of the image.
        size_bytes: of the image.
        runs: names of the newest runs that were merged, oldest first.
        ranges: to prefetch for a start.
        doubts: the number of last starts in a row that read little of them.
    """

    digest: str
    size_bytes: int
    runs: tuple[str, ...]
    ranges: tuple[HotRange, ...]
    doubts: int = 0

    @property
    def hot_bytes(self) -> int:
        return sum(r.stop - r.start for r in self.ranges)

    def encode(self) -> bytes:
        header = {
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "runs": list(self.runs),
            "doubts": self.doubts,
        }
        return table.encode(MAGIC, VERSION, header, _ROW, self.ranges)


def decode(data: bytes, name: str) -> HotSet:
    """Decode a hot set file.

    Raises:
        UnknownVersion: it is of another version.
        Corrupt: it is damaged, has too many ranges, or they lie outside the image.
    """
    header, rows = table.decode(MAGIC, VERSION, _ROW, data, name)
    if len(rows) > MAX_RANGES:
        raise Corrupt(f"{name}: {len(rows)} ranges are more than a start touches")
    fields = Fields(header, name)
    hot_set = HotSet(
        digest=fields.text("digest", 200),
        size_bytes=fields.count("size_bytes"),
        runs=tuple(str(run)[:200] for run in fields.items("runs", MAX_RUNS)),
        ranges=tuple(HotRange(*row) for row in rows),
        doubts=fields.count("doubts") if fields.has("doubts") else 0,
    )
    check_disjoint([r.range for r in hot_set.ranges], hot_set.size_bytes, name)
    return hot_set


def sort_out(traces: Iterable[Trace], runs_kept: int) -> tuple[list[Trace], list[Trace]]:
    """Choose the traces of an image that a merge uses; the others can be deleted.

    The newest complete runs are used; without any, the newest partial ones. So is what all starts
    since then have missed: it is prefetched by now, so no later trace can show it. Once a few
    starts in a row read little of what was prefetched, all older traces are given up as well.

    Returns:
        The traces to use, and those of them that `fold` can join.
    """
    traces = sorted(traces, key=_age)
    traces = _in_part(traces) or traces[-1:]
    recorded = _recorded(traces)
    started = {t.run: t.started_ns for t in recorded}
    newest = set(sorted(started, key=lambda run: (started[run], run))[-runs_kept:])
    recorded = [t for t in recorded if t.run in newest]
    last_ns = max((t.started_ns for t in recorded), default=-1)
    missed = [t for t in traces if t.kind == MISSED and t.started_ns > last_ns]
    doubting = _doubting(missed)
    if len(doubting) >= DOUBTS:
        since_ns = min(t.started_ns for t in missed if t.run == doubting[-DOUBTS])
        recorded, missed = [], [t for t in missed if t.started_ns >= since_ns]
        doubting = doubting[-DOUBTS:]
    old = _foldable([t.run for t in missed], doubting, runs_kept)
    return [*recorded, *missed], [t for t in missed if t.run in old]


def _foldable(missed: list[str], doubting: list[str], runs_kept: int) -> set[str]:
    """Choose old runs to join into one trace, if there are too many.

    Doubting runs, which read little of what was prefetched, are not joined. Runs before the first
    of them are not joined with runs after it: they may have to be given up.

    Args:
        missed: the runs, oldest first.
        doubting: the doubting ones among them.
        runs_kept: the number of newest runs that are not joined.
    """
    runs = list(dict.fromkeys(missed))
    first = runs.index(doubting[0]) if doubting else len(runs)
    for part in (runs[:first], [run for run in runs[first:] if run not in doubting]):
        if len(part) > runs_kept + 1:
            return set(part[:-runs_kept])
    return set()


def fold(traces: list[Trace]) -> Trace:
    """Join what several starts missed into one trace, in place of the newest of them."""
    newest = max(traces, key=_age)
    joined = merge(newest.digest, traces)
    touches = tuple(Touch(r.start, r.stop, r.first_ms) for r in joined.ranges)
    return replace(newest, size_bytes=joined.size_bytes, node=FOLDED, touches=touches, holdout=())


def merge(digest: str, traces: Iterable[Trace]) -> HotSet:
    """Merge traces of one image.

    Runs that were recorded without a prefetch decide what is hot; each run weighs less than the
    next newer one. Partial runs count only if there are no complete ones. What prefetched starts
    missed is hot as well: they needed it, and it was not there.

    A start that reads nearly all of an image unpacks or copies it, in order. To prefetch that for
    programs that run from the image would be far too much: such a trace makes nothing hot.

    Args:
        digest: identity digest of the image.
        traces: in any order, at least one of this image; traces of other images are ignored.
    """
    ordered = sorted(
        {(t.started_ns, t.run, t.node): t for t in traces if t.digest == digest}.values(), key=_age
    )
    in_part = _in_part(ordered)
    recorded = _recorded(in_part)
    used = [*recorded, *(t for t in in_part if t.kind == MISSED)]
    weights = _run_weights(list(dict.fromkeys(t.run for t in recorded)))
    hot = [
        HotRange(start, stop, median_low(times), weight)
        for start, stop, times, touched in _segments(used)
        if (weight := _weigh(weights, touched)) >= MIN_WEIGHT * 1_000_000
    ]
    heaviest = sorted(_join(hot), key=lambda r: (-r.weight_ppm, r.first_ms, r))[:MAX_RANGES]
    return HotSet(
        digest,
        max(t.size_bytes for t in ordered),
        tuple(dict.fromkeys(t.run for t in ordered))[-MAX_RUNS:],
        tuple(sorted(heaviest, key=lambda r: (r.first_ms, r))),
        len(_doubting([t for t in in_part if t.kind == MISSED])),
    )


def _age(trace: Trace) -> tuple[int, str, str]:
    return trace.started_ns, trace.run, trace.node


def _in_part(traces: list[Trace]) -> list[Trace]:
    """Leave out the traces of starts that unpacked or copied the image.

    A prefetched start may have read hot ranges from memory: they are not counted for it.
    """
    parts = [t for t in traces if t.kind == MISSED or not _is_unpacking(t)]
    hot = coalesce(t.range for trace in _recorded(parts) for t in trace.touches)
    return [t for t in parts if t.kind != MISSED or not _is_whole(t, hot)]


def _doubting(missed: list[Trace]) -> list[str]:
    """Name the last runs in a row that read little of what was prefetched, oldest first."""
    counts: dict[str, list[int]] = {}
    for trace in missed:
        if trace.holdout:
            touched = [touch.range for touch in trace.touches]
            count = counts.setdefault(trace.run, [0, 0])
            count[0] += count_read(trace.holdout, touched)
            count[1] += len(trace.holdout)
    last = takewhile(lambda run: counts[run][0] < MOSTLY * counts[run][1], reversed(counts))
    return list(last)[::-1]


def _is_unpacking(trace: Trace) -> bool:
    return trace.usage == UNPACKED if trace.usage else _is_whole(trace, [])


def _is_whole(trace: Trace, hot: list[ByteRange]) -> bool:
    """Whether a start touched nearly all of the image beside what is hot."""
    if trace.size_bytes < UNPACKED_LEAST_BYTES:
        return False
    beyond_bytes = total_bytes(subtract((t.range for t in trace.touches), hot))
    return beyond_bytes >= UNPACKED_SHARE * (trace.size_bytes - total_bytes(hot)) > 0


def _recorded(traces: list[Trace]) -> list[Trace]:
    """Return the complete traces; without any, the partial ones."""
    for kind in (COMPLETE, PARTIAL):
        found = [t for t in traces if t.kind == kind]
        if found:
            return found
    return []


def _run_weights(runs: list[str]) -> dict[str, float]:
    raw = {run: AGEING**age for age, run in enumerate(reversed(runs))}
    whole = sum(raw.values())
    return {run: weight / whole for run, weight in raw.items()}


def _weigh(weights: dict[str, float], touched: frozenset[str]) -> int:
    """Add up the weights of the runs that touched a range; a missed range has the full weight."""
    return (
        1_000_000 if _MISSED in touched else round(sum(weights[r] for r in sorted(touched)) * 1e6)
    )


def _segments(
    traces: list[Trace],
) -> Iterable[tuple[int, int, list[int], frozenset[str]]]:
    """Sweep over the image; yield each stretch with its first-touch times and the runs it is in.

    A prefetched start that missed the stretch has the name `_MISSED`.
    """
    runs = [_MISSED if t.kind == MISSED else t.run for t in traces]
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
            yield at, offset, list(active.values()), frozenset(runs[i] for i in active)
        at = offset
        if opens:
            active[index] = first_ms
        else:
            del active[index]


def _join(ranges: list[HotRange]) -> list[HotRange]:
    """Join neighbours that were touched at about the same time, and keep the earlier time."""
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

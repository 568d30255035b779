"""Choose how an image gets to a node, before any of it is read.

A start that reads on demand waits for the store at each read. With a hot set that is read ahead, it
waits once, for all of its bytes. A full copy takes the longest, but needs no recorded start. Which
is the shortest depends on the store, on how much of the image a start reads, and on how many nodes
read it at the same time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from bootseer.core.speed import UNKNOWN, Speed
from bootseer.units import KIB, format_duration, format_size

STREAMS = 16
"""Reads at once of a read-ahead."""

USUAL_SHARE = 0.08
USUAL_READ_BYTES = 64 * KIB
USUAL_BYTES_PER_S = 200e6
"""Assumed of an image and a store of which nothing is known. Source: a start of the CUDA PyTorch
image reads 8 % of it, 62 KiB at a time."""
AHEAD_READ_BYTES = 256 * KIB
"""The size of a read of the read-ahead, for the same image."""

_MARGIN = 0.8
"""Of the usual wait: another mode must be shorter than that, for these are estimates."""
_WORTH_S = 1.0
"""And shorter by so many seconds."""


class AccessMode(Enum):
    """How an image gets from a store to a node."""

    SERVED = "served"
    """Blocks come from the store when they are needed, hot ones ahead."""
    COPY = "copy"
    """All blocks are fetched to the node at once; the image is served meanwhile."""
    FILE = "file"
    """As `SERVED`, but from the file that the image was added from, if this node can read it."""


@dataclass(frozen=True, slots=True)
class AccessFacts:
    """What is known of an image, a store and a job.

    Attributes:
        image_bytes: length of the image.
        node_bytes: of the image, on this node already.
        hot_bytes: size of the hot set, 0 if there is none.
        touched_bytes: read by a recorded start, 0 if there is no record.
        touched_reads: the number of reads of that start.
        nodes: of the job; they read at the same time.
        store: speed of the store.
        file: speed of the file that the image was added from; None if this node cannot read it.
    """

    image_bytes: int
    node_bytes: int = 0
    hot_bytes: int = 0
    touched_bytes: int = 0
    touched_reads: int = 0
    nodes: int = 1
    store: Speed = UNKNOWN
    file: Speed | None = None


@dataclass(frozen=True, slots=True)
class AccessChoice:
    """The chosen mode.

    Attributes:
        way: the mode.
        waits_s: how long a start would wait in each possible mode, in seconds.
        why: one line for people.
    """

    way: AccessMode
    waits_s: dict[AccessMode, float]
    why: str


def choose(known: AccessFacts, allowed: Collection[AccessMode] = tuple(AccessMode)) -> AccessChoice:
    """Choose how an image gets to a node.

    Args:
        known: what is known.
        allowed: the modes to choose from; `AccessMode.SERVED` always is one of them.
    """
    absent = 1 - min(1.0, known.node_bytes / known.image_bytes)
    waits_s = {AccessMode.SERVED: absent * _start_s(known, known.store)}
    if AccessMode.COPY in allowed:
        waits_s[AccessMode.COPY] = absent * known.image_bytes / _rate(known, known.store)
    if AccessMode.FILE in allowed and known.file is not None:
        waits_s[AccessMode.FILE] = absent * _start_s(known, known.file)
    best = min(waits_s, key=lambda way: waits_s[way])
    usual_s = waits_s[AccessMode.SERVED]
    is_better = waits_s[best] <= min(_MARGIN * usual_s, usual_s - _WORTH_S)
    way = best if is_better else AccessMode.SERVED
    return AccessChoice(way, waits_s, _explain(known, way, waits_s))


def _start_s(known: AccessFacts, speed: Speed) -> float:
    """Estimate how long a start waits, in seconds, on a node that has nothing of the image."""
    touched = known.touched_bytes or int(USUAL_SHARE * known.image_bytes)
    reads = known.touched_reads or -(-touched // USUAL_READ_BYTES)
    streams = 1
    if known.hot_bytes:
        touched, reads = known.hot_bytes, -(-known.hot_bytes // AHEAD_READ_BYTES)
        streams = STREAMS
    return touched / _rate(known, speed) + reads * speed.latency_us / 1e6 / streams


def _rate(known: AccessFacts, speed: Speed) -> float:
    """Estimate the rate of one node, in bytes per second; all nodes of a job share the total."""
    if not speed.bytes_per_s:
        return USUAL_BYTES_PER_S / known.nodes
    return speed.bytes_per_s * min(1.0, speed.nodes / known.nodes)


def _explain(known: AccessFacts, way: AccessMode, waits_s: dict[AccessMode, float]) -> str:
    if known.node_bytes >= known.image_bytes:
        return f"{way.value}: all of it is on the node"
    if known.hot_bytes:
        wanted = f"hot {format_size(known.hot_bytes)}"
    elif known.touched_bytes:
        wanted = f"{format_size(known.touched_bytes)} in {known.touched_reads} reads"
    else:
        wanted = "nothing known"
    others = ", ".join(
        f"{other.value} {format_duration(wait_s)}"
        for other, wait_s in waits_s.items()
        if other is not way
    )
    return (
        f"{way.value}: some {format_duration(waits_s[way])} of waiting"
        f"{f' ({others})' if others else ''}; {wanted} of {format_size(known.image_bytes)}, "
        f"{format_size(known.node_bytes)} on the node, {_describe('store', known.store)}"
        f"{'' if known.file is None else ', ' + _describe('file', known.file)}, "
        f"{known.nodes} nodes"
    )


def _describe(what: str, speed: Speed) -> str:
    latency = format_duration(speed.latency_us / 1e6) if speed.latency_us else "?"
    rate = f"{format_size(speed.bytes_per_s)}/s" if speed.bytes_per_s else "? B/s"
    return f"{what} {latency} a read and {rate}"

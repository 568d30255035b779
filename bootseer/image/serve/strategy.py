"""How an image is best brought to a node: from what is known, before any of it is read.

A start that reads what it needs as it goes waits for the store at each read; a hot set that is read
ahead makes of that one wait for its bytes; a full copy takes the longest and asks for nothing to be
known. Which is shortest depends on the store, on how much of the image a start reads, and on how
many nodes read it at the same time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from bootseer.core.speed import UNKNOWN, Speed
from bootseer.units import KIB, format_duration, format_size

STREAMS = 16
"""Reads at once of what is read ahead."""

USUAL_SHARE = 0.08
USUAL_READ_BYTES = 64 * KIB
USUAL_BYTES_PER_S = 200e6
"""What is taken for true of an image and a store of which nothing is known: a start of the CUDA
PyTorch image reads 8 % of it, 62 KiB at a time."""
AHEAD_READ_BYTES = 256 * KIB
"""What is read ahead in one read, of the same image."""

_MARGIN = 0.8
"""How much shorter another way than the usual one has to be: all of this is reckoned."""
_WORTH_S = 1.0
"""The same in seconds."""


class AccessMode(Enum):
    """A way to bring an image from a store to a node."""

    SERVED = "served"
    """Its blocks come from the store as they are needed, hot ones ahead."""
    COPY = "copy"
    """All of its blocks come to the node as fast as they can; it is served meanwhile."""
    FILE = "file"
    """As served, but from the file that it was added from, which this node sees as well."""


@dataclass(frozen=True, slots=True)
class AccessFacts:
    """What is known of an image, a store and a job.

    Attributes:
        image_bytes: length of the image.
        node_bytes: of it, on this node already.
        hot_bytes: of its hot set, 0 if there is none.
        touched_bytes: that a recorded start has read, 0 if there is no record.
        touched_reads: in so many reads.
        nodes: of the job, that read at the same time.
        store: how fast it is.
        file: the same of the file that the image was added from; None if this node has none.
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
    """The way to go.

    Attributes:
        way: which.
        waits_s: how long a start would wait in each that there is, in seconds.
        why: one line for people.
    """

    way: AccessMode
    waits_s: dict[AccessMode, float]
    why: str


def choose(known: AccessFacts, allowed: Collection[AccessMode] = tuple(AccessMode)) -> AccessChoice:
    """Choose how an image is brought to a node.

    Args:
        known: what is known.
        allowed: the ways to choose from; `AccessMode.SERVED` always is one of them.
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
    """Say how long a start would wait, in seconds, on a node that has nothing of the image."""
    touched = known.touched_bytes or int(USUAL_SHARE * known.image_bytes)
    reads = known.touched_reads or -(-touched // USUAL_READ_BYTES)
    streams = 1
    if known.hot_bytes:
        touched, reads = known.hot_bytes, -(-known.hot_bytes // AHEAD_READ_BYTES)
        streams = STREAMS
    return touched / _rate(known, speed) + reads * speed.latency_us / 1e6 / streams


def _rate(known: AccessFacts, speed: Speed) -> float:
    """Say how many bytes a second each node has."""
    # What fewer nodes have shared then has as much for all of them now.
    return (speed.bytes_per_s or USUAL_BYTES_PER_S) * min(1.0, speed.nodes / known.nodes)


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

"""How an image is best brought to a node: from what is known, before any of it is read.

A start that reads what it needs as it goes waits for the store at each read; a hot set that is read
ahead makes of that one wait for its bytes; a full copy takes the longest and asks for nothing to be
known. Which is shortest depends on the store, on how much of the image a start reads, and on how
many nodes read it at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bootseer.units import KIB, format_duration, format_size

STREAMS = 16
"""Reads at once of what is read ahead."""

USUAL_SHARE = 0.08
USUAL_READ_BYTES = 64 * KIB
USUAL_BYTES_PER_S = 200e6
"""What is taken for true of an image and a store of which nothing is known: a start of the CUDA
PyTorch image reads 8 % of it, 62 KiB at a time."""

_MARGIN = 0.8
"""How much shorter another way than the usual one has to be: all of this is reckoned."""


class Way(Enum):
    """A way to bring an image to a node."""

    PAGE_CACHE = "page-cache"
    """The image is a file that all nodes see; its hot pages are read ahead into memory."""
    SERVED = "served"
    """Its blocks come from the store as they are needed, hot ones ahead."""
    COPY = "full copy"
    """All of its blocks come to the node as fast as they can."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an image, a store and a job.

    Attributes:
        image_bytes: length of the image.
        node_bytes: of it, on this node already.
        hot_bytes: of its hot set, 0 if there is none.
        hot_reads: into how many reads that is cut.
        touched_bytes: that a recorded start has read, 0 if there is no record.
        touched_reads: in so many reads.
        latency_s: of one read of the store.
        bytes_per_s: of the store, for a node, 0 if that is not known.
        nodes: of the job, that read at the same time.
        nodes_then: of the job of which `bytes_per_s` is known.
    """

    image_bytes: int
    node_bytes: int = 0
    hot_bytes: int = 0
    hot_reads: int = 0
    touched_bytes: int = 0
    touched_reads: int = 0
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    nodes: int = 1
    nodes_then: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The way to go.

    Attributes:
        way: which.
        waits_s: how long a start would wait for the store in each, in seconds.
        why: one line for people.
    """

    way: Way
    waits_s: dict[Way, float]
    why: str


def choose(known: Known, *, has_file: bool = False) -> Choice:
    """Choose how an image is brought to a node.

    Args:
        known: what is known.
        has_file: the image is a file of a file system that this node sees, too.
    """
    rate = known.bytes_per_s or USUAL_BYTES_PER_S
    # A store that was shared by fewer nodes then has as much for all of them now.
    rate *= min(1.0, known.nodes_then / known.nodes)
    absent = 1 - min(1.0, known.node_bytes / known.image_bytes)
    ahead_s = known.hot_bytes / rate + known.hot_reads * known.latency_s / STREAMS
    touched = known.touched_bytes or int(USUAL_SHARE * known.image_bytes)
    reads = known.touched_reads or -(-touched // USUAL_READ_BYTES)
    asked_s = touched / rate + reads * known.latency_s
    lazy_s = ahead_s if known.hot_bytes else asked_s
    waits_s = {
        Way.SERVED: lazy_s * absent,
        Way.COPY: absent * known.image_bytes / rate + known.latency_s,
    }
    if has_file:
        waits_s[Way.PAGE_CACHE] = lazy_s
    best = min(waits_s, key=lambda way: waits_s[way])
    way = best if waits_s[best] < _MARGIN * waits_s[Way.SERVED] else Way.SERVED
    return Choice(way, waits_s, _explain(known, way, waits_s, rate))


def _explain(known: Known, way: Way, waits_s: dict[Way, float], rate: float) -> str:
    wanted = (
        f"hot {format_size(known.hot_bytes)}"
        if known.hot_bytes
        else f"nothing known of {format_size(known.image_bytes)}"
    )
    others = ", ".join(
        f"{other.value} {format_duration(wait_s)}"
        for other, wait_s in waits_s.items()
        if other is not way
    )
    return (
        f"{way.value}: some {format_duration(waits_s[way])} of waiting ({others}); {wanted}, "
        f"{format_size(known.node_bytes)} on the node, {format_duration(known.latency_s)} a read, "
        f"{format_size(rate)}/s"
    )

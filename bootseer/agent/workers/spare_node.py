"""Spare nodes of a job: they record what no recording node of it has recorded.

Recording nodes may have died, or the image was used on other nodes only. A spare node cannot tell
this from recording nodes that are slow. So it waits before it looks, and longer the longer its own
events took: where a store or a machine is busy, it is so for all nodes of a job. Spare nodes look
at different times, so that the first one's trace is found by the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import trio

from bootseer.image.hot.repository import is_among
from bootseer.store.wrappers.backoff import Backoff

T = TypeVar("T")

_SPARES = 3
"""For each recording node."""
_OWN_S = 1.0
"""At least, for a node's own events: it takes 0.1 to 0.6 s where nothing is busy, by chance."""
_PATIENCE = 2.0
"""Times that: of 48 nodes on 2 processors, the slowest take so long beside the fastest."""


def spare_number(count: int, nodes: int, node: int) -> int | None:
    """Return a node's number among the spare nodes of its job, from 0; None if it is none of them.

    Consecutive numbers are spread over the job, as recording nodes are.

    Args:
        count: number of recording nodes.
        nodes: number of nodes of the job, 0 if unknown.
        node: index of the node.
    """
    each = 1 + _SPARES
    if is_among(count, nodes, node) or not is_among(count * each, nodes, node):
        return None
    recording, nth = divmod(node * count * each // nodes, each)
    return (nth - 1) * count + recording


class Patience(NamedTuple):
    """How a spare node waits, in seconds.

    Attributes:
        pause_s: before it looks first; it looks again after pauses that grow.
        whole_s: until it looks for the last time.
    """

    pause_s: float
    whole_s: float


def patience(number: int, count: int, own_s: float) -> Patience:
    """Return how a spare node waits for the traces of others.

    Args:
        number: result of `spare_number`.
        count: number of recording nodes.
        own_s: how long the node has taken to publish its events.
    """
    own_s = max(_OWN_S, own_s)
    return Patience(own_s / 2, own_s * _PATIENCE * (1 + number / count))


async def missing_after(
    wait: Patience, items: Sequence[T], is_there: Callable[[T], Awaitable[bool]]
) -> Sequence[T]:
    """Wait until others have published something; returns what is still missing.

    Args:
        wait: how often to look, and for how long.
        items: what is waited for.
        is_there: looks for one of them.
    """
    end_s = trio.current_time() + wait.whole_s
    pauses = Backoff(first_s=wait.pause_s, longest_s=wait.whole_s)
    for attempt in itertools.count(1):
        left_s = end_s - trio.current_time()
        if not items or left_s <= 0:
            break
        await trio.sleep(min(left_s, pauses.pause_s(attempt)))
        items = [item for item in items if not await is_there(item)]
    return items

"""The epilogs of a job of thousands of nodes, in one process: what they ask of a store, how long.

The store is in memory and answers after a stated latency, by a clock that stands still while
anything is to do. Nodes that give their events to another one ask the store nothing, as a test
counts over TCP (`tests/agent/test_event_group.py`); they are left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import trio
import trio.testing

from bootseer.agent.node.job import Job
from bootseer.agent.workers.event_group import event_group
from bootseer.config import Config
from bootseer.errors import Unavailable
from bootseer.store.api.base import Store
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer_dev.actors.epilog import EpilogInStore, jobs, recording

T = TypeVar("T")
_USER = "alice"
_SECRET = "00" * 32
_RANGES = 200


class ManyEpilogs(NamedTuple):
    """The end of a job.

    Attributes:
        calls: of the store, of all nodes.
        ended_s: when the last node's agent could end, since the first began.
    """

    calls: int
    ended_s: float


class _DistantStore(WrappedStore):
    """A store that answers after a while, and counts what it is asked."""

    def __init__(self, inner: Store, latency_s: float) -> None:
        super().__init__(inner)
        self.calls = 0
        self._latency_s = latency_s

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls += 1
        await trio.sleep(self._latency_s)
        return await call()


def writing_jobs(number: int, nodes: int) -> list[Job]:
    """Return a job as those of its nodes have it that write objects of their own as it ends."""
    config = Config({}, "the defaults")
    found = []
    for job in jobs(_USER, number, nodes):
        group = event_group(job._replace(nodelist=f"n[1-{nodes}]", secret=_SECRET), config)
        if group is None or group.gatherer == job.node_index:
            found.append(job)
    return found


def simulate(nodes: int, latency_s: float, *, is_warm: bool) -> ManyEpilogs:
    """End a job of so many nodes.

    Args:
        nodes: their number.
        latency_s: of each call of the store.
        is_warm: there was a start before.

    Raises:
        Unavailable: a node's events did not get into the store.
    """
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_simulate, nodes, latency_s, is_warm, clock=clock)


async def _simulate(nodes: int, latency_s: float, is_warm: bool) -> ManyEpilogs:
    store = _DistantStore(MemoryStore(), latency_s)
    for number in range(1 + is_warm):
        store.calls, began_s = 0, trio.current_time()
        epilogs = [
            EpilogInStore(
                job, recording(job.node_index, is_warm=number > 0, ranges=_RANGES), {}, store
            )
            for job in writing_jobs(1 + number, nodes)
        ]
        async with trio.open_nursery() as nursery:
            for epilog in epilogs:
                nursery.start_soon(epilog.run)
        if not all(epilog.published is not None and epilog.published.ok for epilog in epilogs):
            raise Unavailable("a node's events are not in the store")
    return ManyEpilogs(store.calls, trio.current_time() - began_s)

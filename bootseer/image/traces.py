"""Traces and hot sets in the store: publish, merge, find.

traces/DIGEST/STARTED-RUN-NODE.trace     one node's trace of one run
hot/DIGEST.hotset                        all of them, merged
"""

from __future__ import annotations

from dataclasses import dataclass

from bootseer.core import hotset
from bootseer.core import trace as trace_format
from bootseer.core.hotset import HotSet
from bootseer.core.trace import Trace
from bootseer.errors import Corrupt, NotFound
from bootseer.store.base import Store, publish, read_all


@dataclass(frozen=True, slots=True)
class Merged:
    """Result of `rebuild`: the hot set that is now in the store, and what was left out."""

    hot_set: HotSet
    traces: int
    damaged: tuple[str, ...]


def hot_set_name(digest: str) -> str:
    """Name the store's object with the hot set of an image."""
    return f"hot/{digest}.hotset"


async def read_hot_set(store: Store, digest: str) -> HotSet | None:
    """Read the hot set of an image; None when there is none yet.

    Raises:
        Corrupt: it is damaged; run `bootseer hot rebuild`, or let the next epilog do it.
    """
    name = hot_set_name(digest)
    try:
        data = await read_all(store, name, hotset.MAX_BYTES)
    except NotFound:
        return None
    hot_set = hotset.decode(data, name)
    if hot_set.digest != digest:
        raise Corrupt(f"{name}: this is the hot set of another image, {hot_set.digest}")
    return hot_set


async def publish_trace(store: Store, trace: Trace, traces_per_run: int) -> bool:
    """Publish a node's trace, unless enough nodes of the run have done so already.

    Returns:
        Whether it was published.
    """
    folder = f"traces/{trace.digest}"
    names = [info.name for info in await store.list(folder)]
    if sum(f"-{trace.run}-" in name for name in names) >= traces_per_run:
        return False
    await publish(store, _name(folder, trace), trace.encode())
    return True


async def rebuild(store: Store, digest: str, runs_kept: int) -> Merged:
    """Merge all traces of an image into its hot set, and drop those of old runs.

    Raises:
        NotFound: there is no trace of this image.

    Concurrency: any number of nodes at once. Each lists the traces again after publishing and
    starts over when there are others, so the last to publish has merged them all.
    """
    folder = f"traces/{digest}"
    while True:
        names = [info.name for info in await store.list(folder)]
        traces: list[Trace] = []
        damaged: list[str] = []
        for name in names:
            try:
                data = await read_all(store, name, trace_format.MAX_BYTES)
                traces.append(trace_format.decode(data, name))
            except NotFound:
                continue  # another node dropped it as old
            except Corrupt:
                damaged.append(name)
        keep = _newest([t for t in traces if t.digest == digest], runs_kept)
        if not keep:
            raise NotFound(f"{folder}: no trace to merge")
        hot_set = hotset.merge(digest, keep)
        await publish(store, hot_set_name(digest), hot_set.encode())
        if [info.name for info in await store.list(folder)] == names:
            kept = {(t.started_ns, t.run, t.node) for t in keep}
            stale = [t for t in traces if (t.started_ns, t.run, t.node) not in kept]
            for name in [*damaged, *(_name(folder, t) for t in stale)]:
                try:
                    await store.delete(name)
                except NotFound:
                    continue
            return Merged(hot_set, len(keep), tuple(damaged))


def _name(folder: str, trace: Trace) -> str:
    return f"{folder}/{trace.started_ns:020d}-{trace.run}-{trace.node}.trace"


def _newest(traces: list[Trace], runs_kept: int) -> list[Trace]:
    """Keep the newest complete runs and, apart from them, as many incomplete ones."""
    kept: list[Trace] = []
    for complete in (True, False):
        group = [t for t in traces if t.complete == complete]
        started: dict[str, int] = {}
        for t in group:
            started[t.run] = max(t.started_ns, started.get(t.run, 0))
        newest = set(sorted(started, key=lambda run: (started[run], run))[-runs_kept:])
        kept += [t for t in group if t.run in newest]
    return kept

"""Traces and hot sets in the store: publish, merge, find.

traces/DIGEST/STARTED-RUN-NODE.trace     one node's trace of one run
hot/DIGEST.hotset                        all of them, merged
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from bootseer.core.warm_plan import SAME_START_NS
from bootseer.errors import Corrupt, NotFound, UnknownVersion
from bootseer.image.hot import hotset
from bootseer.image.hot import trace as trace_format
from bootseer.image.hot.hotset import HotSet
from bootseer.image.hot.trace import Trace
from bootseer.parallel import for_each
from bootseer.store.api.base import ObjectInfo, Store, publish, read_all

_ROUNDS = 10
"""Of a merge: while the tasks of a job array end, new traces may come each time."""

_AT_ONCE = 16
"""Traces that are read at once."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of `rebuild`: the hot set that is now in the store, and the number of its traces."""

    hot_set: HotSet
    traces: int


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


def is_among(count: int, nodes: int, node: int) -> bool:
    """Whether a node is one of some that are spread evenly over the nodes of a job.

    The first node is, and so is every node of a job whose nodes are not known. Of `nodes / count`
    neighbours one is, so that a step on some of the nodes has its part.

    Args:
        count: how many nodes to spread, at least one.
        nodes: number of nodes of the job, 0 if unknown.
        node: index of the node.
    """
    return not nodes or node * count % nodes < count


async def publish_trace(store: Store, trace: Trace) -> None:
    """Publish a node's trace."""
    await publish(store, _name(f"traces/{trace.digest}", trace), trace.encode())


async def traces_of_start(store: Store, trace: Trace) -> list[ObjectInfo]:
    """List the published traces of the start that a trace is of."""

    def is_of_start(name: str) -> bool:
        started, _, rest = name.partition("-")
        return (
            started.isdecimal()
            and abs(int(started) - trace.started_ns) <= SAME_START_NS
            and rest.startswith(f"{trace.run}-")
        )

    found = await _list_traces(store, f"traces/{trace.digest}")
    return [info for info in found if is_of_start(info.name.rpartition("/")[2])]


async def is_to_merge(store: Store, trace: Trace, nodes: int) -> bool:
    """Whether the node that has published a trace is to merge: the first and the last of a start.

    So no node has to be waited for, and of nodes that publish at once not all merge the same.

    Args:
        store: the user's store.
        trace: the node's, in the store.
        nodes: that are expected to publish one.
    """
    found = await traces_of_start(store, trace)
    in_order = [info.name for info in sorted(found, key=lambda info: (info.mtime_ns, info.name))]
    mine = _name(f"traces/{trace.digest}", trace)
    return mine in in_order[:1] + (in_order[-1:] if len(found) >= nodes else [])


async def rebuild(store: Store, digest: str, runs_kept: int) -> MergeResult:
    """Merge all traces of an image into its hot set, and delete those that no merge needs again.

    Raises:
        NotFound: there is no trace of this image.

    Concurrency: any number of nodes at once. Each lists the traces again after it has published,
    and starts over if there are new ones, so the last to publish has merged them all. If new ones
    come all the time, the nodes that publish them merge in the end.
    """
    folder = f"traces/{digest}"
    known: dict[str, Trace | None] = {}  # None: it is no trace of this image
    newer: set[str] = set()

    async def read(info: ObjectInfo) -> None:
        with suppress(NotFound):
            try:
                known[info.name] = await _read_trace(store, folder, digest, info)
            except UnknownVersion:
                newer.add(info.name)  # nodes with the newer version need it
            except Corrupt:
                known[info.name] = None

    for _ in range(_ROUNDS):
        infos = await _list_traces(store, folder)
        names = [info.name for info in infos]
        unread = [info for info in infos if info.name not in known and info.name not in newer]
        await for_each(unread, read, _AT_ONCE)
        traces = [trace for name in names if (trace := known.get(name)) is not None]
        use, old = hotset.sort_out(traces, runs_kept)
        if not use:
            raise NotFound(f"{folder}: no trace to merge")
        hot_set = hotset.merge(digest, use)
        await publish(store, hot_set_name(digest), hot_set.encode())
        if [info.name for info in await _list_traces(store, folder)] == names:
            keep = newer | {_name(folder, t) for t in use} - {_name(folder, t) for t in old}
            await _clear(store, folder, names, keep, old)
            break
    return MergeResult(hot_set, len(use))


async def _read_trace(store: Store, folder: str, digest: str, info: ObjectInfo) -> Trace | None:
    """Read a trace; None if it is of another image, or has the wrong name."""
    data = await read_all(store, info.name, trace_format.MAX_BYTES, info)
    trace = trace_format.decode(data, info.name)
    return trace if trace.digest == digest and info.name == _name(folder, trace) else None


async def _clear(
    store: Store, folder: str, names: list[str], keep: set[str], old: list[Trace]
) -> None:
    """Join old traces into one, and delete all that are not kept."""
    if old:
        folded = hotset.fold(old)
        await publish(store, _name(folder, folded), folded.encode())
        keep = keep | {_name(folder, folded)}
    for name in names:
        if name not in keep:
            with suppress(NotFound):
                await store.delete(name)


async def _list_traces(store: Store, folder: str) -> list[ObjectInfo]:
    return [info for info in await store.list(folder) if not info.is_folder]


def _name(folder: str, trace: Trace) -> str:
    return f"{folder}/{trace.started_ns:020d}-{trace.run}-{trace.node}.trace"

"""Publish a run's recording to the user's store.

Each part is published independently: a trace that cannot be written does not block the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from bootseer.agent.messages.worker import (
    EventsWanted,
    Published,
    PublishEvents,
    PublishRecording,
    RecordedImage,
)
from bootseer.agent.workers.base import Task
from bootseer.checkpoint.read.repository import publish_reads
from bootseer.core.access_log import NodeReads, combine
from bootseer.core.event import one_line
from bootseer.core.fields import Fields
from bootseer.core.ranges import ByteRange, total_bytes
from bootseer.core.reference import ENVIRONMENT
from bootseer.core.warm_plan import PlannedImage, PlannedName, PlannedRun, WarmPlan
from bootseer.errors import BootseerError, Closed, Corrupt
from bootseer.image.hot.hotset import DOUBTS
from bootseer.image.hot.repository import (
    is_among,
    is_to_merge,
    publish_trace,
    read_hot_set,
    rebuild,
)
from bootseer.image.hot.trace import (
    COMPLETE,
    KINDS,
    MAX_TOUCHES,
    MISSED,
    Trace,
    join_touches,
    usage_of,
)
from bootseer.ipc.channel import unexpected
from bootseer.startup.plans import add_run
from bootseer.startup.run_events import NodeRun, drop_old_runs, publish_events
from bootseer.store.api.base import Store
from bootseer.units import format_size

FIRST_ANSWER_S = 2.0
"""An epilog holds its node."""
_SPARES = 3
"""Spare nodes per recording node: they publish a trace if no recording node has."""
_PLAN_WRITERS = 2
"""Of a job's nodes, besides those that merge: a job may record no image, and a node may be dead."""
_NEGLIGIBLE = 0.001
"""Of an image: what a warm start has missed changes nothing, if it is no more than this."""
_HANDFUL = 16
"""Ranges."""


async def run(task: Task) -> None:
    """Publish traces, the warm plan, the events and hot sets.

    Every node publishes its own events. Some nodes of a job publish traces, and two of those merge
    them and write the plan: see design/005.

    The result tells the agent whether the events are in the store, and which waiting runs must stay
    on the node for the user's next job.
    """
    recording = await task.channel.receive_only()
    if not isinstance(recording, PublishRecording):
        raise unexpected(recording)
    images = _joined(recording.images)
    job, count = task.job, task.config.image.traces_per_run
    records = is_among(count, job.nodes, job.node_index)
    is_spare = not records and is_among(count * (1 + _SPARES), job.nodes, job.node_index)
    hot_bytes: dict[str, int] | None = None
    try:
        store = task.watched_store(FIRST_ANSWER_S)
        to_merge = await _traces(task, store, images, count) if records else []
        if to_merge or is_among(_PLAN_WRITERS, job.nodes, job.node_index):
            hot_bytes = await _plan(task, store, recording)
        await _reads(task, store, recording)
        # Before the merge, which an epilog may have no time for.
        waiting = await _events(task, store)
        if is_spare and (to_merge := await _traces(task, store, images, 1)):
            hot_bytes = await _plan(task, store, recording)
        if to_merge:
            detail = f"{store.url}; no time to merge hot sets"
            left = list(range(len(waiting)))
            await task.channel.send(Published(True, detail, left, is_last=False))
            merged = {digest: await _merge(task, store, digest) for digest in to_merge}
            hot_bytes = (hot_bytes or {}) | merged
            waiting = await _events(task, store)
    except Closed:
        raise
    except BootseerError as error:
        await task.channel.send(Published(False, str(error), []))
        return
    left, detail = await _publish_waiting(store, waiting)
    await task.channel.send(Published(True, detail, left))
    # The agent waits only briefly for this; a later run removes the rest.
    with suppress(BootseerError):
        if hot_bytes is not None:  # a concurrent writer may not have read this node's plan
            await _add_run(task, store, recording, hot_bytes)
        if not job.node_index:
            await drop_old_runs(store)


async def _events(task: Task, store: Store) -> list[dict[str, object]]:
    """Publish this run's events so far; returns the runs that wait on the node.

    Raises:
        BootseerError: they are not in the store.
    """
    # The agent has received the stages so far and sends the whole list back.
    await task.channel.send(EventsWanted())
    events = await task.channel.receive_only()
    if not isinstance(events, PublishEvents):
        raise unexpected(events)
    await publish_events(store, _node_run(events.run))
    return events.waiting


def _joined(images: Sequence[RecordedImage]) -> list[RecordedImage]:
    """Merge the recordings of one image under several names.

    A node publishes one trace of an image per start: a second would replace the first.
    """
    found: dict[str, RecordedImage] = {}
    for image in images:
        one = found.get(image.digest)
        found[image.digest] = image if one is None else _join(one, image)
    return list(found.values())


def _join(one: RecordedImage, other: RecordedImage) -> RecordedImage:
    return one._replace(
        size_bytes=max(one.size_bytes, other.size_bytes),
        kind=max(one.kind, other.kind, key=KINDS.index),
        touches=join_touches(one.touches, other.touches),
        holdout=one.holdout or other.holdout,
    )


async def _traces(
    task: Task, store: Store, images: Sequence[RecordedImage], enough: int
) -> list[str]:
    """Publish traces; returns digests of the images whose traces this node is to merge.

    Args:
        task: the worker's task.
        store: the user's store.
        images: the recordings.
        enough: number of nodes of this start whose traces are enough.
    """
    expected = min(enough, task.job.nodes or 1)
    return [
        image.digest
        for image in images
        if _is_news(image) and await _publish(task, store, image, enough, expected)
    ]


def _is_news(image: RecordedImage) -> bool:
    """Whether a recording says more than that a start has missed next to nothing."""
    if image.kind != MISSED or image.holdout:
        return bool(image.touches or image.holdout)
    missed_bytes = sum(touch.stop - touch.start for touch in image.touches)
    is_little = missed_bytes <= image.size_bytes * _NEGLIGIBLE
    return bool(image.touches) and not (is_little and len(image.touches) <= _HANDFUL)


@contextmanager
def _by_itself() -> Iterator[None]:
    """Go on behind the block if it fails, as its stage has reported; not if the agent has ended."""
    try:
        yield
    except Closed:
        raise
    except BootseerError:
        pass


async def _hot_bytes(store: Store, digest: str) -> int:
    """Return the size of an image's hot set in bytes, 0 if there is none that can be read."""
    hot_set = None
    with _by_itself():
        hot_set = await read_hot_set(store, digest)
    return hot_set.hot_bytes if hot_set else 0


async def _publish(
    task: Task, store: Store, image: RecordedImage, enough: int, expected: int
) -> bool:
    """Publish an image's trace; returns whether this node is to merge its traces.

    Args:
        task: the worker's task.
        store: the user's store.
        image: the recording.
        enough: number of nodes of this start whose traces are enough.
        expected: number of its nodes that publish theirs.
    """
    with _by_itself():
        async with task.stage("trace.publish") as report:
            trace = _trace(task, image)
            report.bytes = sum(t.stop - t.start for t in trace.touches)
            report.detail = f"{len(trace.touches)} ranges"
            if await publish_trace(store, trace, enough):
                return await is_to_merge(store, trace, expected)
            report.detail = "enough nodes of this run have published theirs"
    return False


async def _merge(task: Task, store: Store, digest: str) -> int:
    """Merge an image's traces; returns the size of its hot set in bytes."""
    with _by_itself():
        async with task.stage("hotset.merge") as report:
            merged = await rebuild(store, digest, task.config.image.runs_kept)
            hot_bytes = merged.hot_set.hot_bytes
            report.bytes = hot_bytes
            report.detail = f"{merged.traces} traces, hot {format_size(hot_bytes)}"
            if doubts := merged.hot_set.doubts:
                report.detail += f"; {doubts} starts in a row read little of the hot set"
                if doubts >= DOUBTS:
                    report.detail += ": their earlier recordings are discarded"
            if not hot_bytes:
                report.detail = "nearly all was read, as by unpacking: no hot set"
            return hot_bytes
    return 0


def _planned(image: RecordedImage, hot_bytes: int) -> PlannedImage:
    planned = PlannedImage(image.path, image.digest, image.size_bytes, hot_bytes)
    if image.store is not None and image.file is not None:
        planned = replace(planned, store=image.store, file=image.file)
        if image.kind == COMPLETE:
            touched_bytes = sum(touch.stop - touch.start for touch in image.touches)
            touched_reads = len(image.touches)
            planned = replace(planned, touched_bytes=touched_bytes, touched_reads=touched_reads)
    return planned


def _trace(task: Task, image: RecordedImage) -> Trace:
    touches = tuple(image.touches[:MAX_TOUCHES])
    return Trace(
        digest=image.digest,
        size_bytes=image.size_bytes,
        run=task.job.run,
        started_ns=task.job.started_ns,
        node=task.job.node,
        kind=image.kind,
        touches=touches,
        holdout=tuple(image.holdout),
        usage=usage_of(image.kind, touches),
    )


async def _add_run(
    task: Task, store: Store, recording: PublishRecording, hot_bytes: Mapping[str, int]
) -> WarmPlan:
    """Add the run to the plan.

    Args:
        task, store, recording: of the run.
        hot_bytes: sizes of hot sets, by the images' digests.
    """
    job = task.job
    images = tuple(_planned(image, hot_bytes[image.digest]) for image in recording.images)
    run = PlannedRun(job.run, job.job_id, recording.kind, job.started_ns)
    names = tuple(
        PlannedName(image.path, image.content)
        for image in recording.images
        if image.content and not image.path.startswith(ENVIRONMENT)
    )
    return await add_run(store, job.user, job.key, run, images, names)


async def _plan(task: Task, store: Store, recording: PublishRecording) -> dict[str, int]:
    """Write the plan; returns the sizes of the images' hot sets as they are now, by digest."""
    hot_bytes: dict[str, int] = {}
    with _by_itself():
        async with task.stage("plan.write") as report:
            for image in recording.images:
                hot_bytes[image.digest] = await _hot_bytes(store, image.digest)
            plan = await _add_run(task, store, recording, hot_bytes)
            report.detail = f"key {task.job.key}: {len(plan.runs)} runs"
    return hot_bytes


async def _reads(task: Task, store: Store, recording: PublishRecording) -> None:
    """Publish this node's reads of its checkpoint, replacing those of the last run."""
    job = task.job
    if not recording.files or not job.nodes:
        return
    with _by_itself():
        async with task.stage("checkpoint.record") as report:
            ahead: dict[str, tuple[int, list[ByteRange]]] = {}
            for path, ranges in recording.ahead:
                ahead[path] = ahead.get(path, (0, ranges))[0] + 1, ranges
            files = combine(recording.files, ahead)
            reads = NodeReads(job.user, job.key, job.nodes, job.node_index, files)
            report.bytes = sum(total_bytes(file.ranges) for file in files)
            report.detail = f"{len(files)} files"
            await publish_reads(store, reads)


async def _publish_waiting(store: Store, waiting: list[dict[str, object]]) -> tuple[list[int], str]:
    """Publish the runs that waited on the node, each independently.

    Unreadable runs are dropped: no later job could publish them either.

    Returns:
        The indexes of the runs that must keep waiting, and a line for people.
    """
    left: list[int] = []
    details = [store.url]
    for number, document in enumerate(waiting):
        try:
            await publish_events(store, _node_run(document))
        except Corrupt as error:
            details.append(f"dropped an unpublished earlier run: {error}")
        except BootseerError as error:
            left.append(number)
            details.append(f"an earlier run is still unpublished: {error}")
    return left, one_line("; ".join(details))


def _node_run(document: dict[str, object]) -> NodeRun:
    """Decode a run.

    Raises:
        Corrupt: a field is missing or not acceptable.
    """
    name = "events from the agent"
    return NodeRun.from_fields(Fields(document, name), name)

"""Publish a run's recording to the user's store.

Each part is published independently: a trace that cannot be written does not block the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
from bootseer.image.hot.repository import is_among, publish_trace, read_hot_set, rebuild
from bootseer.image.hot.trace import (
    COMPLETE,
    KINDS,
    MAX_TOUCHES,
    Trace,
    join_touches,
    usage_of,
)
from bootseer.ipc.channel import unexpected
from bootseer.startup.plans import add_run
from bootseer.startup.run_events import MAX_ROWS, NodeRun, drop_old_runs, publish_events
from bootseer.store.api.base import Store
from bootseer.units import format_size

FIRST_ANSWER_S = 2.0
"""An epilog holds its node."""
_SPARES = 3
"""Spare nodes per recording node: they publish a trace if no recording node has."""


async def run(task: Task) -> None:
    """Publish traces, hot sets, the warm plan and, last, the events.

    The result tells the agent whether the events are in the store, and which waiting runs must stay
    on the node for the user's next job.
    """
    recording = await task.channel.receive_only()
    if not isinstance(recording, PublishRecording):
        raise unexpected(recording)
    try:
        store = task.watched_store(FIRST_ANSWER_S)
        job, count = task.job, task.config.image.traces_per_run
        is_first = is_among(count, job.nodes, job.node_index)
        planned = await _record_all(task, store, recording.images, count if is_first else 0)
        await _plan(task, store, recording, planned)
        await _reads(task, store, recording)
        if not is_first and is_among(count * (1 + _SPARES), job.nodes, job.node_index):
            planned = await _record_all(task, store, recording.images, 1)
    except Closed:
        raise
    except BootseerError as error:
        await task.channel.send(Published(False, str(error), []))
        return
    # The agent has received the stages above and sends the whole list back.
    await task.channel.send(EventsWanted())
    events = await task.channel.receive_only()
    if not isinstance(events, PublishEvents):
        raise unexpected(events)
    try:
        await publish_events(store, _node_run(events.run))
    except BootseerError as error:
        await task.channel.send(Published(False, str(error), []))
        return
    left, detail = await _publish_waiting(store, events.waiting)
    await task.channel.send(Published(True, detail, left))
    # The agent waits only briefly for this; a later run removes the rest.
    with suppress(BootseerError):
        await _add_run(task, store, recording, planned)  # a concurrent writer may not have read it
    if not task.job.node_index:
        with suppress(BootseerError):
            await drop_old_runs(store)


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


async def _record_all(
    task: Task, store: Store, images: Sequence[RecordedImage], count: int
) -> tuple[PlannedImage, ...]:
    """Publish the images' recordings; returns their entries for the plan.

    Args:
        task: the worker's task.
        store: the user's store.
        images: the recorded images.
        count: number of nodes of this start whose traces are enough.
    """
    hot_bytes = {i.digest: await _record(task, store, i, count) for i in _joined(images)}
    return tuple(_planned(i, hot_bytes[i.digest]) for i in images)


async def _record(task: Task, store: Store, image: RecordedImage, count: int) -> int:
    """Publish an image's recording; returns the size of its hot set in bytes."""
    try:
        is_recorded = image.touches or image.holdout
        if count and is_recorded and await _publish(task, store, image, count):
            return await _merge(task, store, image.digest)
        hot_set = await read_hot_set(store, image.digest)
    except Closed:
        raise
    except BootseerError:
        return 0  # reported as a fallback by its stage
    return hot_set.hot_bytes if hot_set else 0


async def _publish(task: Task, store: Store, image: RecordedImage, count: int) -> bool:
    async with task.stage("trace.publish") as report:
        trace = _trace(task, image)
        report.bytes = sum(t.stop - t.start for t in trace.touches)
        kept = await publish_trace(store, trace, count)
        report.detail = f"{len(trace.touches)} ranges"
        if not kept:
            report.detail = "enough nodes of this run have published theirs"
        return kept


async def _merge(task: Task, store: Store, digest: str) -> int:
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
    task: Task, store: Store, recording: PublishRecording, images: tuple[PlannedImage, ...]
) -> WarmPlan:
    job = task.job
    run = PlannedRun(job.run, job.job_id, recording.kind, job.started_ns)
    names = tuple(
        PlannedName(image.path, image.content)
        for image in recording.images
        if image.content and not image.path.startswith(ENVIRONMENT)
    )
    return await add_run(store, job.user, job.key, run, images, names)


async def _plan(
    task: Task, store: Store, recording: PublishRecording, images: tuple[PlannedImage, ...]
) -> None:
    try:
        async with task.stage("plan.write") as report:
            plan = await _add_run(task, store, recording, images)
            report.detail = f"key {task.job.key}: {len(plan.runs)} runs"
    except Closed:
        raise
    except BootseerError:
        pass  # reported as a fallback


async def _reads(task: Task, store: Store, recording: PublishRecording) -> None:
    """Publish this node's reads of its checkpoint, replacing those of the last run."""
    job = task.job
    if not recording.files or not job.nodes:
        return
    try:
        async with task.stage("checkpoint.record") as report:
            ahead: dict[str, tuple[int, list[ByteRange]]] = {}
            for path, ranges in recording.ahead:
                ahead[path] = ahead.get(path, (0, ranges))[0] + 1, ranges
            files = combine(recording.files, ahead)
            reads = NodeReads(job.user, job.key, job.nodes, job.node_index, files)
            report.bytes = sum(total_bytes(file.ranges) for file in files)
            report.detail = f"{len(files)} files"
            await publish_reads(store, reads)
    except Closed:
        raise
    except BootseerError:
        pass  # reported as a fallback


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
    """Decode a run; a newer version may have added fields.

    Raises:
        Corrupt: a field is missing or not acceptable.
    """
    name = "events from the agent"
    fields = Fields(document, name)
    return NodeRun.from_fields(fields, fields.items("events", MAX_ROWS), name)

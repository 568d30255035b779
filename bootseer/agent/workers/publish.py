"""Write what a run has recorded to the user's store.

Each part is tried by itself: a trace that cannot be written does not keep the events back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

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

_SPARES = 3
"""For each node of a job that records: one of them does where none of those has."""


async def run(task: Task) -> None:
    """Publish traces, hot sets, the warm plan and, last, the events of all that.

    The answer to the agent says whether the events have arrived in the store, and which have not
    of those that had waited on the node: these are kept there for the user's next job.
    """
    recording = await task.channel.receive_only()
    if not isinstance(recording, PublishRecording):
        raise unexpected(recording)
    try:
        store = task.store()
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
    # The agent has seen the stages above and sends the whole list back.
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
    # The agent waits a little for this and no longer: what is left is for another time.
    with suppress(BootseerError):
        await _add_run(
            task, store, recording, planned
        )  # who wrote meanwhile may not have known of it
    if not task.job.node_index:
        with suppress(BootseerError):
            await drop_old_runs(store)


def _joined(images: Sequence[RecordedImage]) -> list[RecordedImage]:
    """Put together what was recorded of one image under several names.

    A node has one trace of it for each start: a second one would take the first one's place.
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
    """Publish what was recorded; returns what the plan is to say.

    Args:
        task: whose recordings these are.
        store: the user's.
        images: that were recorded.
        count: of nodes of this start whose traces of an image are enough.
    """
    hot_bytes = {i.digest: await _record(task, store, i, count) for i in _joined(images)}
    return tuple(_planned(i, hot_bytes[i.digest]) for i in images)


async def _record(task: Task, store: Store, image: RecordedImage, count: int) -> int:
    """Publish what was recorded of an image; returns how many bytes of it are hot."""
    try:
        is_recorded = image.touches or image.holdout
        if count and is_recorded and await _publish(task, store, image, count):
            return await _merge(task, store, image.digest)
        hot_set = await read_hot_set(store, image.digest)
    except Closed:
        raise
    except BootseerError:
        return 0  # told as a fallback by the stage it happened in
    return hot_set.hot_bytes if hot_set else 0


async def _publish(task: Task, store: Store, image: RecordedImage, count: int) -> bool:
    async with task.stage("trace.publish") as said:
        trace = _trace(task, image)
        said.bytes = sum(t.stop - t.start for t in trace.touches)
        kept = await publish_trace(store, trace, count)
        said.detail = f"{len(trace.touches)} ranges"
        if not kept:
            said.detail = "enough nodes of this run have published theirs"
        return kept


async def _merge(task: Task, store: Store, digest: str) -> int:
    async with task.stage("hotset.merge") as said:
        merged = await rebuild(store, digest, task.config.image.runs_kept)
        hot_bytes = merged.hot_set.hot_bytes
        said.bytes = hot_bytes
        said.detail = f"{merged.traces} traces, hot {format_size(hot_bytes)}"
        if doubts := merged.hot_set.doubts:
            said.detail += f"; {doubts} starts in a row read little of the hot set"
            if doubts >= DOUBTS:
                said.detail += ": their earlier recordings are discarded"
        if not hot_bytes:
            said.detail = "nearly all was read, as by unpacking: no hot set"
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
        async with task.stage("plan.write") as said:
            plan = await _add_run(task, store, recording, images)
            said.detail = f"key {task.job.key}: {len(plan.runs)} runs"
    except Closed:
        raise
    except BootseerError:
        pass  # told as a fallback


async def _reads(task: Task, store: Store, recording: PublishRecording) -> None:
    """Keep what this node has read of its checkpoint; the last run's is what counts."""
    job = task.job
    if not recording.files or not job.nodes:
        return
    try:
        async with task.stage("checkpoint.record") as said:
            ahead: dict[str, tuple[int, list[ByteRange]]] = {}
            for path, ranges in recording.ahead:
                ahead[path] = ahead.get(path, (0, ranges))[0] + 1, ranges
            files = combine(recording.files, ahead)
            reads = NodeReads(job.user, job.key, job.nodes, job.node_index, files)
            said.bytes = sum(total_bytes(file.ranges) for file in files)
            said.detail = f"{len(files)} files"
            await publish_reads(store, reads)
    except Closed:
        raise
    except BootseerError:
        pass  # told as a fallback


async def _publish_waiting(store: Store, waiting: list[dict[str, Any]]) -> tuple[list[int], str]:
    """Publish runs that have waited on the node, each by itself.

    What cannot be read is given up: no later job could publish it either.

    Returns:
        The numbers of those that have to wait on, and a line for people about all of it.
    """
    left: list[int] = []
    details = [store.url]
    for number, document in enumerate(waiting):
        try:
            await publish_events(store, _node_run(document))
        except Corrupt as error:
            details.append(f"a run that had waited is given up: {error}")
        except BootseerError as error:
            left.append(number)
            details.append(f"a run waits on: {error}")
    return left, one_line("; ".join(details))


def _node_run(document: dict[str, Any]) -> NodeRun:
    """Read a run; what a newer version has left on the node may have more fields.

    Raises:
        Corrupt: a field is missing or not acceptable.
    """
    name = "events from the agent"
    fields = Fields(document, name)
    return NodeRun.from_fields(fields, fields.items("events", MAX_ROWS), name)

"""Publish a run's recording to the user's store.

Each part is published independently: a trace that cannot be written does not block the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import trio

from bootseer.agent.messages.worker import (
    Published,
    PublishRecording,
    RecordedImage,
)
from bootseer.agent.workers.base import Task, by_itself
from bootseer.agent.workers.event_group import (
    PLAN_WRITERS,
    decode_run,
    publish_in_group,
    publish_own,
)
from bootseer.agent.workers.image_traces import ImageTraces, merge_traces
from bootseer.checkpoint.read.repository import publish_reads
from bootseer.core.access_log import NodeReads, combine
from bootseer.core.event import one_line
from bootseer.core.ranges import ByteRange, total_bytes
from bootseer.core.reference import ENVIRONMENT
from bootseer.core.warm_plan import PlannedImage, PlannedName, PlannedRun, WarmPlan
from bootseer.errors import BootseerError, Closed, Corrupt
from bootseer.image.hot.repository import is_among, read_hot_set
from bootseer.image.hot.trace import COMPLETE
from bootseer.ipc.channel import unexpected
from bootseer.startup.plans import add_run
from bootseer.startup.run_events import drop_old_runs, publish_events
from bootseer.store.api.base import Store

FIRST_ANSWER_S = 2.0
"""An epilog holds its node."""


async def run(task: Task) -> None:
    """Publish traces, the warm plan, the events and hot sets.

    Each node publishes its events, or has a node of its group do so. Some nodes of a job publish
    traces, and two of those merge them and write the plan: see design/005.

    The result tells the agent whether the events are in the store, and which waiting runs must stay
    on the node for the user's next job.
    """
    recording = await task.channel.receive_only()
    if not isinstance(recording, PublishRecording):
        raise unexpected(recording)
    job = task.job
    traces = ImageTraces(task, recording.images)
    hot_bytes: dict[str, int] | None = None
    try:
        store = task.watched_store(FIRST_ANSWER_S)
        to_merge = await traces.publish(store) if traces.is_recording else []
        if to_merge or is_among(PLAN_WRITERS, job.nodes, job.node_index):
            hot_bytes = await _plan(task, store, recording)
        await _reads(task, store, recording)
        # Before the merge, which an epilog may have no time for.
        began_s = trio.current_time()
        waiting = await publish_in_group(task, store)
        if to_merge or traces.is_spare:
            detail = f"{store.url}; no time to merge hot sets"
            left = list(range(len(waiting)))
            await task.channel.send(Published(True, detail, left, is_last=False))
        if traces.is_spare:
            to_merge = await traces.publish_missing(store, trio.current_time() - began_s)
            if to_merge:
                hot_bytes = await _plan(task, store, recording)
        if to_merge:
            merged = {digest: await merge_traces(task, store, digest) for digest in to_merge}
            hot_bytes = (hot_bytes or {}) | merged
            waiting = await publish_own(task, store)
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


async def _hot_bytes(store: Store, digest: str) -> int:
    """Return the size of an image's hot set in bytes, 0 if there is none that can be read."""
    hot_set = None
    with by_itself():
        hot_set = await read_hot_set(store, digest)
    return hot_set.hot_bytes if hot_set else 0


def _planned(image: RecordedImage, hot_bytes: int) -> PlannedImage:
    planned = PlannedImage(image.path, image.digest, image.size_bytes, hot_bytes)
    if image.store is not None and image.file is not None:
        planned = replace(planned, store=image.store, file=image.file)
        if image.kind == COMPLETE:
            touched_bytes = sum(touch.stop - touch.start for touch in image.touches)
            touched_reads = len(image.touches)
            planned = replace(planned, touched_bytes=touched_bytes, touched_reads=touched_reads)
    return planned


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
    with by_itself():
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
    with by_itself():
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
            await publish_events(store, decode_run(document))
        except Corrupt as error:
            details.append(f"dropped an unpublished earlier run: {error}")
        except BootseerError as error:
            left.append(number)
            details.append(f"an earlier run is still unpublished: {error}")
    return left, one_line("; ".join(details))

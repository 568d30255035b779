"""Publish a job's recording to the user's store, in a worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import trio

from bootseer.agent.messages.broker import Role
from bootseer.agent.messages.worker import (
    EventsWanted,
    Published,
    PublishEvents,
    PublishRecording,
    StageEnded,
    StoreAway,
)
from bootseer.agent.supervisor import spool
from bootseer.agent.supervisor.checkpoint_mount import MountedCheckpoint
from bootseer.agent.supervisor.images.image_record import JobImage
from bootseer.agent.supervisor.job_context import JobContext
from bootseer.agent.supervisor.worker_process import Worker, start
from bootseer.core.event import Event, one_line
from bootseer.errors import BootseerError, Closed
from bootseer.ipc.channel import unexpected

_TIDY_S = 0.5
"""Time for a worker to remove old runs, once it has published."""


async def publish(
    context: JobContext,
    images: Sequence[JobImage],
    checkpoint: MountedCheckpoint | None,
    timeout_s: float,
    began_ns: int = 0,
    forked: Worker | None = None,
) -> tuple[bool, str]:
    """Publish the recording in a worker; unpublished events go to the spool.

    Args:
        context: the job's context.
        images: the recorded images.
        checkpoint: the recorded checkpoint.
        timeout_s: for the whole publication.
        began_ns: when the epilog began, nanoseconds since the epoch; 0 without an epilog.
        forked: a worker that waits for this; another is started if it has died.

    Returns:
        Whether the events of this run are in the store, and a line for people.
    """
    events, cache_dir, uid = context.events, context.config.node.cache_dir, context.job.uid
    kind = events.kind()
    waiting: list[spool.Waiting] = []
    with suppress(BootseerError, OSError):  # reported below, where it matters
        waiting = spool.read_waiting(cache_dir, uid)
    why, told = f"not within {timeout_s:.1f} s", list[Published]()
    outages, store_url = context.outages, context.store_url
    recording = PublishRecording(
        kind,
        [image.recorded() for image in images if image.is_used],
        checkpoint.reads if checkpoint is not None else [],
        checkpoint.ahead if checkpoint is not None else [],
    )
    if outage := outages.recent(store_url):
        why = f"store {store_url} is not asked: {outage}"
    else:
        with trio.move_on_after(timeout_s):
            try:
                await _publish_by_worker(context, forked, recording, waiting, began_ns, told)
            except (BootseerError, OSError) as error:
                why = str(error)
    published = told[-1] if told else Published(False, why, [])
    detail = one_line(published.detail)
    if published.ok:
        outages.clear(store_url)
        for number, (path, _) in enumerate(waiting):
            if number not in published.left:
                with suppress(OSError):  # the disk is read-only: the run is published again
                    path.unlink(missing_ok=True)
    else:
        events.fall_back("publish", detail)
        try:
            spool.put(cache_dir, uid, _run_document(context, kind, began_ns))
        except (BootseerError, OSError) as error:
            detail += f"; and cannot be kept: {error}"
    return published.ok, detail


async def _publish_by_worker(
    context: JobContext,
    forked: Worker | None,
    recording: PublishRecording,
    waiting: Sequence[spool.Waiting],
    began_ns: int,
    told: list[Published],
) -> None:
    """Publish this run and the waiting ones in a worker.

    Args:
        context, recording, waiting, began_ns: what is published.
        forked: as for `publish`.
        told: takes the worker's result, and before that what it has done so far.
    """
    worker = forked
    try:
        if worker is None or not await _takes_task(context, worker):
            worker = await start(context.broker, Role.PUBLISH)
            await worker.send_task(context.job, context.config)
        await worker.channel.send(recording)
        await _handle_messages(context, worker, recording.kind, waiting, began_ns, told)
    finally:
        with trio.CancelScope(shield=True):
            for each in {worker, forked}:
                if each is not None:
                    await each.end()


async def _takes_task(context: JobContext, worker: Worker) -> bool:
    try:
        await worker.send_task(context.job, context.config)
    except Closed:  # it has been killed: by its user, or for memory
        return False
    return True


async def _handle_messages(
    context: JobContext,
    worker: Worker,
    kind: str,
    waiting: Sequence[spool.Waiting],
    began_ns: int,
    told: list[Published],
) -> None:
    while True:
        match message := await worker.channel.receive_only():
            case StageEnded():
                context.events.note(message.event)
            case StoreAway():
                context.outages.note(context.store_url, message.why)
            case EventsWanted():
                run = _run_document(context, kind, began_ns)
                await worker.channel.send(PublishEvents(run, [each for _, each in waiting]))
            case Published():
                told[:] = [message]
                if message.is_last:
                    # Now the worker removes old runs, if there is time.
                    with trio.move_on_after(_TIDY_S, shield=True), suppress(Closed):
                        await worker.channel.receive_only()
                    return
            case _:
                raise unexpected(message)


def _run_document(context: JobContext, kind: str, began_ns: int = 0) -> dict[str, object]:
    """Describe this run as `bootseer.startup.run_events.NodeRun` reads it.

    Args:
        context: the job's context.
        kind: of the run.
        began_ns: when the epilog began, 0 without one.
    """
    job = context.job
    events = context.events.documents()
    if began_ns:
        events.append(Event("epilog", began_ns, time.time_ns(), "epilog").document())
    return {
        "run": job.run,
        "job": job.job_id,
        "key": job.key,
        "node": job.node,
        "kind": kind,
        "started_ns": job.started_ns,
        "events": events,
    }

"""Traces of the images that a start has read: which nodes publish them, and which merge them.

See design/005.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from bootseer.agent.messages.worker import RecordedImage
from bootseer.agent.node.job import Job
from bootseer.agent.workers.base import Task, by_itself
from bootseer.agent.workers.spare_node import missing_after, patience, spare_number
from bootseer.image.hot.hotset import DOUBTS
from bootseer.image.hot.repository import (
    is_among,
    is_to_merge,
    publish_trace,
    rebuild,
    traces_of_start,
)
from bootseer.image.hot.trace import KINDS, MAX_TOUCHES, MISSED, Trace, join_touches, usage_of
from bootseer.store.api.base import Store
from bootseer.units import format_size

_SPARES_SHARE = 0.6
"""Of an epilog's time, after which a spare node publishes no trace: it could not finish."""
_NEGLIGIBLE = 0.001
"""Of an image: what a warm start has missed changes nothing, if it is no more than this."""
_HANDFUL = 16
"""Ranges."""


class ImageTraces:
    """The traces of one node's start.

    Attributes:
        is_recording: this node is one of those that publish their traces.
        is_spare: it publishes what none of those has published.
    """

    def __init__(self, task: Task, images: Sequence[RecordedImage]) -> None:
        """Choose what is published; nothing is asked of the store.

        Args:
            task: the worker's task, which has just begun.
            images: the recordings.
        """
        job, count = task.job, task.config.image.traces_per_run
        self._task, self._count = task, count
        self._images = [image for image in _joined(images) if _is_news(image)]
        self._number = spare_number(count, job.nodes, job.node_index)
        self._spare_until_s = trio.current_time() + task.config.epilog.deadline_s * _SPARES_SHARE
        self.is_recording = is_among(count, job.nodes, job.node_index)
        self.is_spare = self._number is not None and bool(self._images)

    async def publish(self, store: Store) -> list[str]:
        """Publish them; returns digests of the images whose traces this node is to merge."""
        return [image.digest for image in self._images if await self._publish(store, image)]

    async def publish_missing(self, store: Store, own_s: float) -> list[str]:
        """Publish traces of images of which no recording node has, if there is time; see `publish`.

        Args:
            store: the user's store.
            own_s: how long this node has taken to publish its events.
        """
        if self._number is None:
            return []
        wait = patience(self._number, self._count, own_s)
        missing: Sequence[RecordedImage] = []
        if trio.current_time() + wait.whole_s <= self._spare_until_s:
            with by_itself():
                missing = await missing_after(wait, self._images, partial(self._is_there, store))
        if trio.current_time() > self._spare_until_s:
            return []
        return [image.digest for image in missing if await self._publish(store, image)]

    async def _is_there(self, store: Store, image: RecordedImage) -> bool:
        return bool(await traces_of_start(store, _trace(self._task.job, image)))

    async def _publish(self, store: Store, image: RecordedImage) -> bool:
        nodes = self._task.job.nodes
        with by_itself():
            async with self._task.stage("trace.publish") as report:
                trace = _trace(self._task.job, image)
                report.bytes = sum(t.stop - t.start for t in trace.touches)
                report.detail = f"{len(trace.touches)} ranges"
                if not nodes and await self._are_enough(store, trace):
                    report.detail = "enough nodes of this run have published theirs"
                    return False
                await publish_trace(store, trace)
                return await is_to_merge(store, trace, min(self._count, nodes or 1))
        return False

    async def _are_enough(self, store: Store, trace: Trace) -> bool:
        """Whether a node that does not know its place has nothing to add."""
        # A trace with a holdout is the only one of its start.
        return not trace.holdout and len(await traces_of_start(store, trace)) >= self._count


async def merge_traces(task: Task, store: Store, digest: str) -> int:
    """Merge an image's traces; returns the size of its hot set in bytes."""
    with by_itself():
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


def _is_news(image: RecordedImage) -> bool:
    """Whether a recording says more than that a start has missed next to nothing."""
    if image.kind != MISSED or image.holdout:
        return bool(image.touches or image.holdout)
    missed_bytes = sum(touch.stop - touch.start for touch in image.touches)
    is_little = missed_bytes <= image.size_bytes * _NEGLIGIBLE
    return bool(image.touches) and not (is_little and len(image.touches) <= _HANDFUL)


def _trace(job: Job, image: RecordedImage) -> Trace:
    touches = tuple(image.touches[:MAX_TOUCHES])
    return Trace(
        digest=image.digest,
        size_bytes=image.size_bytes,
        run=job.run,
        started_ns=job.started_ns,
        node=job.node,
        kind=image.kind,
        touches=touches,
        holdout=tuple(image.holdout),
        usage=usage_of(image.kind, touches),
    )

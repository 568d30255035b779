"""Warm a job's image: identify it, pass it to the agent, and prefetch its hot set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import trio

from bootseer.agent.messages.worker import (
    ImageFound,
    ImageMissing,
    ImageReadable,
    ImageUnreadable,
    MountImage,
    PrefetchBegun,
    PrefetchProgress,
    Ready,
    ServedImageOpened,
)
from bootseer.agent.workers.base import Task, owner_of
from bootseer.agent.workers.job_peers import JobPeers
from bootseer.agent.workers.plan_reader import PlanReader
from bootseer.core.ranges import ByteRange, coalesce, subtract, total_bytes
from bootseer.core.reference import ENVIRONMENT
from bootseer.env.mount.content import AHEAD
from bootseer.env.mount.hot_files import hot_content
from bootseer.env.snapshot.group_store import find_snapshot, shared_stores
from bootseer.env.snapshot.repository import read_rows
from bootseer.errors import BootseerError, Closed, Denied, NotFound
from bootseer.image.hot.files import FilesPrefetch, HotFile, hot_files
from bootseer.image.hot.holdout import HeldOutPiece, draw
from bootseer.image.hot.hotset import HotSet
from bootseer.image.hot.order import prefetch_order
from bootseer.image.hot.prefetch import PIECE_BYTES, Prefetch, may_pin, pinnable_bytes
from bootseer.image.hot.repository import read_hot_set
from bootseer.image.identity import Identity, OpenImage, open_served
from bootseer.ipc.channel import Awaited
from bootseer.rate_limit import RateLimit
from bootseer.store.api.base import Store
from bootseer.units import format_size

_PROGRESS_S = 0.05
_GIVE_UP_S = 3.0
"""Grace period for a start to read prefetched data, once the agent sees that it does not."""


class ImagePrefetch:
    """The warm-up of one image, or of one environment's image.

    Attributes:
        readable: the agent's message on a served image.
        copied: set once the copy of the whole image has ended.
    """

    def __init__(self, task: Task, plan: PlanReader, budget: RateLimit, peers: JobPeers) -> None:
        """Create a warm-up; nothing is read yet.

        Args:
            task: the worker's task.
            plan: the job's plan.
            budget: limits the reading speed.
            peers: the job's nodes.
        """
        self.readable = Awaited[ImageReadable | ImageUnreadable]()
        self.copied = trio.Event()
        self._task = task
        self._plan = plan
        self._budget = budget
        self._peers = peers
        self._prefetch: Prefetch | None = None
        self._yields = False
        self._has_stopped = False
        self._without_hot_set = "this start is recorded"

    def hold(self, *, is_held: bool) -> None:
        """Pause or resume the prefetch."""
        if self._prefetch is not None:
            self._prefetch.hold(is_held=is_held)

    def yield_to_job(self) -> None:
        """Lower the prefetch's priority below the job's."""
        self._yields = True
        if self._prefetch is not None:
            self._prefetch.yield_to_others()

    async def run(self, store: Store) -> str:
        """Find, identify and prefetch the image; returns a summary."""
        task, job = self._task, self._task.job
        if job.is_served:
            return await self._served_image(store)
        path = job.image or await self._image_of_last_run(store)
        if "://" in path:
            await task.channel.send(MountImage(path))
            return "the image of the last start is served"
        if not path:
            return (
                "no image is known for this key yet: one that Pyxis gives a step is recorded, "
                "another if --bootseer-image=PATH names it"
            )
        try:
            async with task.stage("image.identify") as report:
                opened = await task.opened(path)
                image, identity = opened.image, opened.identity
                report.start_ns = opened.start_ns
                report.bytes = total_bytes(identity.leading)
                report.detail = identity.digest[:18]
        except (NotFound, Denied):
            if job.image:
                await task.channel.send(ImageMissing())
            raise
        found = ImageFound(path, identity.digest, list(identity.leading))
        await task.channel.send(found, [image.fd])
        hot_set = await self._hot_set(store, identity)
        if hot_set is None:
            # The agent takes its first sample before it reads the next message.
            return self._without_hot_set
        return await self._read_ahead(image, identity, hot_set)

    async def _served_image(self, store: Store) -> str:
        """Prefetch a served image through its mount."""
        served = await self.readable.wait()
        if isinstance(served, ImageUnreadable):
            return "the image is not served"
        if self._task.job.image.startswith(ENVIRONMENT):
            return await self._environment(store, served)
        # Before all else: a file keeps the read-ahead that it was opened with.
        image = await trio.to_thread.run_sync(open_served, served.path, served.size_bytes)
        await self._task.channel.send(ServedImageOpened())
        identity = Identity(served.identity, tuple(served.leading))
        hot_set = await self._hot_set(store, identity)
        if hot_set is None:
            await self._read_leading(image, identity)
            detail = self._without_hot_set
        elif served.tree:

            async def find(hot: list[ByteRange]) -> list[HotFile]:
                return await trio.to_thread.run_sync(hot_files, Path(served.path), hot)

            detail = await self._read_files(served.tree, find, hot_set)
        else:
            # Its server gives other reads priority.
            detail = await self._read_ahead(image, identity, hot_set, others_wait=False)
        if served.copies and self._task.job.wait_s:
            await self.copied.wait()
            detail += "; the image was copied to the node"
        return detail

    async def _environment(self, store: Store, served: ImageReadable) -> str:
        """Prefetch the files of an environment through its mount."""
        hot_set = await self._hot_set(store, Identity(served.identity, tuple(served.leading)))
        if hot_set is None:
            return self._without_hot_set
        return await self._read_files(
            served.path, partial(self._hot_content, store), hot_set, AHEAD
        )

    async def _begin(
        self, hot_set: HotSet, holdout: Sequence[HeldOutPiece] = ()
    ) -> tuple[list[ByteRange], int]:
        """Report the planned ranges to the agent; returns them, and the memory limit in bytes."""
        hot = [r.range for r in hot_set.ranges]
        begun = PrefetchBegun(hot, list(holdout), hot_set.doubts)
        await self._task.channel.send(begun)
        if not self._task.job.wait_s:
            # The prolog does not hold the job: its start and the prefetch overlap.
            await self._task.channel.send(Ready("the prefetch is under way"))
        return hot, pinnable_bytes(self._task.config.image.memory_share)

    async def _hot_content(self, store: Store, hot: Sequence[ByteRange]) -> list[HotFile]:
        """Find the hot files of the environment that this worker prefetches."""
        task = self._task
        shared = map(self._peers.start_reads, shared_stores(task.config, owner_of(task.job)))
        key = task.job.image.removeprefix(ENVIRONMENT)
        rows = await read_rows(*await find_snapshot([store, *shared], key))
        return await trio.to_thread.run_sync(hot_content, rows, hot)

    async def _read_files(
        self,
        root: str,
        find: Callable[[list[ByteRange]], Awaitable[list[HotFile]]],
        hot_set: HotSet,
        flags: int = 0,
    ) -> str:
        """Prefetch the hot files through a mount of the image's tree, which decompresses them."""
        hot, budget = await self._begin(hot_set)
        async with self._task.stage("image.prefetch") as report:
            prefetch = FilesPrefetch(root, await find(hot), budget, self._budget, flags)
            await prefetch.run()
            report.bytes = prefetch.read_bytes
            report.detail = (
                f"{prefetch.files} files, decompressed, {format_size(prefetch.pinned_bytes)} pinned"
            )
            if prefetch.read_bytes > budget:
                report.fall_back(
                    f"stopped after {format_size(prefetch.read_bytes)}: "
                    "image.memory_share of the free memory"
                )
        return "the hot files are in memory"

    async def _read_leading(self, image: OpenImage, identity: Identity) -> None:
        """Prefetch what every start reads, for an image without a hot set."""
        prefetch = Prefetch(image.fd, image.size_bytes, self._task.config.image.streams)
        size_bytes = total_bytes(identity.leading)
        await prefetch.run(prefetch_order(identity.leading, (), size_bytes, PIECE_BYTES))

    async def _image_of_last_run(self, store: Store) -> str:
        plan = await self._plan.read(store)
        paths = [image.path for image in plan.images] if plan is not None else []
        return next((path for path in paths if not path.startswith(ENVIRONMENT)), "")

    async def _hot_set(self, store: Store, identity: Identity) -> HotSet | None:
        if self._task.job.record_only:
            return None
        try:
            async with self._task.stage("hotset.read") as report:
                hot_set = await read_hot_set(store, identity.digest)
                report.detail = "none yet"
                if hot_set is not None:
                    report.bytes = hot_set.hot_bytes
                    report.detail = f"{len(hot_set.ranges)} ranges of {len(hot_set.runs)} runs"
                    if not hot_set.ranges:
                        report.detail = self._without_hot_set = (
                            "starts read nearly all of the image, as unpacking does: "
                            "nothing is prefetched"
                        )
                        hot_set = None
        except Closed:
            raise
        except BootseerError:
            return None  # reported as a fallback
        return hot_set

    async def _read_ahead(
        self, image: OpenImage, identity: Identity, hot_set: HotSet, *, others_wait: bool = True
    ) -> str:
        holdout = self._holdout(hot_set, identity)
        hot, budget = await self._begin(hot_set, holdout)
        hot = subtract(hot, (piece.range for piece in holdout))
        pieces = prefetch_order(identity.leading, hot, budget, PIECE_BYTES)
        hot_bytes = total_bytes(coalesce([*identity.leading, *hot]))
        streams = self._task.config.image.streams
        prefetch = Prefetch(
            image.fd, image.size_bytes, streams, self._budget, others_wait=others_wait
        )
        self._prefetch = prefetch
        if self._yields:
            prefetch.yield_to_others()
        want_bytes = min(budget, hot_bytes)
        async with self._task.stage("image.prefetch") as report:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report, prefetch, want_bytes)
                await prefetch.run(pieces)
                nursery.cancel_scope.cancel()
            await self._send_progress(prefetch, want_bytes)
            report.bytes = prefetch.read_bytes
            report.detail = f"{format_size(prefetch.pinned_bytes)} pinned"
            if self._has_stopped:
                report.detail = (
                    f"stopped after {format_size(prefetch.read_bytes)} of "
                    f"{format_size(want_bytes)}: this start reads little of it"
                )
            elif prefetch.error:
                report.fall_back(f"some reads failed: {prefetch.error}")
            elif hot_bytes > budget:
                report.fall_back(
                    f"stopped after {format_size(prefetch.read_bytes)} of "
                    f"{format_size(hot_bytes)}: image.memory_share of the free memory"
                )
        return "the hot set is in memory"

    def _holdout(self, hot_set: HotSet, identity: Identity) -> list[HeldOutPiece]:
        """Choose pieces not to prefetch, to test whether the start reads them; on one node only."""
        if not self._task.job.is_first_node:
            return []
        ranges = [r.range for r in hot_set.ranges]
        return draw(subtract(ranges, identity.leading), Random(self._task.job.run))

    async def _report(self, prefetch: Prefetch, want_bytes: int) -> None:
        """Report the prefetch's progress to the agent, until cancelled.

        Jobs that start together all found the memory free, so free memory is checked repeatedly.
        """
        share = self._task.config.image.memory_share
        while True:
            if not may_pin(share):
                prefetch.stop_pinning()
            if prefetch.held_s >= _GIVE_UP_S:
                self._has_stopped = True
                prefetch.stop()
            try:
                await self._send_progress(prefetch, want_bytes)
            except Closed:
                return
            await trio.sleep(_PROGRESS_S)

    async def _send_progress(self, prefetch: Prefetch, want_bytes: int) -> None:
        await self._task.channel.send(PrefetchProgress(prefetch.read_bytes, want_bytes))

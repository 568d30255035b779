"""Bring a job's image into memory: identify it, hand it over, and read its hot set ahead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import trio

from bootseer.agent.messages.worker import (
    ImageFound,
    ImageReadable,
    ImageUnreadable,
    MountImage,
    PrefetchBegun,
    PrefetchProgress,
    Ready,
    ServedImageOpened,
)
from bootseer.agent.workers.base import Task, owner_of
from bootseer.agent.workers.plan_reader import PlanReader
from bootseer.core.ranges import ByteRange, coalesce, subtract, total_bytes
from bootseer.core.reference import ENVIRONMENT
from bootseer.env.mount.content import AHEAD
from bootseer.env.mount.hot_files import hot_content
from bootseer.env.snapshot.group_store import find_snapshot, shared_stores
from bootseer.env.snapshot.repository import read_index
from bootseer.errors import BootseerError, Closed
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
"""For a start to read what has been read ahead, once the agent has seen that it does not."""


class ImagePrefetch:
    """One job's image, or one environment's, on its way into memory.

    Attributes:
        readable: the agent's word on an image that is served.
        copied: set once no more of a served image comes to the node by itself.
    """

    def __init__(self, task: Task, plan: PlanReader, budget: RateLimit) -> None:
        """Take the task; nothing is done yet.

        Args:
            task: of the worker.
            plan: of the job.
            budget: how fast to read.
        """
        self.readable = Awaited[ImageReadable | ImageUnreadable]()
        self.copied = trio.Event()
        self._task = task
        self._plan = plan
        self._budget = budget
        self._prefetch: Prefetch | None = None
        self._yields = False
        self._has_stopped = False

    def hold(self, *, is_held: bool) -> None:
        """Stop reading ahead for now, or go on."""
        if self._prefetch is not None:
            self._prefetch.hold(is_held=is_held)

    def yield_to_job(self) -> None:
        """Let the job go first from now on."""
        self._yields = True
        if self._prefetch is not None:
            self._prefetch.yield_to_others()

    async def run(self, store: Store) -> str:
        """Find, identify, hand over and read ahead the image; returns what was done."""
        task, job = self._task, self._task.job
        if job.is_served:
            return await self._served_image(store)
        path = job.image or await self._image_of_last_run(store)
        if "://" in path:
            await task.channel.send(MountImage(path))
            return "the image of the last start is served"
        if not path:
            return "no image is known for this key: give --bootseer-image=PATH once"
        async with task.stage("image.identify") as said:
            opened = await task.opened(path)
            image, identity = opened.image, opened.identity
            said.start_ns = opened.start_ns
            said.bytes = total_bytes(identity.leading)
            said.detail = identity.digest[:18]
        found = ImageFound(path, identity.digest, list(identity.leading))
        await task.channel.send(found, [image.fd])
        hot_set = None if job.record_only else await self._hot_set(store, identity)
        if hot_set is None:
            # The agent has taken its first sample before it reads what follows.
            return "this start is recorded"
        return await self._read_ahead(image, identity, hot_set)

    async def _served_image(self, store: Store) -> str:
        """Read ahead an image that is served, through its mount."""
        served = await self.readable.wait()
        if isinstance(served, ImageUnreadable):
            return "the image is not served"
        identity = Identity(served.identity, tuple(served.leading))
        path, size_bytes = served.path, served.size_bytes
        hot_set = None if self._task.job.record_only else await self._hot_set(store, identity)
        if self._task.job.image.startswith(ENVIRONMENT):
            if hot_set is None:
                return "this start is recorded"
            return await self._read_files(path, partial(self._hot_content, store), hot_set, AHEAD)
        image = await trio.to_thread.run_sync(open_served, path, size_bytes)
        await self._task.channel.send(ServedImageOpened())
        if hot_set is None:
            await self._read_leading(image, identity)
            detail = "this start is recorded"
        elif served.tree:

            async def find(hot: list[ByteRange]) -> list[HotFile]:
                return await trio.to_thread.run_sync(hot_files, Path(path), hot)

            detail = await self._read_files(served.tree, find, hot_set)
        else:
            # What serves it has others go first.
            detail = await self._read_ahead(image, identity, hot_set, others_wait=False)
        if served.copies and self._task.job.wait_s:
            await self.copied.wait()
            detail += "; the image was copied to the node"
        return detail

    async def _begin(
        self, hot_set: HotSet, holdout: Sequence[HeldOutPiece] = ()
    ) -> tuple[list[ByteRange], int]:
        """Tell the agent what is read ahead; returns that, and how much memory it may take up."""
        hot = [r.range for r in hot_set.ranges]
        begun = PrefetchBegun(hot, list(holdout), hot_set.doubts)
        await self._task.channel.send(begun)
        if not self._task.job.wait_s:
            # Nobody asked the prolog to hold the job: its start and the prefetch overlap.
            await self._task.channel.send(Ready("the prefetch is under way"))
        return hot, pinnable_bytes(self._task.config.image.memory_share)

    async def _hot_content(self, store: Store, hot: Sequence[ByteRange]) -> list[HotFile]:
        """Find what is hot in the environment that this worker reads ahead."""
        task = self._task
        stores = [store, *shared_stores(task.config, owner_of(task.job))]
        key = task.job.image.removeprefix(ENVIRONMENT)
        index = await read_index(*await find_snapshot(stores, key))
        return await trio.to_thread.run_sync(hot_content, index, hot)

    async def _read_files(
        self,
        root: str,
        find: Callable[[list[ByteRange]], Awaitable[list[HotFile]]],
        hot_set: HotSet,
        flags: int = 0,
    ) -> str:
        """Read what is hot through a mount of the image's tree: it is decompressed then."""
        hot, budget = await self._begin(hot_set)
        async with self._task.stage("image.prefetch") as said:
            prefetch = FilesPrefetch(root, await find(hot), budget, self._budget, flags)
            await prefetch.run()
            said.bytes = prefetch.read_bytes
            said.detail = (
                f"{prefetch.files} files, decompressed, {format_size(prefetch.pinned_bytes)} pinned"
            )
            if prefetch.read_bytes > budget:
                said.fall_back(
                    f"stopped after {format_size(prefetch.read_bytes)}: "
                    "image.memory_share of the free memory"
                )
        return "the hot files are in memory"

    async def _read_leading(self, image: OpenImage, identity: Identity) -> None:
        """Read ahead what every start reads, of an image that is new."""
        prefetch = Prefetch(image.fd, image.size_bytes, self._task.config.image.streams)
        size_bytes = total_bytes(identity.leading)
        await prefetch.run(prefetch_order(identity.leading, (), size_bytes, PIECE_BYTES))

    async def _image_of_last_run(self, store: Store) -> str:
        plan = await self._plan.read(store)
        paths = [image.path for image in plan.images] if plan is not None else []
        return next((path for path in paths if not path.startswith(ENVIRONMENT)), "")

    async def _hot_set(self, store: Store, identity: Identity) -> HotSet | None:
        try:
            async with self._task.stage("hotset.read") as said:
                hot_set = await read_hot_set(store, identity.digest)
                said.detail = "none yet"
                if hot_set is not None:
                    said.bytes = hot_set.hot_bytes
                    said.detail = f"{len(hot_set.ranges)} ranges of {len(hot_set.runs)} runs"
                    if not hot_set.ranges:
                        said.detail = "starts read nearly all of it: nothing is prefetched"
                        hot_set = None
        except Closed:
            raise
        except BootseerError:
            return None  # told as a fallback
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
        async with self._task.stage("image.prefetch") as said:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report, prefetch, want_bytes)
                await prefetch.run(pieces)
                nursery.cancel_scope.cancel()
            await self._say_progress(prefetch, want_bytes)
            said.bytes = prefetch.read_bytes
            said.detail = f"{format_size(prefetch.pinned_bytes)} pinned"
            if self._has_stopped:
                said.detail = (
                    f"stopped after {format_size(prefetch.read_bytes)} of "
                    f"{format_size(want_bytes)}: this start reads little of it"
                )
            elif prefetch.error:
                said.fall_back(f"some reads failed: {prefetch.error}")
            elif hot_bytes > budget:
                said.fall_back(
                    f"stopped after {format_size(prefetch.read_bytes)} of "
                    f"{format_size(hot_bytes)}: image.memory_share of the free memory"
                )
        return "the hot set is in memory"

    def _holdout(self, hot_set: HotSet, identity: Identity) -> list[HeldOutPiece]:
        """Draw what is not read ahead, to see whether the start reads it: on one node of a job."""
        if not self._task.job.is_first_node:
            return []
        ranges = [r.range for r in hot_set.ranges]
        return draw(subtract(ranges, identity.leading), Random(self._task.job.run))

    async def _report(self, prefetch: Prefetch, want_bytes: int) -> None:
        """Tell the agent how far the prefetch is, until cancelled.

        Jobs that start together have all found the memory free: looking again holds them to it.
        """
        share = self._task.config.image.memory_share
        while True:
            if not may_pin(share):
                prefetch.stop_pinning()
            if prefetch.held_s >= _GIVE_UP_S:
                self._has_stopped = True
                prefetch.stop()
            try:
                await self._say_progress(prefetch, want_bytes)
            except Closed:
                return
            await trio.sleep(_PROGRESS_S)

    async def _say_progress(self, prefetch: Prefetch, want_bytes: int) -> None:
        await self._task.channel.send(PrefetchProgress(prefetch.read_bytes, want_bytes))

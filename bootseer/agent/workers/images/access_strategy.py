"""Choose how an image is read on this node: from the store, its file or a full copy."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress

import trio

from bootseer.agent.workers.base import Task
from bootseer.core.speed import UNKNOWN, Speed
from bootseer.core.warm_plan import PlannedImage, WarmPlan
from bootseer.errors import BootseerError, Closed, Corrupt
from bootseer.image.hot.repository import read_hot_set
from bootseer.image.identity import OpenImage, open_image
from bootseer.image.library import catalog
from bootseer.image.library.source import ImageSource
from bootseer.image.serve.image_blocks import ImageBlocks
from bootseer.image.serve.node_cache import NodeCache
from bootseer.image.serve.strategy import AccessFacts, AccessMode, choose
from bootseer.posix import read_fully
from bootseer.startup.plans import read_plan
from bootseer.store.api.base import Store
from bootseer.units import GIB

_GATHER_S = 1.0
"""Timeout for reading the plan and the image's source file; the job waits for the choice."""


class AccessSelector:
    """Gathers the facts about one image and chooses its access mode."""

    def __init__(
        self,
        task: Task,
        source: ImageSource,
        blocks: ImageBlocks,
        cache: NodeCache,
        own: Store,
        images: Store,
    ) -> None:
        """Gather nothing yet.

        Args:
            task: of the worker.
            source: the image in its store.
            blocks: of the image.
            cache: the node's.
            own: the user's store, as a start reads it.
            images: the image's store, likewise.
        """
        self._task = task
        self._own = own
        self._images = images
        self._source = source
        self._blocks = blocks
        self._cached = cache.cached
        self._plan: WarmPlan | None = None
        self._hot_bytes = 0
        self._file: OpenImage | None = None
        self._file_speed = UNKNOWN

    async def choose(self, patience_s: float, say_lost: Callable[[str], None]) -> AccessMode:
        """Choose a mode, report it to the agent, and set it in the image's source.

        Args:
            patience_s: timeout for reads of the file that the image was added from.
            say_lost: called with the reason if that file is no longer used.
        """
        if self._task.job.record_only:
            return AccessMode.SERVED
        with suppress(Closed):  # the agent has died: the job continues
            async with self._task.stage("image.choice") as report:
                if not self._is_here:
                    await self._gather()
                choice = choose(self._known(), self._allowed())
                report.detail = choice.why
        if self._file is not None and choice.way is AccessMode.FILE:
            self._source.use_file(self._file, patience_s, say_lost)
        elif self._file is not None:
            os.close(self._file.fd)
        return choice.way

    async def _gather(self) -> None:
        """Gather the facts, within a time limit."""
        with trio.move_on_after(_GATHER_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_plan)
                nursery.start_soon(self._read_hot_set)
                nursery.start_soon(self._read_first)
                if AccessMode.FILE.value in self._task.config.image.ways:
                    nursery.start_soon(self._find_source_file)

    @property
    def _is_here(self) -> bool:
        return self._cached is not None and self._cached.is_complete

    def _allowed(self) -> list[AccessMode]:
        config, size_bytes = self._task.config, self._blocks.manifest.size_bytes
        user_bytes = config.cache.user_share * config.cache.quota_gib * GIB
        fits = self._cached is not None and size_bytes <= user_bytes
        ways = [AccessMode(name) for name in config.image.ways]
        return [way for way in ways if fits or way is not AccessMode.COPY]

    def _known(self) -> AccessFacts:
        manifest, job = self._blocks.manifest, self._task.job
        images = self._plan.images if self._plan is not None else ()
        nothing = PlannedImage(job.image, manifest.identity, 0, 0)
        image = next(
            (i for i in images if (i.path, i.digest) == (job.image, manifest.identity)), nothing
        )
        # Prefer speeds of earlier runs, also with other images of this store.
        store = image.store
        for speed in (*(i.store for i in images), self._source.speed.speed(job.nodes)):
            store = store.or_else(speed)
        return AccessFacts(
            image_bytes=manifest.size_bytes,
            node_bytes=self._cached.present_bytes if self._cached is not None else 0,
            hot_bytes=self._hot_bytes,
            touched_bytes=image.touched_bytes,
            touched_reads=image.touched_reads,
            nodes=max(1, job.nodes),
            store=store,
            file=image.file.or_else(self._file_speed) if self._file is not None else None,
        )

    async def _read_plan(self) -> None:
        job = self._task.job
        with suppress(BootseerError):  # less is known
            self._plan = await read_plan(self._own, job.user, job.key)

    async def _read_hot_set(self) -> None:
        with suppress(BootseerError):  # the prefetch worker reports it
            hot_set = await read_hot_set(self._own, self._blocks.manifest.identity)
            self._hot_bytes = hot_set.hot_bytes if hot_set is not None else 0

    async def _read_first(self) -> None:
        """Read three blocks that every start reads, to measure the store.

        One read says little: on a busy node it may wait longer for a processor than for the store.
        """
        last = self._blocks.manifest.blocks - 1
        with suppress(BootseerError):  # the next reader gets the error
            for index in dict.fromkeys((0, last, max(0, last - 1))):
                await self._blocks.read(self._blocks.manifest.block_range(index).start, 1)

    async def _find_source_file(self) -> None:
        """Check whether this node has the file that the image was added from, and measure it.

        Every block read from it later is compared with the manifest. Here one random
        block is read, which is probably not in memory.
        """
        manifest = self._blocks.manifest
        try:
            about = await catalog.read_about(self._images, self._source.digest)
        except BootseerError:
            return
        if about is None or not about.source.startswith("/"):
            return
        index = random.randrange(manifest.blocks)
        block = manifest.block_range(index)

        def measure() -> tuple[OpenImage, int]:
            image = open_image(about.source)
            began = time.perf_counter()
            data = read_fully(image.fd, block.start, block.size_bytes)
            took_us = round((time.perf_counter() - began) * 1e6)
            if image.size_bytes != manifest.size_bytes or not manifest.matches(index, data):
                os.close(image.fd)
                raise Corrupt(f"{about.source} now holds another image")
            return image, took_us

        try:
            self._file, latency_us = await trio.to_thread.run_sync(measure, abandon_on_cancel=True)
        except (BootseerError, OSError):
            return  # the store remains
        self._file_speed = Speed(latency_us=latency_us)

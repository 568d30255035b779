"""Which way an image comes to the node: found out while it is opened, chosen, and told."""

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
from bootseer.units import GIB

_LOOK_S = 1.0
"""For the plan, and for the file that the image was added from: the job waits for the choice."""


class AccessSelector:
    """Finds out what there is to know of one image, and chooses."""

    def __init__(
        self, task: Task, source: ImageSource, blocks: ImageBlocks, cache: NodeCache
    ) -> None:
        """Take what it is about; nothing is read yet."""
        self._task = task
        self._source = source
        self._blocks = blocks
        self._cached = cache.cached
        self._plan: WarmPlan | None = None
        self._hot_bytes = 0
        self._file: OpenImage | None = None
        self._file_speed = UNKNOWN

    async def choose(self, patience_s: float, say_lost: Callable[[str], None]) -> AccessMode:
        """Choose, tell the agent why, and have the source read what was chosen.

        Args:
            patience_s: how long to wait for a read of the file that the image was added from.
            say_lost: told why, should that not be read any more.
        """
        if self._task.job.record_only:
            return AccessMode.SERVED
        with suppress(Closed):  # the agent has died: the job goes on
            async with self._task.stage("image.choice") as said:
                if not self._is_here:
                    await self._gather_facts()
                choice = choose(self._known(), self._allowed())
                said.detail = choice.why
        if self._file is not None and choice.way is AccessMode.FILE:
            self._source.use_file(self._file, patience_s, say_lost)
        elif self._file is not None:
            os.close(self._file.fd)
        return choice.way

    async def _gather_facts(self) -> None:
        """Find out what can be in a while."""
        with trio.move_on_after(_LOOK_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_plan)
                nursery.start_soon(self._read_hot_set)
                nursery.start_soon(self._read_first)
                if AccessMode.FILE.value in self._task.config.image.ways:
                    nursery.start_soon(self._look_for_file)

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
        # Of many reads before the one now, and of another image that came from there.
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
        with suppress(BootseerError):  # the less is known
            self._plan = await read_plan(self._task.store(), job.user, job.key)

    async def _read_hot_set(self) -> None:
        with suppress(BootseerError):  # who reads ahead tells
            hot_set = await read_hot_set(self._task.store(), self._blocks.manifest.identity)
            self._hot_bytes = hot_set.hot_bytes if hot_set is not None else 0

    async def _read_first(self) -> None:
        """Read what every start reads first, to see how long that takes."""
        with suppress(BootseerError):  # who needs it is told
            await self._blocks.read(0, 1)

    async def _look_for_file(self) -> None:
        """See whether this node has the file that the image was added from, and how fast that is.

        Of what is read from it later, every block is compared with the manifest. Here one is, that
        nobody has read lately.
        """
        manifest = self._blocks.manifest
        try:
            about = await catalog.read_about(self._source.store, self._source.digest)
        except BootseerError:
            return
        if about is None or not about.source.startswith("/"):
            return
        index = random.randrange(manifest.blocks)
        block = manifest.block_range(index)

        def look() -> tuple[OpenImage, int]:
            image = open_image(about.source)
            began = time.perf_counter()
            data = read_fully(image.fd, block.start, block.size_bytes)
            took_us = round((time.perf_counter() - began) * 1e6)
            if image.size_bytes != manifest.size_bytes or not manifest.matches(index, data):
                os.close(image.fd)
                raise Corrupt(f"{about.source} now holds another image")
            return image, took_us

        try:
            self._file, latency_us = await trio.to_thread.run_sync(look, abandon_on_cancel=True)
        except (BootseerError, OSError):
            return  # there is the store
        self._file_speed = Speed(latency_us=latency_us)

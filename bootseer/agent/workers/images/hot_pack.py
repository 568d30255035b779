"""The hot pack of a served image: read during a start, written after one.

The image's server writes it after the start, when the store is idle and the blocks are on this
node. An epilog cannot: it has a deadline, and the node's next job waits for it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from bootseer.agent.workers.base import Task
from bootseer.core.ranges import runs
from bootseer.errors import BootseerError, Closed, Corrupt, NotFound, Unavailable, UnknownVersion
from bootseer.image.hot import pack_store
from bootseer.image.hot.pack import HotPack, has_settled, is_outdated, is_worth_it, plan_pack
from bootseer.image.hot.pack_store import PackSource
from bootseer.image.hot.repository import read_hot_set
from bootseer.image.serve.backfill import until_idle
from bootseer.image.serve.image_blocks import ImageBlocks
from bootseer.store.api.base import Store
from bootseer.units import format_size

_INDEX_S = 2.0
"""Timeout for the index; only the prefetch waits for it."""
_QUIET_S = 2.0
"""Delay after the start, in which many short jobs end."""
_SPREAD = 10.0
"""Random delay, as a multiple of the time to write a pack: tasks of a job array end their starts
together, and one of them is enough."""
MOST_COPIES = 10
"""Hadoop's default replication of files that all nodes of a job read at its start
(mapreduce.client.submit.file.replication)."""
_NODES_PER_COPY = 8
_USUAL_COPIES = 3
"""HDFS's default replication."""


@dataclass(eq=False)
class JobPack:
    """The use and writing of an image's hot pack by one job.

    Attributes:
        task: the worker's task.
        store: the store with packs.
        blocks: the image's blocks.
        image: the image's digest.
        parts: the store, through other nodes of the job.
        starts: the store, as a start reads it.
        nursery: for reports in the background.
    """

    task: Task
    store: Store
    blocks: ImageBlocks
    image: str
    parts: Store
    starts: Store
    nursery: trio.Nursery
    _source: PackSource | None = None
    _began_ns: int = 0
    _is_lost: bool = False
    _is_damaged: bool = False

    async def use(self) -> None:
        """Use the pack for the prefetch, if there is one."""
        self._began_ns = time.time_ns()
        manifest = self.blocks.manifest
        try:
            with trio.fail_after(_INDEX_S):
                node = self.task.job.node_index if self.parts is not self.store else None
                self._source = await pack_store.open_pack(
                    self.starts, manifest, self.image, self.parts, node
                )
        except trio.TooSlowError:
            late = f"{self.store.url} has not given its index within {_INDEX_S:g} s"
            await self._give_up(Unavailable(late))
        except BootseerError as error:
            await self._give_up(error)
        if self._source is not None:
            self.blocks.use_pack(self._source, self._lose)

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()

    async def report(self) -> None:
        """Report what was read from the pack."""
        if self._source is None or self._is_lost:
            return
        async with self.task.stage("image.pack") as report:
            report.start_ns = self._began_ns
            report.bytes = self.blocks.stats.packed_bytes
            report.detail = (
                f"{self.blocks.stats.packed_reads} reads of a pack of "
                f"{format_size(self._source.pack.size_bytes)}"
            )

    async def write(self, touched: Sequence[tuple[int, int]], bytes_per_s: float) -> None:
        """Write a pack, if the hot set has settled and no pack is as good.

        Args:
            touched: ranges that this start has read.
            bytes_per_s: speed limit; 0 writes nothing.
        """
        if not self.task.job.is_first_node or not bytes_per_s:
            return  # one node of a job is enough
        await trio.sleep(_QUIET_S)
        with suppress(BootseerError):  # the next start tries again; reported as a fallback
            wanted = await self._wanted(touched)
            if wanted is not None:
                writing_s = wanted.size_bytes / bytes_per_s
                await trio.sleep(random.uniform(0, _SPREAD * writing_s))
                wanted = await self._wanted(touched)  # another job may have written it
            if wanted is None:
                return
            async with self.task.stage("image.pack.write") as report:
                report.detail = "not finished before the job's end: the next start continues"
                report.bytes = await pack_store.write_pack(
                    self.store,
                    wanted,
                    partial(self._read, bytes_per_s),
                    replace=self._is_damaged,
                    copies=copies_for(self.task.config.image.pack_copies, self.task.job.nodes),
                )
                report.detail = f"a pack of {format_size(wanted.size_bytes)}"

    async def _read(self, bytes_per_s: float, blocks: Sequence[int]) -> bytes:
        """Read some blocks from this node, checked, while nobody waits for the store."""
        await until_idle(self.blocks)
        began = trio.current_time()
        manifest = self.blocks.manifest
        data = bytearray()
        for run in runs(blocks):
            start = manifest.block_range(run.start).start
            stop = manifest.block_range(run[-1]).stop
            data += await self.blocks.read(start, stop - start, is_urgent=False)
        bad = await trio.to_thread.run_sync(manifest.bad_block, blocks, memoryview(data))
        if bad is not None:
            raise Corrupt(f"block {bad} of the image is damaged where it was read for a hot pack")
        await trio.sleep_until(began + len(data) / bytes_per_s)
        return bytes(data)

    async def _wanted(self, touched: Sequence[tuple[int, int]]) -> HotPack | None:
        """Return the pack that is to be written, None if none is."""
        manifest, store = self.blocks.manifest, self.store
        hot_set = await read_hot_set(store, manifest.identity)
        if hot_set is None or not hot_set.ranges or not has_settled(manifest, hot_set, touched):
            return None
        wanted = plan_pack(manifest, self.image, hot_set)
        if not is_worth_it(manifest, wanted):
            return None
        await pack_store.sweep(store, manifest.identity)
        try:
            current = await pack_store.read_index(store, manifest.identity)
        except UnknownVersion:
            return None  # the job that wrote it uses it
        except Corrupt:
            return wanted
        if current is None or self._is_damaged or is_outdated(current.pack, wanted):
            return wanted
        return None

    def _lose(self, error: BootseerError) -> None:
        self.nursery.start_soon(self._give_up, error)

    async def _give_up(self, error: BootseerError) -> None:
        """Report that the pack is not used and its blocks are read from the image."""
        self._is_lost = True
        self._is_damaged = isinstance(error, Corrupt | NotFound)
        with suppress(Closed):
            async with self.task.stage("image.pack") as report:
                report.fall_back(f"the hot pack is not used: {error}")


def copies_for(setting: int, nodes: int) -> int:
    """Return the replication of a pack; 0 for the store's default.

    Args:
        setting: `image.pack_copies`.
        nodes: number of the job's nodes, all of which will read it at the same time.
    """
    copies = setting or min(MOST_COPIES, nodes // _NODES_PER_COPY)
    return copies if setting or copies > _USUAL_COPIES else 0

"""Fetch blocks of an image from the store, each once, and keep them in the node's cache."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import trio

from bootseer.cache.keeper_link import MAX_BYTES
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.ranges import runs
from bootseer.errors import BootseerError, Corrupt
from bootseer.fetch_scheduler import Fetch, FetchScheduler
from bootseer.image.library.source import ImageSource
from bootseer.image.serve.node_cache import NodeCache
from bootseer.image.serve.pack_reader import PackReader
from bootseer.units import MIB

_AHEAD = 16
"""Fetches at once that read ahead."""
_AHEAD_BYTES = 32 * MIB
"""No more of them start while they read so much; a fetch is 4 MiB at most."""
_AHEAD_BESIDE_URGENT = 4
"""The same while a reader waits for another fetch."""
_KEEPING_BYTES = 32 * MIB
"""Limit of what waits to be written to the node's cache; above it, blocks that a reader waited for
are not kept. A disk slower than the store neither holds readers up nor fills the memory."""
_SETTLE_POLL_S = 0.01


class _Read(Protocol):
    """Reads certain blocks, one behind the other; None if they cannot be read this way."""

    async def __call__(self, *, checks: bool) -> memoryview | None: ...


@dataclass(slots=True)
class FetchStats:
    """What was read from the store.

    Attributes:
        fetches: the number of reads.
        fetched_bytes: by all of them.
        filled_bytes: of these, fetched to fill the cache.
        packed_reads: the number of reads of the hot pack, which `fetches` includes.
        packed_bytes: by these.
    """

    fetches: int = 0
    fetched_bytes: int = 0
    filled_bytes: int = 0
    packed_reads: int = 0
    packed_bytes: int = 0


class FetchedBlock(NamedTuple):
    """A block, with what was read from the store together with it.

    Attributes:
        data: all of that.
        at: where the block begins in it.
    """

    data: memoryview
    at: int


FoundBlocks: TypeAlias = dict[int, FetchedBlock]
JoinedRead: TypeAlias = Callable[[FoundBlocks | BootseerError | None], None]
"""Takes the blocks of a read that joined a fetch; None if the fetch did not bring them."""


@dataclass(eq=False, slots=True)
class BlockFetch(Fetch):
    """Blocks that are fetched together.

    Attributes:
        blocks: consecutive ones of the image, or blocks of its hot pack.
        pack: read for these blocks first; None to read the image.
        found: the blocks that were read from the store so far.
        errors: why others could not be read.
        deadline: when readers stop waiting, on trio's clock. It is the same for all of them: the
            kernel asks again for what could not be read ahead.
        tasks: that wait for it.
        joined: reads that are answered as soon as their blocks are found, without a task each.
    """

    blocks: Sequence[int]
    pack: PackReader | None = None
    found: FoundBlocks = field(default_factory=dict)
    errors: dict[int, BootseerError] = field(default_factory=dict)
    deadline: float = math.inf
    tasks: int = 0
    joined: list[tuple[range, JoinedRead]] = field(default_factory=list)

    @property
    def is_awaited(self) -> bool:
        """Return whether a reader waits for it."""
        return self.deadline < math.inf


class BlockFetcher:
    """Fetches blocks, each once for all readers.

    Other servers of this node fetch the same image for other jobs. Each block is fetched by the one
    that has claimed it in the node's cache; the others wait for it there, for a while.

    Concurrency: the tasks of one trio run.

    Attributes:
        stats: what was read so far.
        blocks_per_fetch: limit.
    """

    def __init__(
        self,
        manifest: ImageManifest,
        source: ImageSource,
        cache: NodeCache,
        nursery: trio.Nursery,
        deadline_s: float,
    ) -> None:
        """Start nothing yet.

        Args:
            manifest: of the image.
            source: the image in the store.
            cache: what the node has of the image.
            nursery: runs the fetches, which go on when the readers that wait are cancelled.
            deadline_s: the longest that readers wait for a fetch, in seconds.
        """
        self.stats = FetchStats()
        self._manifest = manifest
        self._source = source
        self._cache = cache
        self._deadline_s = deadline_s
        self._under_way: dict[int, BlockFetch] = {}
        self._waiting: OrderedDict[BlockFetch, None] = OrderedDict()
        self._scheduler = FetchScheduler(
            nursery, self._run, self._next_ahead, _AHEAD, _AHEAD_BESIDE_URGENT
        )
        self._ahead_blocks = 0
        self._keeping_bytes = 0
        self.blocks_per_fetch = MAX_BYTES // manifest.block_bytes
        self._most_ahead_blocks = _AHEAD_BYTES // manifest.block_bytes
        self._blocks_per_part = manifest.part_bytes // manifest.block_bytes

    async def fetch(self, wanted: list[int], *, is_urgent: bool) -> FoundBlocks:
        """Fetch blocks, or join the fetches that bring them.

        Args:
            wanted: sorted indexes of blocks.
            is_urgent: a reader waits for them.

        Returns:
            The blocks that were fetched; another server of this node has brought the rest into the
            cache.

        Raises:
            BootseerError: the store does not give one of them.
            trio.TooSlowError: the store does not answer in time.

        Cancellation: the fetches go on.
        """
        for run in runs(wanted, lambda i: (self._under_way.get(i), i // self.blocks_per_fetch)):
            fetch = self._under_way.get(run.start) or self._enqueue(BlockFetch(run))
            if is_urgent:
                fetch.deadline = min(fetch.deadline, trio.current_time() + self._deadline_s)
                self._waiting.pop(fetch, None)
                self._scheduler.promote(fetch)
            elif fetch in self._waiting:
                # The pages of a prefetch's read are locked, and a reader may wait for one of them.
                self._waiting.move_to_end(fetch, last=False)
        self._scheduler.start_ahead()
        found: FoundBlocks = {}
        for fetch in dict.fromkeys(self._under_way[i] for i in wanted):
            if not fetch.ended.is_set():
                fetch.tasks += 1
                try:
                    with trio.fail_at(fetch.deadline if is_urgent else math.inf):
                        await fetch.ended.wait()
                finally:
                    fetch.tasks -= 1
                    if not fetch.ended.is_set():
                        self._answer_joined(fetch, is_over=True)
            for index in wanted:
                if index in fetch.errors:
                    raise fetch.errors[index].again()
            found |= fetch.found
        return found

    def joinable(self, blocks: range, *, is_urgent: bool) -> BlockFetch | None:
        """Return the fetch that brings all of these blocks, if it can be joined without a task.

        Until it has ended, a task must wait for it, whose deadline is that of those who join.
        """
        fetch = self._under_way.get(blocks.start) if blocks else None
        if fetch is None or any(self._under_way.get(i) is not fetch for i in blocks):
            return None
        if fetch.ended.is_set():
            return fetch
        is_in_time = fetch.is_awaited and trio.current_time() < fetch.deadline
        return fetch if fetch.tasks and (is_in_time or not is_urgent) else None

    def join(self, fetch: BlockFetch, blocks: range, read: JoinedRead, *, is_urgent: bool) -> None:
        """Have a read answered with what a fetch brings.

        Args:
            fetch: that is `joinable`.
            blocks: of the read.
            read: called once.
            is_urgent: a reader waits for it.
        """
        if is_urgent:
            self._waiting.pop(fetch, None)
            self._scheduler.promote(fetch)
        self._scheduler.start_ahead()
        fetch.joined.append((blocks, read))
        self._answer_joined(fetch, is_over=fetch.ended.is_set())

    def _answer_joined(self, fetch: BlockFetch, *, is_over: bool = False) -> None:
        """Answer reads that have joined: those whose blocks are found, in the end all."""
        joined, fetch.joined = fetch.joined, []
        for blocks, read in joined:
            error = next((fetch.errors[i] for i in blocks if i in fetch.errors), None)
            if error is not None:
                read(error.again())
            elif all(i in fetch.found for i in blocks):
                read(fetch.found)
            elif is_over:
                read(None)
            else:
                fetch.joined.append((blocks, read))

    def start_ahead(self) -> None:
        """Start fetching what is queued, as far as streams are free."""
        self._scheduler.start_ahead()

    def enqueue_ahead(self, wanted: Sequence[int]) -> None:
        """Queue blocks that are read ahead, unless the cache could not hold them until then."""
        if wanted and self._cache.grows:
            missing = self._cache.missing(wanted)
            for run in self.runs(i for i in missing if i not in self._under_way):
                self._enqueue(BlockFetch(run))

    def enqueue_packed(self, pack: PackReader, wanted: Sequence[int]) -> None:
        """Queue blocks of a pack that are read ahead along with the wanted ones.

        Does nothing while the cache does not grow: it could not hold them until they are read.
        """
        if self._cache.grows:
            missing = self._cache.missing(pack.select(wanted))
            for run in pack.runs(i for i in missing if i not in self._under_way):
                self._enqueue(BlockFetch(run, pack))

    async def read(self, run: range) -> FoundBlocks:
        """Read consecutive blocks of the image from the store, past the cache.

        Raises:
            BootseerError: the store does not give them.
        """
        return self._locate(run, await self._read(run))

    def runs(self, blocks: Iterable[int]) -> Iterator[range]:
        """Cut sorted blocks into runs; `read` takes one."""
        return runs(blocks, lambda i: (i // self.blocks_per_fetch, i // self._blocks_per_part))

    async def settle(self) -> None:
        """Wait until all fetches have ended and their blocks are in the node's cache."""
        while self._under_way:
            await trio.sleep(_SETTLE_POLL_S)

    def _enqueue(self, fetch: BlockFetch) -> BlockFetch:
        self._under_way |= dict.fromkeys(fetch.blocks, fetch)
        self._waiting[fetch] = None
        return fetch

    def _next_ahead(self) -> BlockFetch | None:
        if not self._waiting or self._ahead_blocks >= self._most_ahead_blocks:
            return None
        fetch, _ = self._waiting.popitem(last=False)
        self._ahead_blocks += len(fetch.blocks)
        return fetch

    async def _run(self, fetch: BlockFetch) -> None:
        """Fetch the blocks that no other server of this node fetches, and wait for the others."""
        try:
            began = trio.current_time()
            left = list(fetch.blocks)
            while left:
                granted, busy = await self._cache.claim(left)
                await self._fetch(fetch, granted)
                if busy and not await self._cache.wait(began):
                    await self._fetch(fetch, busy)
                    return
                left = busy
        finally:
            fetch.ended.set()
            if not fetch.is_urgent:
                self._ahead_blocks -= len(fetch.blocks)
            for index in fetch.blocks:
                del self._under_way[index]
            self._answer_joined(fetch, is_over=True)

    async def _fetch(self, fetch: BlockFetch, blocks: list[int]) -> None:
        if fetch.pack is not None:
            blocks = await self._fetch_packed(fetch, fetch.pack, blocks)
        left = deque(self.runs(blocks))
        while left:
            run = left.popleft()
            try:
                await self._bring(fetch, run, partial(self._read, run))
            except Corrupt as error:
                if len(run) > 1:  # the others may be good
                    left.extendleft(range(i, i + 1) for i in reversed(run))
                else:
                    await self._fail(fetch, run, error)
            except BootseerError as error:
                await self._fail(fetch, run, error)

    async def _fetch_packed(
        self, fetch: BlockFetch, pack: PackReader, blocks: list[int]
    ) -> list[int]:
        """Read blocks from the pack and keep them; returns those that it does not give."""
        left: list[int] = []
        for run in pack.runs(blocks):
            if not await self._bring(fetch, run, partial(self._read_packed, pack, run)):
                left += run
        return sorted(left)

    async def _bring(self, fetch: BlockFetch, blocks: Sequence[int], read: _Read) -> bool:
        """Read blocks, give them to the readers, and keep them.

        Args:
            fetch: that they belong to.
            blocks: to be read.
            read: reads them, one behind the other; None if they cannot be read this way.

        Returns:
            Whether they were read.

        Raises:
            BootseerError: they cannot be read.
        """
        # What no reader waits for is compared with the manifest by the keeper alone.
        has_room = self._keeping_bytes < _KEEPING_BYTES
        is_checked = fetch.is_awaited or not (has_room and self._cache.grows)
        data = await read(checks=is_checked)
        if not is_checked and data is not None:
            if not fetch.is_awaited and await self._keep(blocks, data, is_checked=False):
                self._give(fetch, blocks, data)
                return True
            if not await self._is_good(blocks, data):
                data = await read(checks=True)
        if data is None:
            return False
        self._give(fetch, blocks, data)
        if fetch.is_urgent and self._keeping_bytes >= _KEEPING_BYTES:
            await self._cache.release(blocks)
        else:
            await self._keep(blocks, data, is_checked=True)
        return True

    def _give(self, fetch: BlockFetch, blocks: Sequence[int], data: memoryview) -> None:
        """Give blocks to the readers, which need not wait for the disk; see `_keep`."""
        fetch.found |= self._locate(blocks, data)
        if len(fetch.found) == len(fetch.blocks):
            fetch.ended.set()
        self._answer_joined(fetch)

    async def _keep(self, blocks: Sequence[int], data: memoryview, *, is_checked: bool) -> bool:
        """Keep blocks; returns whether they are kept.

        Args:
            blocks: one behind the other in ``data``.
            data: all of their bytes.
            is_checked: they were compared with the manifest.
        """
        self._keeping_bytes += len(data)
        try:
            return await self._cache.keep(blocks, data, is_checked=is_checked)
        finally:
            self._keeping_bytes -= len(data)

    async def _is_good(self, blocks: Sequence[int], data: memoryview) -> bool:
        bad = await trio.to_thread.run_sync(self._manifest.bad_block, blocks, data)
        return bad is None

    async def _fail(self, fetch: BlockFetch, run: range, error: BootseerError) -> None:
        """Tell the readers why blocks do not come, and let other servers fetch them."""
        fetch.errors |= dict.fromkeys(run, error)
        await self._cache.release(run)

    async def _read(self, run: range, *, checks: bool = True) -> memoryview:
        data = await self._source.read(self._manifest, run, checks=checks)
        self._count(data)
        return data

    async def _read_packed(
        self, pack: PackReader, run: Sequence[int], *, checks: bool
    ) -> memoryview | None:
        data = await pack.read(run, checks=checks)
        if data is not None:
            self._count(data)
            self.stats.packed_reads += 1
            self.stats.packed_bytes += len(data)
        return data

    def _locate(self, blocks: Sequence[int], data: memoryview) -> FoundBlocks:
        """Find blocks in ``data``, where they are one behind the other."""
        block_bytes = self._manifest.block_bytes  # only the image's last block is shorter
        return {i: FetchedBlock(data, n * block_bytes) for n, i in enumerate(blocks)}

    def _count(self, data: memoryview) -> None:
        self.stats.fetches += 1
        self.stats.fetched_bytes += len(data)

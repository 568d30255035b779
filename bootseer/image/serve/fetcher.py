"""The bytes of an image: from the node's cache what is there, from the store what is not."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import trio

from bootseer.cache.link import MAX_BYTES
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.ranges import runs
from bootseer.errors import BootseerError, Corrupt, Unavailable
from bootseer.image.hot.pack_store import PackSource
from bootseer.image.library.source import ImageSource
from bootseer.image.serve.node_cache import NodeCache
from bootseer.units import MIB

_AT_ONCE = 16
"""Fetches at once that nobody is waiting for; a fetch is 1 MiB at most."""
_BESIDE_URGENT = 4
"""Of these, while somebody waits for others."""
_KEEPING_BYTES = 32 * MIB
"""What may wait to be kept; of more, nothing is kept that somebody waited for. A disk slower than
the store neither holds readers up nor fills the memory."""
_SETTLE_POLL_S = 0.01
_ROUNDS = 3
"""Attempts to read from the cache what it ought to have, before the store is read past it."""


@dataclass(eq=False, slots=True)
class _Fetch:
    """Blocks on their way, or waiting for their turn.

    Attributes:
        blocks: consecutive ones, of the image or of its hot pack.
        is_packed: they are to be read from the pack, as long as there is one.
        found: what has been read of them from the store.
        errors: why others could not be.
        ended: set when there is no more to come.
        turn: set when it may begin.
        due: when those who wait for it give up, on trio's clock. Of all of them together: the
            kernel asks again for what could not be read ahead.
    """

    blocks: Sequence[int]
    is_urgent: bool
    is_packed: bool = False
    found: dict[int, memoryview] = field(default_factory=dict)
    errors: dict[int, BootseerError] = field(default_factory=dict)
    ended: trio.Event = field(default_factory=trio.Event)
    turn: trio.Event = field(default_factory=trio.Event)
    due: float = math.inf


class ImageBlocks:
    """An image, readable as a whole.

    A block is fetched once, however many wait for it: on this node too, as far as the others can be
    relied on. What somebody waits for goes first.

    Concurrency: the tasks of one trio run.

    Attributes:
        manifest: what it holds.
        fetched_bytes: read from the store.
        fetches: reads of the store.
        filled_bytes: of what was fetched, by `bring`.
        packed_bytes: of what was fetched, from the hot pack.
        packed_reads: of the fetches, those.
        urgent_at: when somebody last waited for the store, on trio's clock.
    """

    def __init__(
        self,
        manifest: ImageManifest,
        source: ImageSource,
        cache: NodeCache,
        nursery: trio.Nursery,
        deadline_s: float = 60.0,
    ) -> None:
        """Take over what it is made of.

        Args:
            manifest: what the image holds.
            source: where it comes from.
            cache: what the node has of it.
            nursery: for fetches, which go on when whoever waits is cancelled.
            deadline_s: longest that readers wait for the store.
        """
        self.manifest = manifest
        self.fetched_bytes = 0
        self.fetches = 0
        self.filled_bytes = 0
        self.packed_bytes = 0
        self.packed_reads = 0
        self.urgent_at = trio.current_time()
        self._source = source
        self._cache = cache
        self._nursery = nursery
        self._deadline_s = deadline_s
        self._under_way: dict[int, _Fetch] = {}
        self._waiting: deque[_Fetch] = deque()
        self._running = {True: 0, False: 0}  # urgent, and not
        self._keeping_bytes = 0
        self._per_fetch = MAX_BYTES // manifest.block_bytes
        self._pack: PackSource | None = None
        self._say_lost: Callable[[BootseerError], None] = lambda error: None

    def use_pack(self, pack: PackSource, say_lost: Callable[[BootseerError], None]) -> None:
        """Let those who read ahead have from now on what a hot pack has.

        Args:
            pack: of the image; stays the caller's.
            say_lost: told why, should it be given up: what it has comes from the image then.
        """
        self._pack = pack
        self._say_lost = say_lost

    async def read(self, offset: int, size_bytes: int, *, is_urgent: bool = True) -> memoryview:
        """Return bytes of the image; fewer at its end.

        Args:
            offset, size_bytes: of what is wanted.
            is_urgent: somebody waits for it, not only a prefetch.

        Raises:
            Corrupt: the store has something else.
            BootseerError: the store does not give it, or not in time.

        Cancellation: what is being fetched arrives all the same.
        """
        size_bytes = max(0, min(size_bytes, self.manifest.size_bytes - offset))
        if not size_bytes:
            return memoryview(b"")
        try:
            with trio.fail_after(self._deadline_s):
                return await self._read(offset, size_bytes, is_urgent)
        except trio.TooSlowError as error:
            raise Unavailable(
                f"image {self._source.digest[:12]}: no answer from {self._source.store.url} for "
                f"{size_bytes} bytes at {offset} within {self._deadline_s:g} s"
            ) from error

    async def settle(self) -> None:
        """Wait until nothing is under way any more, to the node's cache either."""
        while self._under_way:
            await trio.sleep(_SETTLE_POLL_S)

    async def bring(self, wanted: list[int]) -> int:
        """Have blocks brought that nobody waits for; returns how many bytes came from the store.

        Raises:
            BootseerError: the store does not give them.
        """
        found = await self._fetch(wanted, is_urgent=False)
        size_bytes = sum(map(len, found.values()))
        self.filled_bytes += size_bytes
        return size_bytes

    async def _read(self, offset: int, size_bytes: int, is_urgent: bool) -> memoryview:
        blocks = self.manifest.covering(offset, size_bytes)
        found: dict[int, memoryview] = {}
        for _ in range(_ROUNDS):
            wanted = self._cache.missing(i for i in blocks if i not in found)
            if wanted:
                if is_urgent:
                    self.urgent_at = trio.current_time()
                else:
                    self._draw(wanted)
                found |= await self._fetch(wanted, is_urgent)
            data = await self._assemble(offset, size_bytes, found)
            if data is not None:
                return data
        for run in self._runs(i for i in blocks if i not in found):
            found |= self.manifest.cut(run, await self._read_source(run))
        data = await self._assemble(offset, size_bytes, found)
        assert data is not None  # nothing of it is the cache's
        return data

    async def _assemble(
        self, offset: int, size_bytes: int, found: dict[int, memoryview]
    ) -> memoryview | None:
        """Put together what was fetched and what is in the cache.

        Returns:
            None if something is neither; the cache knows now of all that it has lost.
        """
        if not found:
            return await self._cache.read(offset, size_bytes)
        stop = offset + size_bytes
        whole = memoryview(bytearray(size_bytes))
        is_whole = True
        for run in runs(self.manifest.covering(offset, size_bytes), found.__contains__):
            for index in run if run.start in found else run[:1]:
                block = self.manifest.block_range(index)
                start = max(offset, block.start)
                if index in found:
                    end = min(stop, block.stop)
                    data = found[index][start - block.start : end - block.start]
                else:
                    end = min(stop, self.manifest.block_range(run[-1]).stop)
                    cached = await self._cache.read(start, end - start)
                    if cached is None:
                        is_whole = False
                        continue
                    data = cached
                whole[start - offset : end - offset] = data
        return whole if is_whole else None

    async def _fetch(self, wanted: list[int], is_urgent: bool) -> dict[int, memoryview]:
        """Fetch blocks, or wait for those who do; what is in the cache by then is left out.

        Raises:
            BootseerError: the store does not give them.
            trio.TooSlowError: it does not in time.
        """
        for run in runs(wanted, lambda i: (self._under_way.get(i), i // self._per_fetch)):
            fetch = self._under_way.get(run.start)
            if fetch is None:
                fetch = self._start(_Fetch(run, is_urgent))
            if is_urgent:
                self._hurry(fetch)
        self._admit()
        found: dict[int, memoryview] = {}
        for fetch in dict.fromkeys(self._under_way[i] for i in wanted):
            if not fetch.ended.is_set():
                with trio.fail_at(fetch.due if is_urgent else math.inf):
                    await fetch.ended.wait()
            for index in wanted:
                if index in fetch.errors:
                    raise fetch.errors[index].again()
            found |= fetch.found
        return found

    def _draw(self, wanted: list[int]) -> None:
        """Have brought from the pack what belongs to these blocks, if it can be kept until then."""
        if self._pack is None or not self._cache.grows:
            return
        missing = self._cache.missing(self._pack.draw(wanted))
        for run in self._pack.runs(i for i in missing if i not in self._under_way):
            self._start(_Fetch(run, is_urgent=False, is_packed=True))

    def _start(self, fetch: _Fetch) -> _Fetch:
        """Let a fetch wait for its turn."""
        self._under_way |= dict.fromkeys(fetch.blocks, fetch)
        self._waiting.append(fetch)
        self._nursery.start_soon(self._carry_out, fetch)
        return fetch

    def _hurry(self, fetch: _Fetch) -> None:
        """Let a fetch begin at once."""
        fetch.due = min(fetch.due, trio.current_time() + self._deadline_s)
        if not fetch.turn.is_set():
            fetch.is_urgent = True
            self._waiting.remove(fetch)
            self._begin(fetch)

    def _admit(self) -> None:
        """Let those begin for whom there is room."""
        limit = _BESIDE_URGENT if self._running[True] else _AT_ONCE
        while self._waiting and self._running[False] < limit:
            self._begin(self._waiting.popleft())

    def _begin(self, fetch: _Fetch) -> None:
        self._running[fetch.is_urgent] += 1
        fetch.turn.set()

    async def _carry_out(self, fetch: _Fetch) -> None:
        await fetch.turn.wait()
        try:
            await self._obtain(fetch)
        finally:
            fetch.ended.set()
            for index in fetch.blocks:
                del self._under_way[index]
            self._running[fetch.is_urgent] -= 1
            self._admit()

    async def _obtain(self, fetch: _Fetch) -> None:
        """Bring the blocks, but for those that somebody else of this node brings."""
        began = trio.current_time()
        left = list(fetch.blocks)
        while left:
            granted, busy = await self._cache.claim(left)
            await self._bring(fetch, granted)
            if busy and not await self._cache.wait(began):
                await self._bring(fetch, busy)
                return
            left = busy

    async def _bring(self, fetch: _Fetch, wanted: list[int]) -> None:
        """Read blocks from the store, and bring them into the cache."""
        if fetch.is_packed:
            wanted = await self._bring_packed(fetch, wanted)
        left = deque(self._runs(wanted))
        while left:
            run = left.popleft()
            try:
                data = await self._read_source(run)
            except Corrupt as error:
                if len(run) > 1:  # the others may be good
                    left.extendleft(range(i, i + 1) for i in reversed(run))
                    continue
                await self._give_up(fetch, run, error)
                continue
            except BootseerError as error:
                await self._give_up(fetch, run, error)
                continue
            await self._take(fetch, run, data)

    def _runs(self, blocks: Iterable[int]) -> Iterator[range]:
        """Cut sorted blocks into what one read of the store can bring."""
        return runs(blocks, lambda i: i // self._per_fetch)

    async def _read_source(self, run: range) -> memoryview:
        """Read blocks of the image from the store.

        Raises:
            BootseerError: the store does not give them.
        """
        data = await self._source.read(self.manifest, run)
        self.fetches += 1
        self.fetched_bytes += len(data)
        return data

    async def _bring_packed(self, fetch: _Fetch, wanted: list[int]) -> list[int]:
        """Read blocks from the pack, as far as it has them; returns those that it has not."""
        left: list[int] = []
        for run in self._pack.runs(wanted) if self._pack is not None else [wanted]:
            pack = self._pack
            if pack is None:
                left += run
                continue
            try:
                data = await pack.read(run)
            except BootseerError as error:
                left += run
                if self._pack is not None:
                    self._pack = None
                    self._say_lost(error)
                continue
            self.fetches += 1
            self.fetched_bytes += len(data)
            self.packed_reads += 1
            self.packed_bytes += len(data)
            await self._take(fetch, run, data)
        return sorted(left)

    async def _take(self, fetch: _Fetch, blocks: Sequence[int], data: memoryview) -> None:
        """Hand on blocks that were read, and bring them into the cache.

        Args:
            fetch: that they are of.
            blocks: one behind the other in ``data``.
            data: all of their bytes.
        """
        fetch.found |= self.manifest.cut(blocks, data)
        if len(fetch.found) == len(fetch.blocks):
            fetch.ended.set()  # who waits need not wait for the disk
        if fetch.is_urgent and self._keeping_bytes >= _KEEPING_BYTES:
            await self._cache.release(blocks)
            return
        self._keeping_bytes += len(data)
        try:
            await self._cache.keep(blocks, data)
        finally:
            self._keeping_bytes -= len(data)

    async def _give_up(self, fetch: _Fetch, run: range, error: BootseerError) -> None:
        fetch.errors |= dict.fromkeys(run, error)
        await self._cache.release(run)

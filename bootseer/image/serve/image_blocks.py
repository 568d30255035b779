"""Read an image: blocks that the node has from its cache, the others from the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from bootseer.core.image_manifest import ImageManifest
from bootseer.core.ranges import ByteRange, runs
from bootseer.errors import BootseerError, Unavailable
from bootseer.image.hot.pack_store import PackSource
from bootseer.image.library.source import ImageSource
from bootseer.image.serve.fetcher import BlockFetcher, FetchStats, FoundBlocks
from bootseer.image.serve.node_cache import NodeCache
from bootseer.image.serve.pack_reader import PackReader
from bootseer.image.serve.sequential import SequentialReaders
from bootseer.units import MIB

_FIRST_TOGETHER_BYTES = MIB
_TOGETHER_BYTES = 32 * MIB
"""Among so much of what is prefetched, neighbours are looked for: at first among little, for the
start waits for it."""
_ROUNDS = 3
"""Attempts to read from the cache what it should have, before the store is read past it."""


class ImageBlocks:
    """An image, readable at any offset.

    Concurrency: the tasks of one trio run.

    Attributes:
        manifest: of the image.
        urgent_at: when a reader last had to wait for the store, on trio's clock.
    """

    def __init__(
        self,
        manifest: ImageManifest,
        source: ImageSource,
        cache: NodeCache,
        nursery: trio.Nursery,
        deadline_s: float = 60.0,
    ) -> None:
        """Read nothing yet.

        Args:
            manifest: of the image.
            source: the image in the store.
            cache: what the node has of the image.
            nursery: runs the fetches, which go on when the readers that wait are cancelled.
            deadline_s: the longest that readers wait for the store, in seconds.
        """
        self.manifest = manifest
        self.urgent_at = trio.current_time()
        self._source = source
        self._cache = cache
        self._deadline_s = deadline_s
        self._fetcher = BlockFetcher(manifest, source, cache, nursery, deadline_s)
        self._pack: PackReader | None = None
        self._readers = SequentialReaders(
            manifest.blocks, manifest.block_bytes, self._fetcher.blocks_per_fetch
        )

    @property
    def stats(self) -> FetchStats:
        return self._fetcher.stats

    def use_pack(self, pack: PackSource, on_lost: Callable[[BootseerError], None]) -> None:
        """Read ahead from a hot pack what it has, from now on.

        Args:
            pack: of the image; the caller closes it.
            on_lost: called with the error when the pack cannot be read; the image is read then.
        """
        self._pack = PackReader(pack, on_lost)

    async def read(self, offset: int, size_bytes: int, *, is_urgent: bool = True) -> memoryview:
        """Return bytes of the image; fewer at its end.

        Args:
            offset, size_bytes: the wanted range.
            is_urgent: a reader waits for it, not only a prefetch.

        Raises:
            Corrupt: the store has other bytes.
            BootseerError: the store does not give them, or not in time.

        Cancellation: the fetches go on.
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

    def join(
        self,
        offset: int,
        size_bytes: int,
        answer: Callable[[memoryview | BootseerError | None], None],
        *,
        is_urgent: bool = True,
    ) -> bool:
        """Have a read answered along with another that is under way.

        Args:
            offset, size_bytes, is_urgent: as for `read`.
            answer: called once with the bytes or an error, or with None if they have to be read
                after all.

        Returns:
            Whether all of its blocks come with one fetch that has begun; if not, call `read`.
        """
        size_bytes = max(0, min(size_bytes, self.manifest.size_bytes - offset))
        blocks = self.manifest.covering(offset, size_bytes)
        fetch = self._fetcher.joinable(blocks, is_urgent=is_urgent)
        if fetch is None:
            return False

        def found(blocks_or_error: FoundBlocks | BootseerError | None) -> None:
            if isinstance(blocks_or_error, dict):
                answer(self._join_fetched(offset, size_bytes, blocks_or_error))
            else:
                answer(blocks_or_error)

        self._read_ahead(blocks, blocks, is_urgent)
        self._fetcher.join(fetch, blocks, found, is_urgent=is_urgent)
        return True

    async def fetch(self, wanted: list[int]) -> int:
        """Fetch blocks into the cache before anything reads them.

        Args:
            wanted: sorted indexes of blocks.

        Returns:
            The number of bytes that were read from the store.

        Raises:
            BootseerError: the store does not give them.
        """
        found = await self._fetcher.fetch(wanted, is_urgent=False)
        size_bytes = sum(self.manifest.block_range(index).size_bytes for index in found)
        self.stats.filled_bytes += size_bytes
        return size_bytes

    def fetch_ahead(self, ranges: Sequence[ByteRange]) -> None:
        """Fetch ranges in large reads before a prefetch reads them in small ones.

        Does nothing where there is a hot pack, from which these small reads bring much at once.

        Args:
            ranges: in the order in which they will be read. Of what is read at about the same
                time, neighbours in the image are fetched together.
        """
        if self._pack is not None:
            return
        group: set[int] = set()
        together_bytes = _FIRST_TOGETHER_BYTES
        for part in ranges:
            group.update(self.manifest.covering(part.start, part.size_bytes))
            if len(group) * self.manifest.block_bytes >= together_bytes:
                self._fetcher.enqueue_ahead(sorted(group))
                group = set()
                together_bytes = min(2 * together_bytes, _TOGETHER_BYTES)
        self._fetcher.enqueue_ahead(sorted(group))
        self._fetcher.start_ahead()

    async def settle(self) -> None:
        """Wait until all fetches have ended and their blocks are in the node's cache."""
        await self._fetcher.settle()

    async def _read(self, offset: int, size_bytes: int, is_urgent: bool) -> memoryview:
        blocks = self.manifest.covering(offset, size_bytes)
        found: FoundBlocks = {}
        for _ in range(_ROUNDS):
            wanted = self._cache.missing(i for i in blocks if i not in found)
            if wanted:
                self._read_ahead(blocks, wanted, is_urgent)
                found |= await self._fetcher.fetch(wanted, is_urgent=is_urgent)
            data = await self._assemble(offset, size_bytes, found)
            if data is not None:
                return data
        for run in self._fetcher.runs(i for i in blocks if i not in found):
            found |= await self._fetcher.read(run)
        data = await self._assemble(offset, size_bytes, found)
        assert data is not None  # all blocks are in `found`
        return data

    def _read_ahead(self, blocks: range, wanted: Sequence[int], is_urgent: bool) -> None:
        """Queue what is read ahead of a read of blocks, of which some are wanted."""
        if is_urgent:
            self.urgent_at = trio.current_time()
            self._fetcher.enqueue_ahead(self._readers.ahead(blocks))
        elif self._pack is not None:
            self._fetcher.enqueue_packed(self._pack, wanted)

    async def _assemble(
        self, offset: int, size_bytes: int, found: FoundBlocks
    ) -> memoryview | None:
        """Join fetched blocks and blocks of the cache.

        Returns:
            None if a block is in neither; the cache has noted by then which blocks it has lost.
        """
        if not found:
            return await self._cache.read(offset, size_bytes)
        blocks = self.manifest.covering(offset, size_bytes)
        if all(i in found for i in blocks):
            return self._join_fetched(offset, size_bytes, found)
        stop = offset + size_bytes
        whole = memoryview(bytearray(size_bytes))
        is_whole = True
        for run in runs(blocks, found.__contains__):
            start = max(offset, self.manifest.block_range(run.start).start)
            end = min(stop, self.manifest.block_range(run[-1]).stop)
            if run.start in found:
                data = self._join_fetched(start, end - start, found)
            else:
                cached = await self._cache.read(start, end - start)
                if cached is None:
                    is_whole = False
                    continue
                data = cached
            whole[start - offset : end - offset] = data
        return whole if is_whole else None

    def _join_fetched(self, offset: int, size_bytes: int, found: FoundBlocks) -> memoryview:
        """Return bytes of blocks that were all fetched, without copying them if it can be."""
        blocks = self.manifest.covering(offset, size_bytes)
        if self._are_together(blocks, found):
            first = found[blocks.start]
            at = first.at + offset - self.manifest.block_range(blocks.start).start
            return first.data[at : at + size_bytes]
        stop = offset + size_bytes
        whole = memoryview(bytearray(size_bytes))
        for index in blocks:
            block = self.manifest.block_range(index)
            start, end = max(offset, block.start), min(stop, block.stop)
            at = found[index].at - block.start
            whole[start - offset : end - offset] = found[index].data[at + start : at + end]
        return whole

    def _are_together(self, blocks: range, found: FoundBlocks) -> bool:
        """Return whether these blocks were read at once, one behind the other."""
        first = found.get(blocks.start)
        if first is None:
            return False
        for number, index in enumerate(blocks):
            block = found.get(index)
            if block is None or block.data is not first.data:
                return False
            if block.at != first.at + number * self.manifest.block_bytes:
                return False
        return True

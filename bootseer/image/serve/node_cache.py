"""An image's blocks on this node. No failure of the cache is an error: the store has all blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import trio

from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.cache.keeper import BlockClaim
from bootseer.cache.keeper_link import KeeperLink
from bootseer.core.ranges import runs
from bootseer.errors import BootseerError, Closed, Corrupt, NoSpace

_THREADS = 8
"""Reads of the node's disk at once."""
_POLL_S = 0.002
PATIENCE_S = 3.0
"""How long to wait for a block that another server of this node fetches."""
_FULL_S = 30.0
"""How long a full cache is not asked to keep anything."""


@dataclass(eq=False)
class NodeCache:
    """What a node has of an image, and the link to the keeper that writes more.

    Concurrency: the tasks of one trio run.

    Attributes:
        cached: the blocks that the node has; None without a cache.
        link: to their keeper; without one, no blocks are added.
        note: called once with each reason why the cache is not used as it should be.
        patience_s: how long to wait for other servers, in seconds; less than the deadline of
            readers.
    """

    cached: CachedBlocks | None = None
    link: KeeperLink | None = None
    note: Callable[[str], None] = lambda reason: None
    patience_s: float = PATIENCE_S
    _noted: set[str] = field(default_factory=set)
    _threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(_THREADS))
    _full_until: float = 0.0

    @property
    def grows(self) -> bool:
        """Whether fetched blocks are kept, as far as is known."""
        full = trio.current_time() < self._full_until
        return self.cached is not None and self.link is not None and not full

    async def read(self, offset: int, size_bytes: int) -> memoryview | None:
        """Read from the node's disk; None if a block is missing or damaged.

        Cancellation: returns at once; a thread may be left in a read.
        """
        cached = self.cached
        if cached is None:
            return None
        return await trio.to_thread.run_sync(
            cached.read, offset, size_bytes, limiter=self._threads, abandon_on_cancel=True
        )

    def missing(self, blocks: Iterable[int]) -> list[int]:
        """List the blocks that are not there, as far as is known."""
        return list(blocks) if self.cached is None else self.cached.missing(blocks)

    async def claim(self, blocks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Claim blocks, to fetch them.

        Returns:
            The blocks to fetch, and those that other servers of this node fetch; the rest is in the
            cache. Where nothing can be claimed, all are to be fetched.
        """
        cached, link = self.cached, self.link
        if cached is None or link is None:
            return list(blocks), []
        replace = any(cached.is_lost(i) for i in blocks)
        try:
            claims = dict(zip(blocks, await link.claim(blocks, replace=replace), strict=True))
        except BootseerError as error:
            self._fail(error)
            return list(blocks), []
        for run in runs(blocks):
            cached.refresh(run)
        granted = [i for i in blocks if claims[i] == BlockClaim.GRANTED]
        return granted, [i for i in blocks if claims[i] == BlockClaim.BUSY]

    async def wait(self, since: float) -> bool:
        """Wait a little for the blocks that other servers of this node fetch.

        Args:
            since: when the first wait for them began, on trio's clock.

        Returns:
            False if they have had enough time: the caller fetches the blocks itself.
        """
        if trio.current_time() - since < self.patience_s:
            await trio.sleep(_POLL_S)
            return True
        self.patience_s = 0.0  # the other server hangs, or is hostile
        self._say("a block that another job was fetching did not arrive; fetching it here")
        return False

    async def keep(
        self, blocks: Sequence[int], data: memoryview, *, is_checked: bool = True
    ) -> bool:
        """Write fetched blocks into the cache, if it takes them.

        Args:
            blocks: that were fetched.
            data: their bytes, one block behind the other.
            is_checked: they were compared with the manifest.

        Returns:
            Whether it did: they are what the manifest says.
        """
        cached, link = self.cached, self.link
        if cached is None or link is None:
            return False
        if trio.current_time() < self._full_until:
            await self.release(blocks)
            return False
        try:
            await link.keep(blocks, data)
        except NoSpace:
            self._full_until = trio.current_time() + _FULL_S
            self._say("the block cache is full: further blocks are fetched when needed")
            return False
        except BootseerError as error:
            if is_checked or not isinstance(error, Corrupt):
                self._fail(error)
            return False
        for run in runs(blocks):
            cached.refresh(run, are_new=True)
        return True

    async def release(self, blocks: Sequence[int]) -> None:
        """Give up the claims on blocks that are not kept."""
        if self.link is not None:
            try:
                await self.link.release(blocks)
            except BootseerError as error:
                self._fail(error)

    def _fail(self, error: BootseerError) -> None:
        if isinstance(error, Closed):
            self.link = None
        self._say(f"the block cache does not grow: {error}")

    def _say(self, reason: str) -> None:
        if reason not in self._noted:
            self._noted.add(reason)
            self.note(reason)

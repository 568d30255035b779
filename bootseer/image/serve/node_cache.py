"""An image's blocks on this node, as far as that can be had: what fails here is done without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import trio

from bootseer.cache.blocks import CachedBlocks
from bootseer.cache.keeper import BlockClaim
from bootseer.cache.link import KeeperLink
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.ranges import runs
from bootseer.errors import BootseerError, Closed, NoSpace

_THREADS = 8
"""Reads of the node's disk at once."""
_POLL_S = 0.002
PATIENCE_S = 3.0
"""How long to wait for a block that somebody else of this node is fetching."""
_FULL_S = 30.0
"""How long a cache that has no room is left alone."""


class NodeCache:
    """What a node has of an image, and the way to bring more there.

    Concurrency: the tasks of one trio run.

    Attributes:
        cached: what the node has, None for no cache.
    """

    def __init__(
        self,
        manifest: ImageManifest,
        cached: CachedBlocks | None = None,
        link: KeeperLink | None = None,
        note: Callable[[str], None] = lambda reason: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Take over what it is made of.

        Args:
            manifest: what the image holds.
            cached: what the node has of it.
            link: to the keeper of that; without one, it stays as it is.
            note: told once of each thing that is done without, and why.
            patience_s: how long to wait for others; less than readers wait for all.
        """
        self.cached = cached
        self._manifest = manifest
        self._link = link
        self._note = note
        self._noted: set[str] = set()
        self._threads = trio.CapacityLimiter(_THREADS)
        self._patience_s = patience_s
        self._full_until = 0.0

    @property
    def grows(self) -> bool:
        """Whether what is brought is kept, as far as is known."""
        full = trio.current_time() < self._full_until
        return self.cached is not None and self._link is not None and not full

    async def read(self, offset: int, size_bytes: int) -> memoryview | None:
        """Read what is on the disk; None if something is not there, or damaged.

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
            Those to be fetched, and those that somebody else is fetching; the rest is there.
        """
        cached, link = self.cached, self._link
        if cached is None or link is None:
            return list(blocks), []
        anew = any(cached.is_lost(i) for i in blocks)
        try:
            claims = dict(zip(blocks, await link.claim(blocks, anew=anew), strict=True))
        except BootseerError as error:
            self._fail(error)
            return list(blocks), []
        for run in runs(blocks):
            cached.refresh(run)
        granted = [i for i in blocks if claims[i] == BlockClaim.GRANTED]
        return granted, [i for i in blocks if claims[i] == BlockClaim.BUSY]

    async def wait(self, since: float) -> bool:
        """Wait a little for others of this node to bring what they are fetching.

        Args:
            since: when that began, on trio's clock.

        Returns:
            Whether to go on waiting for them.
        """
        if trio.current_time() - since < self._patience_s:
            await trio.sleep(_POLL_S)
            return True
        self._patience_s = 0.0  # whoever it is does not do what it should
        self._say("what another job was fetching did not come, and is fetched here as well")
        return False

    async def keep(self, blocks: Sequence[int], data: memoryview) -> None:
        """Bring blocks that were fetched, one behind the other, into the cache if it takes them."""
        cached, link = self.cached, self._link
        if cached is None or link is None:
            return
        if trio.current_time() < self._full_until:
            await self.release(blocks)
            return
        try:
            await link.keep(blocks, data)
        except NoSpace:
            self._full_until = trio.current_time() + _FULL_S
            self._say("the block cache is full: what it has no room for is fetched when needed")
            return
        except BootseerError as error:
            self._fail(error)
            return
        for index, block in self._manifest.cut(blocks, data):
            cached.note_kept(index, block)

    async def release(self, blocks: Sequence[int]) -> None:
        """Give up the claims on blocks that could not be fetched."""
        if self._link is not None:
            try:
                await self._link.release(blocks)
            except BootseerError as error:
                self._fail(error)

    def _fail(self, error: BootseerError) -> None:
        if isinstance(error, Closed):
            self._link = None
        self._say(f"the block cache does not grow: {error}")

    def _say(self, reason: str) -> None:
        if reason not in self._noted:
            self._noted.add(reason)
            self._note(reason)

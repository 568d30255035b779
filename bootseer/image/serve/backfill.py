"""Fetch a served image to the node: the rest while no reader waits, or all of it at once."""

from __future__ import annotations

from collections.abc import Iterator

import trio

from bootseer.errors import BootseerError, NoSpace
from bootseer.image.serve.image_blocks import ImageBlocks
from bootseer.image.serve.node_cache import NodeCache
from bootseer.units import MIB

_IDLE_S = 2.0
"""How long no reader must have waited for the store."""
_STEP_BYTES = MIB
"""Fetched at once: a reader that comes waits behind it."""
_STREAMS = 16
"""Fetches at once of a copy."""


async def fill(blocks: ImageBlocks, cache: NodeCache, bytes_per_s: float) -> None:
    """Fetch the missing blocks into the cache, in the order of the image, while no reader waits.

    Ends when all blocks are there, the cache is full or the store fails.

    Args:
        blocks: the image.
        cache: what the node has of it.
        bytes_per_s: the rate; 0 to fetch nothing.

    Cancellation: a fetch that has started continues.
    """
    if not bytes_per_s:
        return
    await trio.sleep(_IDLE_S)  # the job may be about to end
    for wanted in _missing(blocks, cache):
        await until_idle(blocks)
        if not cache.grows:
            return
        began = trio.current_time()
        try:
            size_bytes = await blocks.fetch(wanted)
        except BootseerError:
            return  # readers that need the blocks get the error
        await trio.sleep_until(began + size_bytes / bytes_per_s)


async def copy(blocks: ImageBlocks, cache: NodeCache) -> int:
    """Fetch all missing blocks into the cache, as fast as possible.

    Returns:
        How many bytes came from the store.

    Raises:
        NoSpace: the cache has no room for all of the image.
        BootseerError: the store does not give a block.
    """
    copied_bytes = 0
    steps = _missing(blocks, cache)
    failed: list[BootseerError] = []

    async def stream() -> None:
        nonlocal copied_bytes
        for wanted in steps:
            if failed:
                return
            try:
                size_bytes = await blocks.fetch(wanted)
                copied_bytes += size_bytes
                if not cache.grows:
                    raise NoSpace("the block cache has no room for all of the image")
            except BootseerError as error:
                failed.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(_STREAMS):
            nursery.start_soon(stream)
    if failed:
        raise failed[0]
    return copied_bytes


def _missing(blocks: ImageBlocks, cache: NodeCache) -> Iterator[list[int]]:
    """Yield the missing blocks, a step after the other."""
    per_step = _STEP_BYTES // blocks.manifest.block_bytes
    for first in range(0, blocks.manifest.blocks, per_step):
        wanted = cache.missing(range(first, min(first + per_step, blocks.manifest.blocks)))
        if wanted:
            yield wanted


async def until_idle(blocks: ImageBlocks) -> None:
    """Wait until no reader has waited for the store for a while."""
    while trio.current_time() < (until := blocks.urgent_at + _IDLE_S):
        await trio.sleep_until(until)

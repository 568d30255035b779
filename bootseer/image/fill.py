"""Bring the rest of a served image to the node, while nobody reads it."""

from __future__ import annotations

import trio

from bootseer.cache.link import MAX_BYTES
from bootseer.errors import BootseerError
from bootseer.image.blocks import ImageBlocks
from bootseer.image.nodecache import NodeCache

_IDLE_S = 2.0
"""How long nobody must have waited for the store."""


async def fill(blocks: ImageBlocks, cache: NodeCache, bytes_per_s: float) -> None:
    """Bring what is missing into the cache, from the beginning on, until all is there.

    Args:
        blocks: the image.
        cache: what the node has of it.
        bytes_per_s: how fast; 0 for not at all.

    Cancellation: what is being fetched arrives all the same.
    """
    if not bytes_per_s:
        return
    await trio.sleep(_IDLE_S)  # what came before may have been the end of the job
    per_step = MAX_BYTES // blocks.manifest.block_bytes
    for first in range(0, blocks.manifest.blocks, per_step):
        wanted = cache.missing(range(first, min(first + per_step, blocks.manifest.blocks)))
        if not wanted:
            continue
        await until_idle(blocks)
        if not cache.grows:
            return
        began = trio.current_time()
        try:
            size_bytes = await blocks.bring(wanted)
        except BootseerError:
            return  # who needs them will be told
        await trio.sleep_until(began + size_bytes / bytes_per_s)


async def until_idle(blocks: ImageBlocks) -> None:
    """Wait until nobody has waited for the store for a while."""
    while (idle_s := trio.current_time() - blocks.urgent_at) < _IDLE_S:
        await trio.sleep(_IDLE_S - idle_s)

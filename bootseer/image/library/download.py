"""Write an image of the store to a file, every block checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import trio

from bootseer.cache.keeper_link import MAX_BYTES
from bootseer.core.image_manifest import ImageManifest
from bootseer.image.library.source import ImageSource
from bootseer.parallel import for_each
from bootseer.posix import pwrite_fully
from bootseer.store.api.base import Store
from bootseer.store.local.atomic_file import new_file, writing

_STREAMS = 8


async def retrieve(
    store: Store,
    digest: str,
    manifest: ImageManifest,
    target: Path,
    note: Callable[[int], None] = lambda size_bytes: None,
) -> None:
    """Write an image to a file, which replaces what is there.

    Args:
        store: that has the image.
        digest: of the image.
        manifest: what it holds.
        target: the file.
        note: told of bytes that have been written.

    Raises:
        Corrupt: the store has something else.
        BootseerError: the file cannot be written, see `bootseer.store.local.atomic_file`.

    Durability: ``target`` is what it was, or the whole image, also after a crash.

    Cancellation: what was written is removed.
    """
    source = ImageSource(store, digest)
    per_read = min(MAX_BYTES, manifest.part_bytes) // manifest.block_bytes
    try:
        with new_file(target) as (fd, _), writing(target):

            async def write_some(start: int) -> None:
                blocks = range(start, min(start + per_read, manifest.blocks))
                data = await source.read(manifest, blocks)
                offset = manifest.block_range(start).start
                await trio.to_thread.run_sync(pwrite_fully, fd, data, offset)
                note(len(data))

            await for_each(range(0, manifest.blocks, per_read), write_some, _STREAMS)
            # Here, where the rest of this process can go on.
            await trio.to_thread.run_sync(os.fsync, fd)
    finally:
        await source.close()

"""Write an image of the store to a file, every block checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import trio

from bootseer.cache.keeper_link import MAX_BYTES
from bootseer.core.image_manifest import ImageManifest
from bootseer.errors import BootseerError
from bootseer.image.library.source import ImageSource
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
    per_read = MAX_BYTES // manifest.block_bytes
    starts = iter(range(0, manifest.blocks, per_read))
    errors: list[BootseerError | OSError] = []
    try:
        with new_file(target) as (fd, _), writing(target):

            async def write_some(scope: trio.CancelScope) -> None:
                for start in starts:
                    blocks = range(start, min(start + per_read, manifest.blocks))
                    try:
                        data = await source.read(manifest, blocks)
                        offset = manifest.block_range(start).start
                        await trio.to_thread.run_sync(pwrite_fully, fd, data, offset)
                    except (BootseerError, OSError) as error:
                        errors.append(error)
                        scope.cancel()
                    else:
                        note(len(data))

            async with trio.open_nursery() as nursery:
                for _ in range(_STREAMS):
                    nursery.start_soon(write_some, nursery.cancel_scope)
            if errors:
                raise errors[0]
            # Here, where the rest of this process can go on.
            await trio.to_thread.run_sync(os.fsync, fd)
    finally:
        await source.close()

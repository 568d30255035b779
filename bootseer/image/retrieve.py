"""Write an image of the store to a file, every block checked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from bootseer.cache.link import MAX_BYTES
from bootseer.core.image import ImageManifest
from bootseer.errors import BootseerError, NoSpace, Unavailable
from bootseer.image.source import ImageSource
from bootseer.store.base import Store

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
        Unavailable: the file cannot be written.
        NoSpace: there is none for it.

    Durability: ``target`` is what it was, or the whole image, also after a crash.

    Cancellation: what was written is removed.
    """
    source = ImageSource(store, digest)
    per_read = MAX_BYTES // manifest.block_bytes
    starts = iter(range(0, manifest.blocks, per_read))
    errors: list[BootseerError] = []
    try:
        async with _new_file(target) as fd:

            async def write_some(scope: trio.CancelScope) -> None:
                for start in starts:
                    blocks = range(start, min(start + per_read, manifest.blocks))
                    try:
                        data = await source.read(manifest, blocks)
                        offset = manifest.block_range(start).start
                        await trio.to_thread.run_sync(_pwrite, fd, data, offset, target)
                    except BootseerError as error:
                        errors.append(error)
                        scope.cancel()
                    else:
                        note(len(data))

            async with trio.open_nursery() as nursery:
                for _ in range(_STREAMS):
                    nursery.start_soon(write_some, nursery.cancel_scope)
            if errors:
                raise errors[0]
    finally:
        await source.close()


@asynccontextmanager
async def _new_file(target: Path) -> AsyncIterator[int]:
    """Give a file to write that becomes ``target`` at the end, and is gone if that fails."""
    try:
        fd, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:200]}.")
    except OSError as error:
        raise Unavailable(f"cannot write {target}: {error.strerror}") from error
    try:
        yield fd
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(fd, 0o666 & ~mask)
        await trio.to_thread.run_sync(os.fsync, fd)
        os.replace(name, target)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise Unavailable(f"cannot write {target}: {error.strerror}") from error
        raise
    finally:
        os.close(fd)


def _pwrite(fd: int, data: memoryview, offset: int, target: Path) -> None:
    try:
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written
    except OSError as error:
        raise NoSpace(f"cannot write {target}: {error.strerror}") from error

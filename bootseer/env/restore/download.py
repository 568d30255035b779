"""Download a snapshot from a store, and unpack it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import trio

from bootseer.env.restore.atomic import RestoreTarget, restore
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.chunk_source import ChunkSource
from bootseer.env.snapshot.chunks import split
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.errors import Unavailable
from bootseer.store.api.base import Store

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


async def unpack(
    store: Store,
    snapshot: Snapshot,
    places: Sequence[RestoreTarget],
    count: Callable[[int], None] = lambda size_bytes: None,
    parts: Store | None = None,
) -> int:
    """Unpack a snapshot, as the calling user; see `bootseer.env.restore.atomic.restore`.

    Args:
        store: that has the snapshot.
        snapshot: to unpack.
        places: of its targets.
        count: called with numbers of bytes that were unpacked, in a thread.
        parts: another way to the objects that are never replaced; None for none.

    Returns:
        Bytes that were read from the store.

    Raises:
        Corrupt: the snapshot is damaged.
        BootseerError: it cannot be read or written.
    """
    index = await repository.read_index(store, snapshot)
    chunks = await trio.to_thread.run_sync(split, index)
    async with ChunkSource(store, snapshot, parts) as source:

        def check_cancelled() -> None:
            try:
                trio.from_thread.check_cancelled()
            except trio.Cancelled:
                source.stop()  # a store may hang, and the threads wait for it
                raise

        await trio.to_thread.run_sync(
            partial(
                restore,
                *(index, chunks, source.read, places),
                count=count,
                check_cancelled=check_cancelled,
            )
        )
    return source.read_bytes


@contextmanager
def opened_places(targets: Sequence[str]) -> Iterator[list[RestoreTarget]]:
    """Open the folders above targets for the length of a block; missing ones are made.

    Raises:
        Unavailable: one cannot be opened.
    """
    places = []
    with ExitStack() as stack:
        try:
            for target in targets:
                parent, name = os.path.split(os.path.realpath(target))
                os.makedirs(parent, exist_ok=True)
                places.append(RestoreTarget(os.open(parent, _FOLDER), name))
                stack.callback(os.close, places[-1].parent)
        except OSError as error:
            raise Unavailable(f"{target} cannot be reached: {error.strerror}") from error
        yield places

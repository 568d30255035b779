"""Read the chunks of a snapshot from a store, in the threads that unpack them."""

from __future__ import annotations

import trio

from bootseer.env.snapshot.chunks import Chunk
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.errors import Corrupt, Unavailable
from bootseer.image.library import catalog as images
from bootseer.image.library.source import ImageSource
from bootseer.store.api.base import Store

_CLOSE_S = 1.0


class ChunkSource:
    """The squashfs of a snapshot, open for the length of a block.

    Attributes:
        read_bytes: bytes that were read from the store.
    """

    def __init__(self, store: Store, snapshot: Snapshot, parts: Store | None = None) -> None:
        """Name the snapshot; nothing is read yet.

        Args:
            store: that has it.
            snapshot: its manifest.
            parts: another way to the objects that are never replaced; None for none.
        """
        self.read_bytes = 0
        self._store = store
        self._image = snapshot.image
        self._source = ImageSource(parts or store, snapshot.image)
        self._token = trio.lowlevel.current_trio_token()
        self._reading: set[trio.CancelScope] = set()
        self._is_stopped = False

    def read(self, chunk: Chunk) -> memoryview:
        """Read the blocks of a chunk, in a thread, and compare them with their digests.

        Raises:
            Corrupt: the squashfs is damaged.
            BootseerError: they cannot be read.
        """
        return trio.from_thread.run(self._read_until_stopped, chunk, trio_token=self._token)

    def stop(self) -> None:
        """End all reads in threads: a cancellation of their callers does not end them."""
        self._token.run_sync_soon(self._stop)

    async def __aenter__(self) -> ChunkSource:
        """Read the manifest of the squashfs, and return the source.

        Raises:
            NotFound: the squashfs was removed.
            BootseerError: its manifest cannot be read.
        """
        _, self._manifest = await images.read_manifest(self._store, self._image)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close all objects, without waiting for a store that hangs."""
        with trio.move_on_after(_CLOSE_S, shield=True):
            await self._source.close()

    def _stop(self) -> None:
        self._is_stopped = True
        for scope in self._reading:
            scope.cancel()

    async def _read_until_stopped(self, chunk: Chunk) -> memoryview:
        with trio.CancelScope() as scope:
            self._reading.add(scope)
            if self._is_stopped:
                scope.cancel()
            try:
                return await self._read(chunk)
            finally:
                self._reading.discard(scope)
        raise Unavailable("the read was given up")

    async def _read(self, chunk: Chunk) -> memoryview:
        manifest = self._manifest
        if chunk.stop > manifest.size_bytes:
            raise Corrupt(
                f"the snapshot's squashfs ends at byte {manifest.size_bytes}, and its index names "
                f"byte {chunk.stop}; capture the environment again"
            )
        blocks = manifest.covering(chunk.start, chunk.stored_bytes)
        per_part = manifest.part_bytes // manifest.block_bytes
        found = []
        at = blocks.start
        while at < blocks.stop:
            stop = min(blocks.stop, (at // per_part + 1) * per_part)
            found.append(await self._source.read(manifest, range(at, stop)))
            at = stop
        data = found[0] if len(found) == 1 else memoryview(b"".join(found))
        self.read_bytes += len(data)
        skip = chunk.start - manifest.block_range(blocks.start).start
        return data[skip : skip + chunk.stored_bytes]

"""The bytes of an image in the store, checked against its manifest."""

from __future__ import annotations

from functools import partial

import trio

from bootseer.core.image import ImageManifest
from bootseer.errors import Corrupt
from bootseer.image.catalog import part_object
from bootseer.image.parts import OpenParts
from bootseer.store.base import ObjectInfo, Store
from bootseer.units import KIB

_INLINE_BYTES = 128 * KIB
"""What takes no longer to check than to hand to a thread."""


class ImageSource:
    """An image in a store, open for reading until it is closed.

    Attributes:
        store: that has it.
        digest: of the image.
    """

    def __init__(self, store: Store, digest: str) -> None:
        """Name the image; nothing is read yet."""
        self.store = store
        self.digest = digest
        self._parts = OpenParts(store, partial(part_object, digest))

    async def prove(self) -> ObjectInfo:
        """Open its beginning, as only those can who may read it.

        Returns:
            What the store says of that. Owner and time tell it from another object that may have
            this name one day: the time alone could be put there by anybody.

        Raises:
            NotFound: it is not there.
            Denied: this process may not read it.
        """
        return (await self._parts.part(0)).info

    async def read(self, manifest: ImageManifest, blocks: range) -> memoryview:
        """Read consecutive blocks of one part.

        Raises:
            Corrupt: one is not what it should be, or not there.
            BootseerError: the store does not give them.
        """
        start = manifest.block_range(blocks.start).start
        stop = manifest.block_range(blocks[-1]).stop
        index = start // manifest.part_bytes
        reader = await self._parts.part(index)
        at = start - manifest.part_range(index).start
        data = memoryview(await reader.pread(at, stop - start))
        if len(data) <= _INLINE_BYTES:
            self._check(manifest, blocks, data, at)
        else:
            await trio.to_thread.run_sync(self._check, manifest, blocks, data, at)
        return data

    async def close(self) -> None:
        """Close what is open."""
        await self._parts.close()

    def _check(self, manifest: ImageManifest, blocks: range, data: memoryview, at: int) -> None:
        first = manifest.block_range(blocks.start).start
        for index in blocks:
            block = manifest.block_range(index)
            if not manifest.matches(index, data[block.start - first : block.stop - first]):
                name = part_object(self.digest, block.start // manifest.part_bytes)
                raise Corrupt(
                    f"{name!r} in {self.store.url} is damaged at byte {at + block.start - first}: "
                    f"block {index} of the image has another digest; see `bootseer image verify`"
                )

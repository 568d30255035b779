"""The bytes of an image in the store, checked against its manifest."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import trio

from bootseer.core.image_manifest import ImageManifest
from bootseer.core.speed import SpeedMeter
from bootseer.errors import Corrupt
from bootseer.image.identity import OpenImage
from bootseer.image.library.catalog import part_object
from bootseer.posix import read_fully
from bootseer.store.api.base import ObjectInfo, Store
from bootseer.store.api.shared_reader import read_checked
from bootseer.store.open_parts import OpenParts
from bootseer.units import KIB

_INLINE_BYTES = 128 * KIB
"""What takes no longer to check than to hand to a thread."""
_FILE_READS = 32
"""At once, of the file that an image was added from."""


class ImageSource:
    """An image in a store, open for reading until it is closed.

    Attributes:
        store: that has it.
        digest: of the image.
        speed: of the store.
        file: that it was added from, and is read from instead as long as that goes well.
        file_speed: of that.
    """

    def __init__(self, store: Store, digest: str) -> None:
        self.store = store
        self.digest = digest
        self.speed = SpeedMeter(time.monotonic)
        self.file: OpenImage | None = None
        self.file_speed = SpeedMeter(time.monotonic)
        self._say_lost: Callable[[str], None] = lambda reason: None
        self._patience_s = 0.0
        self._threads = trio.CapacityLimiter(_FILE_READS)
        self._parts = OpenParts(store, partial(part_object, digest))

    async def open_first(self) -> ObjectInfo:
        """Open the first part: raises at once if the image is missing or may not be read.

        Returns:
            What the store says of that.

        Raises:
            NotFound: it is not there.
            Denied: this process may not read it.
        """
        return (await self._parts.part(0)).info

    def use_file(self, file: OpenImage, patience_s: float, say_lost: Callable[[str], None]) -> None:
        """Read from now on the file that it was added from, as long as that has the image.

        Args:
            file: opened as the user who is served; stays the caller's.
            patience_s: how long to wait for a read of it.
            say_lost: told why, should the store be read again.
        """
        self.file = file
        self._patience_s = patience_s
        self._say_lost = say_lost

    async def read(
        self, manifest: ImageManifest, blocks: range, *, checks: bool = True
    ) -> memoryview:
        """Read consecutive blocks of one part.

        Args:
            manifest: of the image.
            blocks: to be read.
            checks: whether to compare them with the manifest; else the caller does.

        Raises:
            Corrupt: one is not what it should be, or not there.
            BootseerError: the store does not give them.
        """
        start = manifest.block_range(blocks.start).start
        stop = manifest.block_range(blocks[-1]).stop
        if self.file is not None:
            found = await self._read_file(self.file, manifest, blocks, start, stop, checks)
            if found is not None:
                return found
        index = start // manifest.part_bytes
        reader = await self._parts.part(index)  # which the store's speed does not count
        at = start - manifest.part_range(index).start
        if not checks:
            return await self._read_part(index, at, stop - start)
        read = partial(self._read_checked, manifest, blocks, index, at, stop - start)
        data, bad = await read_checked(reader, at, stop - start, read)
        if bad is not None:
            raise Corrupt(
                f"{part_object(self.digest, index)!r} in {self.store.url} is damaged at byte "
                f"{at + manifest.block_range(bad).start - start}: block {bad} of the image has "
                "another digest; see `bootseer image verify`"
            )
        return data

    async def close(self) -> None:
        await self._parts.close()

    async def _read_part(self, index: int, at: int, size: int) -> memoryview:
        with self.speed.read(size):
            return memoryview(await self._parts.read(index, at, size))

    async def _read_checked(
        self, manifest: ImageManifest, blocks: range, index: int, at: int, size: int
    ) -> tuple[memoryview, int | None]:
        """Read blocks from a part; returns the first bad one, too."""
        data = await self._read_part(index, at, size)
        if size <= _INLINE_BYTES:
            return data, manifest.bad_block(blocks, data)
        return data, await trio.to_thread.run_sync(manifest.bad_block, blocks, data)

    async def _read_file(
        self,
        file: OpenImage,
        manifest: ImageManifest,
        blocks: range,
        start: int,
        stop: int,
        checks: bool,
    ) -> memoryview | None:
        """Read blocks from the file; None if it has something else, or nothing in time."""

        def read() -> tuple[memoryview, int | None]:
            data = memoryview(read_fully(file.fd, start, stop - start))
            return data, manifest.bad_block(blocks, data) if checks else None

        try:
            with self.file_speed.read(stop - start), trio.fail_after(self._patience_s):
                data, bad = await trio.to_thread.run_sync(
                    read, limiter=self._threads, abandon_on_cancel=True
                )
        except trio.TooSlowError:
            self._lose_file(f"no answer within {self._patience_s:g} s")
            return None
        except OSError as error:
            self._lose_file(f"{error.strerror}")
            return None
        if bad is not None:
            self._lose_file(f"block {bad} of the image is another there")
            return None
        return data

    def _lose_file(self, why: str) -> None:
        if self.file is not None:
            self._say_lost(f"{self.file.path} is not read any more, but the store: {why}")
            self.file = None

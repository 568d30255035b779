"""The tar frames of a snapshot in a store, read by the threads that unpack them."""

from __future__ import annotations

from functools import partial

import trio

from bootseer.env import catalog
from bootseer.env.frames import Frame
from bootseer.env.snapshot import Snapshot
from bootseer.image.parts import OpenParts
from bootseer.store.base import Store

_CLOSE_S = 1.0


class FrameSource:
    """Frames, open for reading for the length of a block.

    Attributes:
        read_bytes: of the store.
    """

    def __init__(self, store: Store, snapshot: Snapshot) -> None:
        """Name the snapshot; nothing is read yet."""
        self.read_bytes = 0
        name = partial(catalog.frames_object, snapshot.key, snapshot.capture)
        self._parts = OpenParts(store, name)
        self._token = trio.lowlevel.current_trio_token()

    def read(self, frame: Frame) -> bytes:
        """Read what is stored of a frame, in a thread.

        Raises:
            BootseerError: the store does not give it.
        """
        return trio.from_thread.run(self._read, frame, trio_token=self._token)

    async def __aenter__(self) -> FrameSource:
        """Return the source."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close what is open; a store that hangs is not waited for."""
        with trio.move_on_after(_CLOSE_S, shield=True):
            await self._parts.close()

    async def _read(self, frame: Frame) -> bytes:
        data = bytearray()
        at, stop = frame.stored_start, frame.stored_start + frame.stored_bytes
        while at < stop:
            index, offset = divmod(at, catalog.PART_BYTES)
            size_bytes = min(stop - at, catalog.PART_BYTES - offset)
            part = await self._parts.part(index)
            found = await part.pread(offset, size_bytes)
            data += found
            if len(found) < size_bytes:
                break  # what is missing is found out by the frame's digest
            at += size_bytes
        self.read_bytes += len(data)
        return bytes(data)

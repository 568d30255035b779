"""Read the tar frames of a snapshot from a store, in the threads that unpack them."""

from __future__ import annotations

from functools import partial

import trio

from bootseer.env.snapshot import repository
from bootseer.env.snapshot.frames import Frame
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.errors import Unavailable
from bootseer.store.api.base import Store
from bootseer.store.open_parts import OpenParts

_CLOSE_S = 1.0


class FrameSource:
    """The frames of a snapshot, open for the length of a block.

    Attributes:
        read_bytes: bytes that were read from the store.
    """

    def __init__(self, store: Store, snapshot: Snapshot) -> None:
        """Name the snapshot; nothing is read yet."""
        self.read_bytes = 0
        name = partial(repository.frames_object, snapshot.key, snapshot.capture)
        self._parts = OpenParts(store, name)
        self._token = trio.lowlevel.current_trio_token()
        self._reading: set[trio.CancelScope] = set()
        self._is_stopped = False

    def read(self, frame: Frame) -> bytes:
        """Read the stored bytes of a frame, in a thread.

        Raises:
            BootseerError: they cannot be read.
        """
        return trio.from_thread.run(self._read_until_stopped, frame, trio_token=self._token)

    def stop(self) -> None:
        """End all reads in threads: a cancellation of their callers does not end them."""
        self._token.run_sync_soon(self._stop)

    async def __aenter__(self) -> FrameSource:
        """Return the source."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close all objects, without waiting for a store that hangs."""
        with trio.move_on_after(_CLOSE_S, shield=True):
            await self._parts.close()

    def _stop(self) -> None:
        self._is_stopped = True
        for scope in self._reading:
            scope.cancel()

    async def _read_until_stopped(self, frame: Frame) -> bytes:
        with trio.CancelScope() as scope:
            self._reading.add(scope)
            if self._is_stopped:
                scope.cancel()
            try:
                return await self._read(frame)
            finally:
                self._reading.discard(scope)
        raise Unavailable("the read was given up")

    async def _read(self, frame: Frame) -> bytes:
        data = bytearray()
        at, stop = frame.stored_start, frame.stored_start + frame.stored_bytes
        while at < stop:
            index, offset = divmod(at, repository.PART_BYTES)
            size_bytes = min(stop - at, repository.PART_BYTES - offset)
            part = await self._parts.part(index)
            found = await part.pread(offset, size_bytes)
            data += found
            if len(found) < size_bytes:
                break  # what is missing is found out by the frame's digest
            at += size_bytes
        self.read_bytes += len(data)
        return bytes(data)

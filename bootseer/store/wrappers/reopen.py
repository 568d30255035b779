"""Reads that are tried again, on the object opened again."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from bootseer.errors import Closed, Conflict, Transient
from bootseer.store.api.base import ObjectInfo, Reader, Store
from bootseer.store.wrappers.backoff import Backoff


@dataclass(slots=True)
class _Opened:
    """The object, opened once, and how many reads use it right now."""

    reader: Reader
    block: AsyncExitStack
    users: int = 0


@dataclass(eq=False)
class ReopeningReader(Reader):
    """Opens the object again after a failed read: a stale handle or a lost server stays bad.

    All reads are of one version: an object that was replaced meanwhile is a Conflict.

    Concurrency: reads share what is open now. The failed one is put aside, and closed when the last
    read that still uses it ends.
    """

    store: Store
    name: str
    backoff: Backoff
    known: ObjectInfo | None = None
    version: ObjectInfo | None = None
    _current: _Opened | None = None
    _ended: bool = False

    async def start(self) -> None:
        """Open the object for the first time."""
        self._current = await self.backoff.run(self._open)
        self.info: ObjectInfo = self._current.reader.info
        if self.known is None or self.version is not None:
            self.version = self.info

    async def pread(self, offset: int, size: int) -> bytes:
        return await self.backoff.run(partial(self._attempt, offset, size))

    async def end(self) -> None:
        """Close what is open; nothing can be read any more."""
        self._ended = True
        opened, self._current = self._current, None
        if opened is not None:
            await opened.block.aclose()

    async def _attempt(self, offset: int, size: int) -> bytes:
        if self._ended:
            raise Closed(f"{self.name!r} was closed")
        opened = self._current or await self._reopen()
        opened.users += 1
        try:
            return await opened.reader.pread(offset, size)
        except Transient:
            if self._current is opened:
                self._current = None
            raise
        finally:
            opened.users -= 1
            if opened is not self._current and not opened.users:
                await opened.block.aclose()

    async def _reopen(self) -> _Opened:
        opened = await self._open()
        if self._ended:
            await opened.block.aclose()
            raise Closed(f"{self.name!r} was closed")
        if self._current is not None:  # Another read was faster.
            await opened.block.aclose()
            return self._current
        if opened.reader.size_bytes != self.info.size_bytes:
            await opened.block.aclose()
            raise Conflict(
                f"{self.name!r} in {self.store.url} was replaced while it was read; open it again"
            )
        self._current = opened
        return opened

    async def _open(self) -> _Opened:
        block = AsyncExitStack()
        opened = self.store.open(self.name, known=self.known, version=self.version)
        reader = await block.enter_async_context(opened)
        return _Opened(reader, block)

"""Writes that are tried again, from the object's first byte."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from bootseer.errors import Conflict, Transient
from bootseer.store.api.base import Data, Store, Writer
from bootseer.store.api.write_sequence import WriteSequence
from bootseer.store.wrappers.backoff import Backoff


@dataclass(eq=False)
class ReplayingWriter:
    """Keeps what was written, and writes all of it again after a failure.

    Nobody knows how much of a failed write arrived, so an attempt is always a whole new object.
    Once more than `limit_bytes` were written nothing is kept any more, and the next failure is
    the caller's to deal with.

    A commit that failed may have happened. With `overwrite`, the next one replaces the object by
    itself; without, a Conflict after such a failure is success if the object there has the very
    bytes written here. Whoever uses an object as a claim must thus put something of its own in it.
    """

    store: Store
    name: str
    create: Callable[[], AbstractAsyncContextManager[Writer]]
    backoff: Backoff
    limit_bytes: int
    gate: WriteSequence
    _size_bytes: int = 0
    _complete: bool = True  # `_kept` is all that was written.
    _kept: list[Data] = field(default_factory=list)
    _sent: int = 0  # How many of `_kept` the writer of this attempt has.
    _block: AsyncExitStack = field(default_factory=AsyncExitStack)
    _writer: Writer | None = None
    _in_doubt: bool = False  # A commit failed that may have happened.

    async def start(self) -> None:
        """Create the object for the first time."""
        await self._advance(commit=False)

    async def write(self, data: Data) -> None:
        with self.gate.step():
            self._size_bytes += memoryview(data).nbytes
            if self._size_bytes > self.limit_bytes:
                self._complete = False
                self._kept.clear()
                self._sent = 0
            self._kept.append(bytes(data) if self._complete else data)
            await self._advance(commit=False)

    async def commit(self) -> None:
        with self.gate.step(last=True):
            await self._advance(commit=True)

    async def end(self) -> None:
        """Discard what was not committed; nothing can be written any more."""
        self.gate.shut()
        await self._drop()

    async def _advance(self, *, commit: bool) -> None:
        if self._complete:
            await self.backoff.run(partial(self._attempt, commit))
        else:
            await self._attempt(commit)

    async def _attempt(self, commit: bool) -> None:
        try:
            if self._writer is None:
                self._writer = await self._block.enter_async_context(self.create())
                self._sent = 0
            while self._sent < len(self._kept):
                await self._writer.write(self._kept[self._sent])
                self._sent += 1
            if commit:
                await self._commit(self._writer)
        except Transient:
            await self._drop()
            raise

    async def _commit(self, writer: Writer) -> None:
        try:
            await writer.commit()
        except Transient:
            self._in_doubt = True
            raise
        except Conflict:
            if not self._in_doubt or not await self._is_there():
                raise

    async def _is_there(self) -> bool:
        async with self.store.open(self.name) as reader:
            if reader.size_bytes != self._size_bytes:
                return False
            return await reader.pread(0, self._size_bytes) == b"".join(self._kept)

    async def _drop(self) -> None:
        block, self._block = self._block, AsyncExitStack()
        self._writer = None
        await block.aclose()

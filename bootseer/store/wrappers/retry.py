"""Try again an operation of a store that failed for a passing cause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bootseer.errors import NotFound, Transient
from bootseer.store.api.base import (
    Appender,
    AppendOptions,
    CreateOptions,
    ObjectInfo,
    Reader,
    Store,
    Writer,
)
from bootseer.store.api.name import check_rename
from bootseer.store.api.write_sequence import WriteSequence
from bootseer.store.wrappers.backoff import Backoff
from bootseer.store.wrappers.base import WrappedStore
from bootseer.store.wrappers.reopen import ReopeningReader
from bootseer.store.wrappers.replay import ReplayingWriter
from bootseer.units import MIB

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

REPLAY_LIMIT_BYTES = 64 * MIB
"""What a writer keeps in memory to begin again: more than any document or stripe unit."""


class RetryStore(WrappedStore):
    """Repeats operations that are Transient, in a way that is safe for each of them.

    Reads continue on the object opened again, and writes begin again with a new object. A delete or
    rename asks first whether there is something to change: if a later attempt finds it gone, a
    failed one has worked. Put it outside of `LimitStore`, so that each attempt has its deadline.
    """

    def __init__(
        self,
        inner: Store,
        backoff: Backoff | None = None,
        *,
        replay_limit_bytes: int = REPLAY_LIMIT_BYTES,
    ) -> None:
        """Repeat the operations of `inner`.

        Args:
            inner: the store that carries them out.
            backoff: how often and when; five attempts over about a second if None.
            replay_limit_bytes: the largest object whose write begins again by itself; so much is
                kept in memory for each writer.
        """
        super().__init__(inner)
        self._backoff = backoff or Backoff()
        self._replay_limit_bytes = replay_limit_bytes

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call()` until it does not raise Transient, as often as the backoff allows."""
        return await self._backoff.run(call)

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        reader = ReopeningReader(self._inner, name, self._backoff, known, version)
        try:
            await reader.start()
            yield reader
        finally:
            await reader.end()

    @asynccontextmanager
    async def create(self, name: str, **options: Unpack[CreateOptions]) -> AsyncIterator[Writer]:
        create = partial(self._inner.create, name, **options)
        gate, limit_bytes = WriteSequence(name), self._replay_limit_bytes
        writer = ReplayingWriter(self._inner, name, create, self._backoff, limit_bytes, gate)
        try:
            await writer.start()
            yield writer
        finally:
            await writer.end()

    @asynccontextmanager
    async def append(self, name: str, **options: Unpack[AppendOptions]) -> AsyncIterator[Appender]:
        """Try once: a second attempt would find the name taken."""
        async with self._inner.append(name, **options) as appender:
            yield appender

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        check_rename(source, target)
        before = await self.stat(source)

        async def is_done() -> bool:
            try:
                after = await self._inner.stat(target)
            except NotFound:
                return False
            return after == replace(before, name=target)

        await self._change(lambda: self._inner.rename(source, target, overwrite=overwrite), is_done)

    async def delete(self, name: str) -> None:
        await self.stat(name)
        await self._change(lambda: self._inner.delete(name), _is_done)

    async def delete_tree(self, name: str) -> None:
        await self.stat(name)
        await self._change(lambda: self._inner.delete_tree(name), _is_done)

    async def _change(
        self, call: Callable[[], Awaitable[None]], is_done: Callable[[], Awaitable[bool]]
    ) -> None:
        """Repeat a change of what was there; NotFound after a failure may mean that it worked."""
        in_doubt = False

        async def attempt() -> None:
            nonlocal in_doubt
            try:
                await call()
            except Transient:
                in_doubt = True
                raise
            except NotFound:
                if not in_doubt or not await is_done():
                    raise

        await self._backoff.run(attempt)


async def _is_done() -> bool:
    """Take what is gone for removed."""
    return True

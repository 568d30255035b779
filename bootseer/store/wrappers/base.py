"""A store around a store: what wrappers have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bootseer.errors import Unavailable
from bootseer.store.api.base import (
    Appender,
    AppendOptions,
    BlockLocation,
    Capabilities,
    CreateOptions,
    Data,
    FolderListing,
    ObjectInfo,
    Placement,
    Reader,
    Store,
    StoreSpace,
    Writer,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class WrappedStore:
    """Hands every operation to another store, through one method that subclasses can replace.

    Opening an object, each read of it, creating one, each write and the commit are operations of
    their own; leaving the block is not, because stores promise that it ends.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Carry out one operation of the inner store, by awaiting `call()`.

        Args:
            operation: a method's name, of Store, Reader or Writer.
            name: the object or folder, for messages; the source of a rename.
            call: starts the operation; each call starts it again.
        """
        return await call()

    async def around_read(self, name: str, size_bytes: int, call: Callable[[], Awaitable[T]]) -> T:
        """Carry out a read of so many bytes."""
        return await self.around("pread", name, call)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def stat(self, name: str) -> ObjectInfo:
        return await self.around("stat", name, lambda: self._inner.stat(name))

    async def list(self, folder: str = "") -> FolderListing:
        return await self.around("list", folder, lambda: self._inner.list(folder))

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        async with AsyncExitStack() as block:
            opened = partial(self._inner.open, name, known=known, version=version)
            reader = await self.around("open", name, lambda: block.enter_async_context(opened()))
            yield _WrappedReader(self, reader)

    @asynccontextmanager
    async def create(self, name: str, **options: Unpack[CreateOptions]) -> AsyncIterator[Writer]:
        async with AsyncExitStack() as block:
            made = partial(self._inner.create, name, **options)
            writer = await self.around("create", name, lambda: block.enter_async_context(made()))
            yield _WrappedWriter(self, name, writer)

    @asynccontextmanager
    async def append(self, name: str, **options: Unpack[AppendOptions]) -> AsyncIterator[Appender]:
        async with AsyncExitStack() as block:
            made = partial(self._inner.append, name, **options)
            appender = await self.around("append", name, lambda: block.enter_async_context(made()))
            yield _WrappedAppender(self, name, appender)

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        await self.around(
            "rename", source, lambda: self._inner.rename(source, target, overwrite=overwrite)
        )

    async def delete(self, name: str) -> None:
        await self.around("delete", name, lambda: self._inner.delete(name))

    async def delete_tree(self, name: str) -> None:
        await self.around("delete_tree", name, lambda: self._inner.delete_tree(name))

    async def mkdir(self, name: str, *, mode: int | None = None) -> None:
        await self.around("mkdir", name, lambda: self._inner.mkdir(name, mode=mode))

    async def set_mode(self, name: str, mode: int) -> None:
        await self.around("set_mode", name, lambda: self._inner.set_mode(name, mode))

    async def set_mtime(self, name: str, mtime_ns: int) -> None:
        await self.around("set_mtime", name, lambda: self._inner.set_mtime(name, mtime_ns))

    async def set_replication(self, name: str, copies: int) -> None:
        await self.around(
            "set_replication", name, lambda: self._inner.set_replication(name, copies)
        )

    async def space(self) -> StoreSpace:
        return await self.around("space", "", self._inner.space)

    async def block_locations(self, name: str) -> Sequence[BlockLocation]:
        """Ask the inner store.

        Raises:
            Unavailable: it does not have this role.
        """
        inner = self._inner
        if not isinstance(inner, Placement):
            raise Unavailable(f"{self.url} does not tell where {name!r} is kept")
        placement: Placement = inner
        return await self.around("block_locations", name, lambda: placement.block_locations(name))

    async def reap_temporaries(self, older_than_s: float, folder: str = "") -> int:
        return await self.around(
            "reap_temporaries",
            folder,
            lambda: self._inner.reap_temporaries(older_than_s, folder),
        )


class _WrappedReader(Reader):
    def __init__(self, store: WrappedStore, reader: Reader) -> None:
        self.info = reader.info
        self._store = store
        self._reader = reader

    async def pread(self, offset: int, size: int) -> bytes:
        return await self._store.around_read(
            self.info.name, size, lambda: self._reader.pread(offset, size)
        )


@dataclass(eq=False)
class _WrappedWriter:
    store: WrappedStore
    name: str
    writer: Writer

    async def write(self, data: Data) -> None:
        await self.store.around("write", self.name, lambda: self.writer.write(data))

    async def commit(self) -> None:
        await self.store.around("commit", self.name, self.writer.commit)


@dataclass(eq=False)
class _WrappedAppender:
    store: WrappedStore
    name: str
    appender: Appender

    async def write(self, data: Data) -> None:
        await self.store.around("grow", self.name, lambda: self.appender.write(data))

    async def sync(self) -> None:
        await self.store.around("sync", self.name, self.appender.sync)

    async def finish(self) -> None:
        await self.store.around("finish", self.name, self.appender.finish)

"""Stores that fail in one way each, or are watched: wrappers, never switches in the product."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from bootseer.errors import Denied, NotFound, Transient, Unavailable
from bootseer.store.api.base import Data, FolderListing, ObjectInfo, Reader, Store, Writer
from bootseer.store.wrappers.base import WrappedStore

T = TypeVar("T")

_MAKES = frozenset(("create", "append", "write", "grow", "sync", "finish", "commit", "mkdir"))
_TAKES = frozenset(("rename", "delete", "delete_tree", "set_mode", "set_mtime", "set_replication"))
CHANGES = _MAKES | _TAKES | {"reap_temporaries"}
"""The operations that change a store."""
_NEEDS = _TAKES | {"stat", "open"}


class FlakyStore(WrappedStore):
    """Fails in passing, where a predicate says so.

    With `late`, the operation is carried out and only then fails, as when its answer is lost.

    Attributes:
        calls: every operation so far with its name, in order, the failed ones too.
    """

    def __init__(
        self, inner: Store, fails: Callable[[int, str, str], bool], *, late: bool = False
    ) -> None:
        """Fail the operations for which `fails(count, operation, name)`, counted from 1."""
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []
        self._fails = fails
        self._late = late

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append((operation, name))
        if not self._fails(len(self.calls), operation, name):
            return await call()
        if self._late:
            await call()
        raise Transient(f"cannot {operation} {name!r}: flaky on purpose")


def every(n: int) -> Callable[[int, str, str], bool]:
    """Choose every n-th operation."""
    return lambda count, operation, name: count % n == 0


def first(n: int, chosen: str) -> Callable[[int, str, str], bool]:
    """Choose the first `n` operations of the kind `chosen`."""
    left = n

    def fails(count: int, operation: str, name: str) -> bool:
        nonlocal left
        if operation != chosen or left == 0:
            return False
        left -= 1
        return True

    return fails


class SlowStore(WrappedStore):
    """Takes a while before each operation; combine with trio's autojump clock."""

    def __init__(self, inner: Store, latency_s: float) -> None:
        super().__init__(inner)
        self._latency_s = latency_s

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        await trio.sleep(self._latency_s)
        return await call()


class HangingStore(WrappedStore):
    """Never answers, until cancelled.

    Attributes:
        operations: which ones hang; all if None. A test may change it on the way.
    """

    def __init__(self, inner: Store, operations: Container[str] | None = None) -> None:
        super().__init__(inner)
        self.operations = operations

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        if self.operations is None or operation in self.operations:
            await trio.sleep_forever()
        return await call()


class ReadOnlyStore(WrappedStore):
    """Denies every change, like a file system that is mounted read-only."""

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        if operation in CHANGES:
            await trio.lowlevel.checkpoint()
            raise Denied(f"cannot {operation} {name!r} in {self.url}: it is read-only")
        return await call()


class MissingStore(WrappedStore):
    """Has lost objects that it once had: those that a predicate chooses, or all."""

    def __init__(self, inner: Store, is_missing: Callable[[str], bool] | None = None) -> None:
        """Lose the objects for which `is_missing(name)`."""
        super().__init__(inner)
        self._is_missing = is_missing or (lambda name: True)

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        if operation in _NEEDS and self._is_missing(name):
            await trio.lowlevel.checkpoint()
            raise NotFound(f"cannot {operation} {name!r} in {self.url}: missing on purpose")
        return await call()

    async def list(self, folder: str = "") -> FolderListing:
        listing = await super().list(folder)
        return FolderListing(info for info in listing if not self._is_missing(info.name))


class FullStore(WrappedStore):
    """Has room for a number of bytes, counted over everything that is written."""

    def __init__(self, inner: Store, capacity_bytes: int) -> None:
        """Take `capacity_bytes`, and nothing after them."""
        super().__init__(inner)
        self._left_bytes = capacity_bytes

    @asynccontextmanager
    async def create(self, name: str, **options: Any) -> AsyncIterator[Writer]:
        async with super().create(name, **options) as writer:
            yield _FullWriter(self, name, writer)

    def take(self, name: str, size_bytes: int) -> None:
        """Count bytes about to be written.

        Raises:
            Unavailable: there is no room for them.
        """
        if size_bytes > self._left_bytes:
            raise Unavailable(f"cannot write {name!r} in {self.url}: no space left")
        self._left_bytes -= size_bytes


@dataclass(eq=False)
class _FullWriter:
    store: FullStore
    name: str
    writer: Writer

    async def write(self, data: Data) -> None:
        self.store.take(self.name, memoryview(data).nbytes)
        await self.writer.write(data)

    async def commit(self) -> None:
        await self.writer.commit()


class TornStore(WrappedStore):
    """Says that all is well and stores something else, like a disk that lies."""

    def __init__(self, inner: Store, damage: Callable[[bytes], bytes] | None = None) -> None:
        """Store `damage(content)` for each object; the first half of it if None."""
        super().__init__(inner)
        self._damage = damage or (lambda content: content[: len(content) // 2])

    @asynccontextmanager
    async def create(self, name: str, **options: Any) -> AsyncIterator[Writer]:
        async with super().create(name, **options) as writer:
            yield _TornWriter(writer, self._damage)


class _TornWriter:
    def __init__(self, writer: Writer, damage: Callable[[bytes], bytes]) -> None:
        self._writer = writer
        self._damage = damage
        self._content = bytearray()

    async def write(self, data: Data) -> None:
        await trio.lowlevel.checkpoint()
        self._content += data

    async def commit(self) -> None:
        await self._writer.write(self._damage(bytes(self._content)))
        await self._writer.commit()


def flip_bit(content: bytes) -> bytes:
    """Damage for `TornStore`: the same length, one bit in the middle wrong."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class OpenCountingStore(WrappedStore):
    """Counts its readers.

    Attributes:
        open_now: how many are open.
        opened: how many there have been.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.open_now = self.opened = 0

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        async with super().open(name, known=known, version=version) as reader:
            self.open_now += 1
            self.opened += 1
            try:
                yield reader
            finally:
                self.open_now -= 1

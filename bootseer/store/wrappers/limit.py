"""A deadline for each operation, and how many may be under way at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from bootseer.errors import Transient
from bootseer.store.api.base import Store
from bootseer.store.wrappers.base import WrappedStore
from bootseer.units import KIB

T = TypeVar("T")
_LEAST_RATE = 128 * KIB
"""Of one read, in bytes per second: a store that gives less is as good as gone."""


class LimitStore(WrappedStore):
    """Ends operations that take too long, and makes those wait that are too many.

    A deadline counts from when the operation may start, not while it waits for others to end:
    they have deadlines too. A read has as much time more as its bytes take at `_LEAST_RATE`: on a
    full link it has not failed, and once more would fill the link further. A write has no more
    time: nothing else notices a machine that is silent in the midst of it. A deadline that has
    passed is Transient, because the next attempt may reach a store that is well again; whether a
    change was made is then unknown, as with a cancelled one.

    Concurrency: `operations` is shared by all tasks; give one limiter to several stores of the same
    servers to limit them together.
    """

    def __init__(
        self, inner: Store, *, deadline_s: float, operations: trio.CapacityLimiter
    ) -> None:
        """Limit the operations of `inner`.

        Args:
            inner: the store that carries them out.
            deadline_s: the longest for one operation, besides the time for bytes that are read.
            operations: how many at once.
        """
        super().__init__(inner)
        self._deadline_s = deadline_s
        self._operations = operations

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call()` for as long as the deadline allows.

        Raises:
            Transient: the deadline passed.
        """
        return await self._within(self._deadline_s, operation, name, call)

    async def around_read(self, name: str, size_bytes: int, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call()` as `around` does, and longer for many bytes."""
        return await self._within(self._deadline_s + size_bytes / _LEAST_RATE, "pread", name, call)

    async def _within(
        self, deadline_s: float, operation: str, name: str, call: Callable[[], Awaitable[T]]
    ) -> T:
        async with self._operations:
            with trio.move_on_after(deadline_s):
                return await call()
        raise Transient(
            f"cannot {operation} {name!r} in {self.url}: no answer within {deadline_s:.3g} s"
        )

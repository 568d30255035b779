"""A deadline for each operation, and how many may be under way at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from bootseer.errors import Transient
from bootseer.store.api.base import Store
from bootseer.store.wrappers.base import WrappedStore

T = TypeVar("T")


class LimitStore(WrappedStore):
    """Ends operations that take too long, and makes those wait that are too many.

    A deadline counts from when the operation may start, not while it waits for others to end:
    they have deadlines too. One that has passed is Transient, because the next attempt may reach a
    store that is well again; whether a change was made is then unknown, as with a cancelled one.

    Concurrency: `operations` is shared by all tasks; give one limiter to several stores of the same
    servers to limit them together.
    """

    def __init__(
        self, inner: Store, *, deadline_s: float, operations: trio.CapacityLimiter
    ) -> None:
        """Limit the operations of `inner`.

        Args:
            inner: the store that carries them out.
            deadline_s: the longest for one operation; a read or write of a large piece is one.
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
        async with self._operations:
            with trio.move_on_after(self._deadline_s):
                return await call()
        raise Transient(
            f"cannot {operation} {name!r} in {self.url}: no answer within {self._deadline_s:g} s"
        )

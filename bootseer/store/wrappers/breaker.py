"""A circuit breaker: a store that does not answer is left alone."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from bootseer.errors import BootseerError, Transient, Unavailable
from bootseer.store.api.base import Store
from bootseer.store.wrappers.base import WrappedStore

T = TypeVar("T")


class BreakerStore(WrappedStore):
    """Fails at once, and for good, after an outage: what is to be done may be many operations.

    An outage is an operation that is still Transient after its retries, or a first answer that does
    not come in time. Put it outside of `RetryStore`.

    Concurrency: an outage ends the operations that are under way.

    Attributes:
        outage: why the store is not used any more; "" while it is.
    """

    def __init__(
        self,
        inner: Store,
        first_answer_s: float,
        on_outage: Callable[[str], Awaitable[None]],
        outage: str = "",
    ) -> None:
        """Use a store until an outage.

        Args:
            inner: the store that carries the operations out.
            first_answer_s: within which one operation must have had an answer, with its retries.
            on_outage: told the reason, once.
            outage: one that is known already, which `on_outage` is not told.
        """
        super().__init__(inner)
        self.outage = outage
        self._first_answer_s = first_answer_s
        self._on_outage = on_outage
        self._waiting: set[trio.CancelScope] = set()
        self._has_answered = False

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call()`, unless there is or was an outage.

        Raises:
            Unavailable: there was an outage, or this is one.
        """
        if self.outage:
            raise Unavailable(self._reason())
        why = f"no answer within {self._first_answer_s:g} s"
        with self._limit() as scope:
            try:
                result = await call()
            except Transient as error:
                why = str(error)
            except BootseerError:
                self._note_answer()
                raise
            else:
                self._note_answer()
                return result
            finally:
                self._waiting.discard(scope)
        if not self.outage:
            self.outage = why
            for other in self._waiting:
                other.cancel()
            await self._on_outage(why)
        raise Unavailable(self._reason())

    def _limit(self) -> trio.CancelScope:
        within_s = math.inf if self._has_answered else self._first_answer_s
        scope = trio.CancelScope(deadline=trio.current_time() + within_s)
        self._waiting.add(scope)
        return scope

    def _note_answer(self) -> None:
        self._has_answered = True
        for scope in self._waiting:
            scope.deadline = math.inf

    def _reason(self) -> str:
        return f"store {self.url} does not answer: {self.outage}"

"""Decide when fetches start: at once if a reader waits for them, else as streams become free.

The owner of a scheduler knows what each fetch brings, so readers join a fetch there; and it keeps
the queue of read-ahead, in an order of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio


@dataclass(eq=False, slots=True, kw_only=True)
class Fetch:
    """One fetch, shared by all readers that wait for it.

    Attributes:
        has_started: it does not wait for a stream any more.
        is_urgent: it was started because a reader waits for it; one that a reader joins later stays
            read-ahead.
        has_stream: it counts as running.
        ended: set when readers need not wait any longer.
    """

    has_started: bool = False
    is_urgent: bool = False
    has_stream: bool = False
    ended: trio.Event = field(default_factory=trio.Event)


F = TypeVar("F", bound=Fetch)


@dataclass(eq=False)
class FetchScheduler(Generic[F]):
    """Starts fetches as tasks. Urgent ones are not limited, read-ahead is.

    Concurrency: the tasks of one trio run.

    Attributes:
        running: the number of fetches that have a stream, urgent (True) and read-ahead (False).
        nursery: runs the fetches, which go on when the readers that wait are cancelled.
        run: carries a fetch out.
        next_ahead: takes the next read-ahead out of the owner's queue; None if none may start
            now.
        streams: the number of read-ahead fetches that run at once.
        streams_beside_urgent: the same while an urgent fetch runs.
    """

    nursery: trio.Nursery
    run: Callable[[F], Awaitable[None]]
    next_ahead: Callable[[], F | None]
    streams: int
    streams_beside_urgent: int
    running: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def promote(self, fetch: F) -> None:
        """Start a fetch now, for a reader; does nothing if it has started already."""
        if not fetch.has_started:
            self._start(fetch, is_urgent=True)

    def start_ahead(self) -> None:
        """Start read-ahead while there are streams for it."""
        streams = self.streams_beside_urgent if self.running[True] else self.streams
        while self.running[False] < streams and (fetch := self.next_ahead()) is not None:
            self._start(fetch, is_urgent=False)

    def release(self, fetch: F) -> None:
        """Give the stream of a fetch to the next: it is not needed for what is left to be done."""
        if fetch.has_stream:
            fetch.has_stream = False
            self.running[fetch.is_urgent] -= 1
            self.start_ahead()

    def _start(self, fetch: F, *, is_urgent: bool) -> None:
        fetch.has_started = fetch.has_stream = True
        fetch.is_urgent = is_urgent
        self.running[is_urgent] += 1
        self.nursery.start_soon(self._carry_out, fetch)

    async def _carry_out(self, fetch: F) -> None:
        try:
            await self.run(fetch)
        finally:
            self.release(fetch)

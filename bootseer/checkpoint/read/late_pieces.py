"""Fetch a piece once more beside the first fetch when it takes much longer than others do.

A machine may hang, and another copy of the piece be at hand. On a full link, which many nodes
share, all pieces are late, and come in their order: each that is fetched twice makes all others
later.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from math import inf

import trio

from bootseer.errors import BootseerError

_FACTOR = 4
"""A piece is late after so many times the time of others."""
_LEAST_S = 0.5
_KNOWN = 4
"""Of so many others, at least."""
_FIRST_S = 3.0
"""After so long otherwise."""
_SHARE = 8
"""One stream in so many may fetch a piece a second time."""
_HOLDS = 4
"""A second fetch makes room for others after so many times the patience: it may hang as well."""
_BLIND_S = 20.0
"""How much longer a late piece is waited for as long as no later one has come."""


class LatePieces:
    """What the files of a mount share.

    Concurrency: the tasks of one trio run.

    Attributes:
        fetched_twice: so many pieces were.
    """

    def __init__(self, streams: int, under_way: Callable[[], int]) -> None:
        """Begin with no piece under way.

        Args:
            streams: fetches at once; see `set_streams`.
            under_way: tells how many pieces are.
        """
        self.fetched_twice = 0
        self._under_way = under_way
        self._newest_s = -inf
        self._answers = trio.lowlevel.ParkingLot()
        self._seconds = trio.CapacityLimiter(1)
        self.set_streams(streams)

    def set_streams(self, streams: int) -> None:
        """Set how many pieces are fetched at once."""
        self._seconds.total_tokens = -(-streams // _SHARE)

    async def fetch(
        self,
        fetch: Callable[[int], Awaitable[bytes]],
        attempt: int,
        second: int,
        others_s: Sequence[float],
    ) -> bytes:
        """Fetch a piece.

        Args:
            fetch: does so, by the number of an attempt.
            attempt: of the first fetch.
            second: of one beside it.
            others_s: how long some other pieces took.

        Raises:
            BootseerError: of the first fetch.
        """
        answers: list[bytes] = []
        errors: list[BootseerError] = []
        began_s = trio.current_time()

        async def one(which: int, scope: trio.CancelScope) -> None:
            try:
                answers.append(await fetch(which))
                scope.cancel()
            except BootseerError as error:
                errors.append(error)
                if which == attempt:
                    scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, attempt, nursery.cancel_scope)
            patience_s = _patience_s(others_s)
            await trio.sleep(patience_s)
            with trio.move_on_after(_BLIND_S):
                await self._overtaken(began_s)
            async with self._seconds:
                self.fetched_twice += 1
                nursery.start_soon(one, second, nursery.cancel_scope)
                await trio.sleep(_HOLDS * patience_s)
        if not answers:
            raise errors[0]
        self._newest_s = max(self._newest_s, began_s)
        self._answers.unpark_all()
        return answers[0]

    async def _overtaken(self, began_s: float) -> None:
        """Wait until a piece has come that was asked for later, or nothing else is under way."""
        while self._newest_s < began_s and self._under_way() > 1:
            await self._answers.park()


def _patience_s(others_s: Sequence[float]) -> float:
    if len(others_s) < _KNOWN:
        return _FIRST_S
    return max(_LEAST_S, _FACTOR * statistics.median(others_s))

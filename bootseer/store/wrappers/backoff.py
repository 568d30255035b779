"""How often a failed operation is tried again, and how long to wait in between."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import trio

from bootseer.errors import Transient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """A bounded number of attempts with growing pauses.

    The pause doubles from `first_s` up to `longest_s`, and each is cut by up to a half at random,
    so that a thousand nodes that failed together do not come back together.

    Attributes:
        attempts: how often in all, at least 1.
        first_s: seconds before the second attempt.
        longest_s: seconds that no pause exceeds.
    """

    attempts: int = 5
    first_s: float = 0.1
    longest_s: float = 5.0

    @classmethod
    def lasting(cls, seconds: float) -> Backoff:
        """Return one that does not give up before so many seconds, however soon each attempt fails.

        Attempts that take their time make it longer: it is for those whose callers have deadlines.
        """
        backoff, left_s, attempts = cls(), seconds, 1
        while left_s > 0:
            left_s -= min(backoff.longest_s, backoff.first_s * 2.0 ** min(attempts - 1, 30)) / 2
            attempts += 1
        return cls(attempts=max(attempts, backoff.attempts))

    def pause_s(self, attempt: int) -> float:
        """Return how long to wait after the attempt of that number, counted from 1."""
        whole = min(self.longest_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return whole * random.uniform(0.5, 1.0)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call()` until it does not raise Transient.

        Raises:
            Transient: the last attempt failed too.
        """
        for attempt in itertools.count(1):
            try:
                return await call()
            except Transient as error:
                if attempt >= self.attempts:
                    raise Transient(f"{error} (gave up after {attempt} attempts)") from error
            await trio.sleep(self.pause_s(attempt))
        raise AssertionError("the attempts are counted without end")

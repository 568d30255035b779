"""Simulations: many actors in one trio run, with a clock that jumps and chance that repeats itself.

A simulation draws a plan with Hypothesis, carries it out in `deterministic`, and compares what
happened with what may. It runs shortly with the other tests, and for as long as one likes with
`search`; `without` takes a mend out again, to see that the simulation finds what was mended.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import secrets
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, TypeVar

import hypothesis
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from bootseer.errors import Transient, Unavailable
from bootseer.store.api.base import Store
from bootseer.store.wrappers.base import WrappedStore

T = TypeVar("T")
SETTINGS = settings(
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
_PAUSES_S = (0.0, 0.0, 0.01, 0.1)


class Died(BaseException):
    """The process has been killed: of all that it was about, nothing happens any more."""


class Plan(Protocol):
    """What is drawn for a run.

    Attributes:
        steps: of it.
    """

    steps: list[Any]


class Way(WrappedStore):
    """How one process comes to the store: late at every step, and away for a while.

    Attributes:
        failing: by operation, how likely it is to fail before it is done, and after.
        failures: how many operations have failed.
        is_dead: the process has died.
    """

    def __init__(self, inner: Store, seed: int, operations: Sequence[str]) -> None:
        """Wrap a store; of these operations, some fail once `fail` has been called."""
        super().__init__(inner)
        self.failing: dict[str, tuple[float, float]] = {}
        self.failures = 0
        self.is_dead = False
        self._operations = operations
        self._random = random.Random(seed)

    def fail(self) -> None:
        """Fail from now on: now and then whatever is asked, or mostly one thing once it is done."""
        if self._random.random() < 0.5:
            self.failing = dict.fromkeys(self._operations, (0.15, 0.15))
        else:
            self.failing = {self._random.choice(self._operations): (0.0, 0.7)}

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        early, late = self.failing.get(operation, (0.0, 0.0))
        await self._pause()
        kind = self._random.choice([Transient, Unavailable])
        fate = self._random.random()
        self.failures += fate < early + late
        if fate < early:
            raise kind(f"{operation} {name} was not done")
        done = await call()
        await self._pause()
        if fate < early + late:
            raise kind(f"whether {operation} {name} was done cannot be told")
        return done

    async def _pause(self) -> None:
        await trio.sleep(self._random.choice(_PAUSES_S))
        if self.is_dead:
            raise Died


@contextmanager
def ending_with(kind: type[BaseException]) -> Iterator[None]:
    """Go on after errors of one kind, and no others."""
    try:
        yield
    except kind:
        return
    except BaseException as error:
        if not hasattr(error, "split"):
            raise
        if (others := error.split(kind)[1]) is not None:
            raise others from None


def deterministic(seed: int, run: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Run something in trio so that the same seed leads to the same steps.

    Time stands still while anything runs, and jumps when all wait: nothing may wait for a thread.
    """
    chance = random.Random(seed)
    random.seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda size: chance.randbytes(size).hex())
        patch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        trio._core._run._r.seed(seed)
        clock = trio.testing.MockClock(autojump_threshold=0)
        now_ns = time.time_ns()
        patch.setattr(time, "time_ns", lambda: now_ns + int(clock.current_time() * 1e9))
        trio.run(run, *arguments, clock=clock)


async def in_this_thread(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Stand in for `trio.to_thread.run_sync`, which a clock that jumps does not wait for."""
    await trio.lowlevel.checkpoint()
    return call(*arguments)


def search(
    plans: SearchStrategy[Any],
    check: Callable[[Any], None],
    at_once: int = 2000,
    phases: Sequence[Phase] = tuple(Phase),
) -> int:
    """Check others each time, for as many seconds as BOOTSEER_SIMULATE_S says (60).

    Args:
        plans: that may be drawn.
        check: carries one out.
        at_once: with one seed; the time is looked at after them.
        phases: of Hypothesis's; what is not deterministic cannot be made smaller.

    Returns:
        How many plans were carried out.
    """
    until = time.monotonic() + float(os.environ.get("BOOTSEER_SIMULATE_S", "60"))
    runs = steps = 0

    def one(plan: Plan) -> None:
        nonlocal runs, steps
        runs += 1
        steps += len(plan.steps)
        check(plan)

    for number in count(secrets.randbelow(2**32)):
        print(f"seed {number}: {runs:,} runs, {steps:,} steps")
        some = settings(SETTINGS, max_examples=at_once, phases=phases)
        hypothesis.seed(number)(some(given(plans)(one)))()
        if time.monotonic() > until:
            break
    return runs


@contextmanager
def without(owner: Any, name: str, there: str, instead: str) -> Iterator[None]:
    """Have a function with some of its text replaced.

    Args:
        owner: class or module.
        name: of the function in it.
        there: the text, which is in it once.
        instead: what is there instead.
    """
    function = getattr(owner, name)
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(there) == 1
    code = compile(
        text.replace(there, instead), f"{name} without {there}", "exec", annotations.compiler_flag
    )
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, made[name])
        yield


def first_difference(plans: SearchStrategy[Any], check: Callable[[Any], None]) -> Exception:
    """Search until something is found, and return that.

    Raises:
        AssertionError: nothing was.
    """
    only = settings(SETTINGS, max_examples=20_000, phases=[Phase.generate])
    try:
        hypothesis.seed(1)(only(given(plans)(check)))()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was found
        first = error
        while hasattr(first, "exceptions"):
            first = first.exceptions[0]
        return first
    raise AssertionError("nothing was found")


@contextmanager
def no_logs() -> Iterator[None]:
    """Keep nothing of what is logged, which would be gigabytes."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)

"""Run tasks in parallel, and raise the first error by itself, not in a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from bootseer.errors import BootseerError

T = TypeVar("T")


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Call `work` with each item, `at_once` at a time.

    Raises:
        BootseerError, OSError: the first that `work` raised; the other calls are cancelled.
    """
    waiting = iter(items)
    errors: list[BootseerError | OSError] = []

    async def some(scope: trio.CancelScope) -> None:
        for item in waiting:
            try:
                await work(item)
            except (BootseerError, OSError) as error:
                errors.append(error)
                scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(some, nursery.cancel_scope)
    if errors:
        raise errors[0]


@asynccontextmanager
async def background() -> AsyncIterator[trio.Nursery]:
    """Open a nursery for the length of a block, and cancel its tasks at the end.

    A `BootseerError` that ends the block is raised by itself, not in a group.
    """
    ended: BootseerError | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except BootseerError as error:
            ended = error
        nursery.cancel_scope.cancel()
    if ended is not None:
        raise ended

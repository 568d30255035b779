"""Unexpected errors: each is logged and counted, and ends what it came from and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

MAX_LOGGED = 100
"""Tracebacks of one job: whoever finds a way to cause them can do so again and again."""

_log = logging.getLogger("agent")
_count = 0


def count() -> int:
    """Return how many unexpected errors there were."""
    return _count


def contain(what: str) -> None:
    """Log the error that is being handled, with its traceback, and count it.

    Args:
        what: the request or task that it ended.
    """
    global _count
    _count += 1
    if _count <= MAX_LOGGED:
        _log.exception("unexpected error in %s", what)


async def contained(
    what: str, report: Callable[[str], None], work: Callable[..., Awaitable[Any]], *args: Any
) -> None:
    """Run a task whose unexpected errors end the task, and not its siblings.

    Args:
        what: names the task in the log.
        report: told once it has ended by an error.
        work, args: the task.
    """
    try:
        await work(*args)
    except Exception as error:  # noqa: BLE001 (see above)
        contain(what)
        report(f"{what} ended: internal error {type(error).__name__}; agent.log says more")

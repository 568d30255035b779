"""Contain unexpected errors: log and count each, and end only the task it came from."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

MAX_LOGGED = 100
"""Limit of tracebacks logged for one job: a user may cause errors repeatedly."""

_log = logging.getLogger("agent")
_count = 0


def count() -> int:
    """Return the number of unexpected errors so far."""
    return _count


def contain(what: str) -> None:
    """Log the error that is being handled, with its traceback, and count it.

    Args:
        what: the request or task that the error ended.
    """
    global _count
    _count += 1
    if _count <= MAX_LOGGED:
        _log.exception("unexpected error in %s", what)


async def contained(
    what: str, report: Callable[[str], None], work: Callable[..., Awaitable[Any]], *args: Any
) -> None:
    """Run a task; an unexpected error ends it but not its siblings.

    Args:
        what: names the task in the log.
        report: called with a message if the task ended by an error.
        work, args: the task.
    """
    try:
        await work(*args)
    except Exception as error:  # noqa: BLE001 (see above)
        contain(what)
        report(f"{what} ended: internal error {type(error).__name__}; see agent.log")

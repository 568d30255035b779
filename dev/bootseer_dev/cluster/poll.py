"""Wait for a condition, with a deadline and a reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from bootseer.errors import Unavailable

T = TypeVar("T")

_INTERVAL_S = 0.02


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    timeout_s: float = 10,
    explain: Callable[[], str] = str,
) -> T:
    """Call `condition` until what it returns is true, and return that.

    Args:
        condition: called about fifty times a second.
        what: what is waited for, as the error words it: "all nodes idle".
        timeout_s: the longest to wait, in seconds.
        explain: called on failure; its text is appended to the error.

    Raises:
        Unavailable: the condition was not met in time.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise Unavailable(f"not within {timeout_s:g} s: {what}. {explain()}".strip())
        time.sleep(_INTERVAL_S)
    return value

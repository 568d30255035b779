"""Redirect the output of processes with a user's rights.

Their output must not go to agent.log directly: root reads that, and the output is unlimited and
untrusted.
"""

from __future__ import annotations

import os

_OUTPUT = (1, 2)


def direct_output(pipe: int | None) -> None:
    """Redirect standard output and error to a pipe, or to /dev/null.

    Args:
        pipe: descriptor, closed here; None for /dev/null.
    """
    target = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if pipe is None else pipe
    for number in _OUTPUT:
        os.dup2(target, number)
    os.close(target)

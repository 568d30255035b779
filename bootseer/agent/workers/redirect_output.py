"""Where goes what a process with a user's rights prints: not to agent.log, which is root's to read.

What is printed may hold anything, and be any amount.
"""

from __future__ import annotations

import os

_OUTPUT = (1, 2)


def direct_output(pipe: int | None) -> None:
    """Have standard output and error go to a pipe, or nowhere.

    Args:
        pipe: descriptor, closed here; None for nowhere.
    """
    target = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if pipe is None else pipe
    for number in _OUTPUT:
        os.dup2(target, number)
    os.close(target)

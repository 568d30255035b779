"""Report a point of a job's start to its agent, without the rest of the command line."""

from __future__ import annotations

import os
import sys
import time

from bootseer.agent.messages.control import Done, TellEvent
from bootseer.agent.node import control_client
from bootseer.errors import BootseerError


def mark(name: str, *, is_quiet: bool = False) -> None:
    """Report a point of the start to the job's agent; prints an error if that fails.

    Args:
        name: name of the point.
        is_quiet: do not print errors.
    """
    now = time.time_ns()
    path = os.environ.get("BOOTSEER_SOCKET")
    try:
        if not path:
            raise BootseerError("BOOTSEER_SOCKET is not set: not inside a job with --bootseer")
        rank = int(os.environ.get("SLURM_PROCID", "-1"))
        event = TellEvent(f"mark.{name}", now, now, rank=rank)
        control_client.ask(path, event, Done, deadline_s=2)
    except (BootseerError, ValueError) as error:
        if not is_quiet:
            print(f"bootseer mark: {error}", file=sys.stderr)

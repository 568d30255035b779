"""The `bootseer` program: what every task of a job may run does without the rest of it."""

from __future__ import annotations

import os
import sys
import time

from bootseer.agent.messages.control import Done, TellEvent
from bootseer.agent.node import control_client
from bootseer.errors import BootseerError


def main() -> None:
    """Run the command line."""
    match sys.argv[1:]:
        case ["mark", name] if not name.startswith("-"):
            mark(name)
        case _:
            from bootseer.cli.main import main as run

            run()


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

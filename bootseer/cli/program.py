"""The `bootseer` program: what every task of a job may run does without the rest of it."""

from __future__ import annotations

import gc
import sys

_GC_THRESHOLD = 100_000
"""New objects between two passes of the garbage collector: at 700, its default, passes over what
imports make, which stays, are 6 % of a `bootseer report`."""


def main() -> None:
    """Run the command line."""
    gc.set_threshold(_GC_THRESHOLD)
    match sys.argv[1:]:
        case ["mark", name] if not name.startswith("-"):
            from bootseer.cli.send_mark import mark

            mark(name)
        case _:
            from bootseer.cli.main import main as run

            run()

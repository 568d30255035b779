"""The `bootseer` program: what every task of a job may run does without the rest of it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    match sys.argv[1:]:
        case ["mark", name] if not name.startswith("-"):
            from bootseer.cli.send_mark import mark

            mark(name)
        case _:
            from bootseer.cli.main import main as run

            run()

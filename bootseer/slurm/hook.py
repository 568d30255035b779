"""What prolog and epilog have in common."""

from __future__ import annotations

import os


def log_line(line: str) -> None:
    """Print a line for the slurmd log, and no more than one; nobody listening is no reason to fail.

    Names and paths of the user's are in it.
    """
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    try:
        os.write(1, shown.encode(errors="backslashreplace") + b"\n")
    except OSError:
        return

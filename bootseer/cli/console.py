"""Where commands print tables, and text with styles."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

UNLIMITED = 1 << 16
"""Columns: no line of ours is as long."""
_LINES = 25


def console(*, err: bool = False) -> Console:
    """Return one that is as wide as the terminal; in a pipe or a file no line is wrapped or cut.

    Args:
        err: for standard error instead of standard output.
    """
    from rich.console import Console

    if (sys.stderr if err else sys.stdout).isatty():
        return Console(stderr=err)
    return Console(stderr=err, width=UNLIMITED, height=_LINES)


def plain(text: str, style: str = "") -> Text:
    """Show text that anybody may have written: no markup, and nothing that a terminal obeys."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else "\ufffd" for c in text), style)

"""Where commands print tables and text with styles, and how they write what others named."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from bootseer.units import NS_PER_S

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod
    from rich.table import Table
    from rich.text import Text

UNLIMITED = 1 << 16
"""Columns: no line of ours is as long."""
_LINES = 25


def console(*, err: bool = False) -> Console:
    """Return a console as wide as the terminal; in pipes and files no line is wrapped or cut.

    Args:
        err: for standard error instead of standard output.
    """
    from rich.console import Console

    if (sys.stderr if err else sys.stdout).isatty():
        return Console(stderr=err)
    return Console(stderr=err, width=UNLIMITED, height=_LINES)


def line_width() -> int:
    """Return the width of the terminal that standard output is; `UNLIMITED` for pipes and files."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def print_lines(lines: Iterable[str]) -> None:
    """Print lines with click's styles; without these where the terminal shall or can not show any.

    See https://no-color.org.
    """
    is_colourless = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    click.echo("\n".join(lines), color=False if is_colourless else None)


def plain(text: str, style: str = "") -> Text:
    """Return text of any origin without markup and control characters."""
    from rich.text import Text

    return Text(printable(text), style)


def printable(text: str) -> str:
    """Return text of any origin without control characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def new_table(*columns: str, overflow: OverflowMethod = "fold") -> Table:
    """Return an empty table without lines, with these headings."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow=overflow)
    return table


def print_json(document: object) -> None:
    """Print what JSON can carry, as ``--json`` does."""
    click.echo(json.dumps(document, indent=1))


def local_time(time_ns: int) -> str:
    """Format nanoseconds since 1970 as this machine's date and time, to the minute."""
    when = datetime.fromtimestamp(time_ns / NS_PER_S, timezone.utc).astimezone()
    return f"{when:%Y-%m-%d %H:%M}"

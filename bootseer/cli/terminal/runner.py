"""Run what takes its time: signals end it in order, and a bar on a terminal shows how far it is."""

from __future__ import annotations

import os
import pwd
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import click
import trio

from bootseer.cli.terminal.console import console
from bootseer.config import User
from bootseer.errors import BootseerError

T = TypeVar("T")

_QUIET_S = 1.0
"""What takes less shows no bar."""


class CountedWork(Protocol):
    """Progress of some work; a total of zero is not known yet."""

    total_bytes: int
    done_bytes: int


def run(
    work: Callable[[], Awaitable[T]],
    *,
    counted: CountedWork | None = None,
    bar: str = "",
    after: str = "no changes made",
) -> T:
    """Run ``work`` until it returns, fails or a signal arrives, which ends the program.

    Args:
        work: to be run.
        counted: its progress.
        bar: verb of the progress bar on a terminal; no bar if empty.
        after: printed after an interruption.
    """
    results: list[T] = []
    errors: list[BootseerError] = []
    caught: list[int] = []

    async def main() -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    async for number in signals:
                        caught.append(number)
                        nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                if counted is not None and bar and sys.stderr.isatty():
                    nursery.start_soon(_show, bar, counted)
                try:
                    results.append(await work())
                except BootseerError as error:
                    errors.append(error)
                nursery.cancel_scope.cancel()

    trio.run(main)
    if results:
        return results[0]
    if errors:
        raise errors[0]
    print_line(f"bootseer: interrupted: {after}", err=True)
    sys.exit(128 + caught[0])


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line without control characters, which names of others may contain."""
    click.echo("".join(c if c.isprintable() else "?" for c in text), err=err)


def caller() -> User:
    """Return the user who runs the command."""
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # as in a container
        return User(str(uid), uid, os.path.expanduser("~"))
    return User(entry.pw_name, uid, entry.pw_dir)


async def _show(verb: str, counted: CountedWork) -> None:
    await trio.sleep(_QUIET_S)
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task(verb, total=None)
        while True:
            bar.update(task, total=counted.total_bytes or None, completed=counted.done_bytes)
            await trio.sleep(0.1)

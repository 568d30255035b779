"""What all of ``bootseer ckpt`` has in common: the tree, and what is said."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bootseer import config as settings
from bootseer.checkpoint.batch import Failure, Tally
from bootseer.checkpoint.mount import keep_large_buffers
from bootseer.checkpoint.tree import CheckpointTree
from bootseer.cli import running
from bootseer.cli.running import caller, say
from bootseer.errors import BootseerError
from bootseer.store.base import Store
from bootseer.store.connect import connect_to
from bootseer.store.locate import divide
from bootseer.units import format_duration, format_size

T = TypeVar("T")

OPERATIONS = 32
"""At once: as many as the stores have threads."""


def run(
    url: str,
    work: Callable[[CheckpointTree, str], Awaitable[T]],
    *,
    tally: Tally | None = None,
    bar: str = "",
    after: str = "nothing was changed",
) -> T:
    """Run ``work`` on the tree of a URL and the name in it, as the calling user.

    Args:
        url: of a file or folder in a store.
        work: what is to be done.
        tally: how far it is; what has failed is named even if it cannot be brought to an end.
        bar: the verb for a bar on a terminal; none if empty.
        after: what to say when it is interrupted.
    """
    root, name = divide(url)
    keep_large_buffers()

    async def main() -> T:
        return await work(CheckpointTree(open_at(root)), name)

    try:
        return running.run(main, counted=tally, bar=bar, after=after)
    except (BootseerError, SystemExit) as end:
        for failure in tally.failures if tally else ():
            if failure.error is not end:
                _say_failure(failure)
        raise


def move(
    url: str,
    work: Callable[[CheckpointTree, str, Tally], Awaitable[None]],
    verb: str,
    *,
    quiet: bool,
) -> None:
    """Bring files to or from a URL, and say what was done; ends the program if something failed.

    Args:
        url: as in `run`.
        work: what is to be done, and counted in the tally it is given.
        verb: "import" or "export".
        quiet: say only what has failed.
    """
    tally = Tally()
    began = time.monotonic()

    async def counted(tree: CheckpointTree, name: str) -> None:
        await work(tree, name, tally)

    bar = "" if quiet else verb
    run(url, counted, tally=tally, bar=bar, after="run the same command again to go on")
    conclude(f"{verb}ed", tally, began, quiet=quiet)


def open_at(url: str) -> Store:
    """Open the store that begins at a URL, as the calling user."""
    config = settings.load()
    return connect_to(url, config, caller(), private=False, operations=OPERATIONS)


def summary(verb: str, tally: Tally, began: float) -> str:
    """Say what was done, and how fast."""
    took_s = max(time.monotonic() - began, 1e-3)
    rate = f" ({tally.moved_bytes / took_s / 1e6:.0f} MB/s)" if tally.moved_bytes else ""
    there = f"; {tally.skipped_files} were there already" if tally.skipped_files else ""
    done = tally.done_files - tally.skipped_files
    return (
        f"{verb} {done} file{'s' if done != 1 else ''}, {format_size(tally.moved_bytes)} in "
        f"{format_duration(took_s)}{rate}{there}"
    )


def conclude(verb: str, tally: Tally, began: float, *, quiet: bool) -> None:
    """Say what was done and what was not; ends the program if something failed."""
    for left_out in tally.left_out:
        say(f"bootseer: left out, {left_out.reason}: {left_out.name}", err=True)
    for failure in tally.failures:
        _say_failure(failure)
    if not quiet:
        say(summary(verb, tally, began))
    if tally.failures:
        say(f"bootseer: {len(tally.failures)} of {tally.total_files} files failed", err=True)
        sys.exit(tally.failures[0].error.exit_code)


def _say_failure(failure: Failure) -> None:
    text = str(failure.error)
    say(f"bootseer: {text if failure.name in text else f'{failure.name}: {text}'}", err=True)

"""Shared by all commands of ``bootseer ckpt``: open the tree, print results."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bootseer import config as settings
from bootseer.checkpoint.admin.progress import BatchProgress, Failure
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.cli.terminal import runner
from bootseer.cli.terminal.runner import caller, print_line
from bootseer.errors import BootseerError, NotFound
from bootseer.large_buffers import keep_large_buffers
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect_to
from bootseer.store.from_url import divide
from bootseer.units import format_duration, format_size

T = TypeVar("T")

OPERATIONS = 32
"""Concurrent operations: as many as the stores have threads."""


def run(
    url: str,
    work: Callable[[CheckpointTree, str], Awaitable[T]],
    *,
    progress: BatchProgress | None = None,
    bar: str = "",
    after: str = "no changes made",
    is_new: bool = False,
) -> T:
    """Run ``work`` on the tree of a URL and the name in it, as the calling user.

    Args:
        url: URL of a file or folder in a store.
        work: called with the tree and the name.
        progress: counts of the work; its failures are printed even if the work is aborted.
        bar: the verb of a progress bar on a terminal; none if empty.
        after: printed after an interruption.
        is_new: what the URL names need not exist.
    """
    root, name = divide(url)
    keep_large_buffers()

    async def main() -> T:
        tree = CheckpointTree(open_at(root))
        try:
            return await work(tree, name)
        except NotFound as error:
            if is_new or await tree.find(name) is not None:
                raise
            raise NotFound(f"there is no file or folder {url}") from error

    try:
        return runner.run(main, counted=progress, bar=bar, after=after)
    except (BootseerError, SystemExit) as end:
        for failure in progress.failures if progress else ():
            if failure.error is not end:
                _print_failure(failure)
        raise


def move(
    url: str,
    work: Callable[[CheckpointTree, str, BatchProgress], Awaitable[None]],
    verb: str,
    *,
    quiet: bool,
) -> None:
    """Copy files to or from a URL, and print a summary; exits if a file failed.

    Args:
        url: as in `run`.
        work: copies the files, and counts them in the progress.
        verb: "import" or "export".
        quiet: print failures only.
    """
    progress = BatchProgress()
    began = time.monotonic()

    async def counted(tree: CheckpointTree, name: str) -> None:
        await work(tree, name, progress)

    bar = "" if quiet else verb
    after = "run the same command again to continue"
    run(url, counted, progress=progress, bar=bar, after=after, is_new=verb == "import")
    conclude(f"{verb}ed", progress, began, quiet=quiet)


def open_at(url: str) -> Store:
    """Open the store that begins at a URL, as the calling user."""
    config = settings.load()
    return connect_to(url, config, caller(), private=False, operations=OPERATIONS)


def summary(verb: str, progress: BatchProgress, began: float) -> str:
    """Return a line with the files, bytes and rate of a copy."""
    took_s = max(time.monotonic() - began, 1e-3)
    rate = f" ({progress.moved_bytes / took_s / 1e6:.0f} MB/s)" if progress.moved_bytes else ""
    there = f"; {progress.skipped_files} were there already" if progress.skipped_files else ""
    done = progress.done_files - progress.skipped_files
    return (
        f"{verb} {done} file{'s' if done != 1 else ''}, {format_size(progress.moved_bytes)} in "
        f"{format_duration(took_s)}{rate}{there}"
    )


def conclude(verb: str, progress: BatchProgress, began: float, *, quiet: bool) -> None:
    """Print skipped and failed files and a summary; exits if a file failed."""
    for left_out in progress.left_out:
        print_line(f"bootseer: left out, {left_out.reason}: {left_out.name}", err=True)
    for failure in progress.failures:
        _print_failure(failure)
    if not quiet:
        print_line(summary(verb, progress, began))
    if progress.failures:
        print_line(
            f"bootseer: {len(progress.failures)} of {progress.total_files} files failed", err=True
        )
        sys.exit(progress.failures[0].error.exit_code)


def _print_failure(failure: Failure) -> None:
    text = str(failure.error)
    print_line(f"bootseer: {text if failure.name in text else f'{failure.name}: {text}'}", err=True)

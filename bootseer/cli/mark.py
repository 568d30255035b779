"""bootseer mark: record a point of a job's start."""

from __future__ import annotations

import click

from bootseer.cli import send_mark


@click.command(
    epilog="Example, as the last line of start-up:  bootseer mark first-step",
)
@click.argument("name")
@click.option("--quiet", is_flag=True, help="Print nothing if no agent runs.")
def mark(name: str, quiet: bool) -> None:
    """Mark a point of the job's start-up, such as first-step.

    first-step ends the start-up window: recording stops, pinned memory is let go, and reports show
    the time up to here as the time to ready. Never fails the job.
    """
    send_mark.mark(name, is_quiet=quiet)

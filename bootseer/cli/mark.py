"""bootseer mark: say from inside a job that something has been reached."""

from __future__ import annotations

import os
import sys
import time

import click

from bootseer.agent.node import control_client
from bootseer.errors import BootseerError


@click.command(
    epilog="Example, as the last line of start-up:  bootseer mark first-step",
)
@click.argument("name")
@click.option("--quiet", is_flag=True, help="Say nothing when there is no agent to tell.")
def mark(name: str, quiet: bool) -> None:
    """Mark a point of the job's start-up, such as first-step.

    first-step ends the start-up window: recording stops, pinned memory is let go, and reports show
    the time up to here as the time to ready. Never fails the job.
    """
    now = time.time_ns()
    path = os.environ.get("BOOTSEER_SOCKET")
    try:
        if not path:
            raise BootseerError("BOOTSEER_SOCKET is not set: not inside a job with --bootseer")
        rank = int(os.environ.get("SLURM_PROCID", "-1"))
        request = {"op": "event", "stage": f"mark.{name}", "start_ns": now, "end_ns": now}
        control_client.ask(path, {**request, "rank": rank}, deadline_s=2)
    except (BootseerError, ValueError) as error:
        if not quiet:
            click.echo(f"bootseer mark: {error}", err=True)
    sys.exit(0)

"""bootseer status: what is being done on this node, now."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.progress_bar import ProgressBar
from rich.table import Table

from bootseer import config as settings
from bootseer.agent.messages.control import AgentStatus, GetStatus
from bootseer.agent.node import control_client
from bootseer.agent.node.registry import job_folders
from bootseer.cli.console import console
from bootseer.errors import BootseerError
from bootseer.startup.render import plain
from bootseer.units import format_size


@click.command(epilog="Example:  srun --overlap --jobid=1234 bootseer status")
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
def status(as_json: bool) -> None:
    """Show the jobs of BootSeer on this node and their progress.

    A user sees their own jobs, root sees all, jobs whose agent has died included.
    """
    jobs = [state for state in map(_state, job_folders(settings.load().node.run_dir)) if state]
    if as_json:
        click.echo(json.dumps(jobs, indent=1))
    elif not jobs:
        click.echo("no job of yours with --bootseer is on this node")
    else:
        console().print(_table(jobs))


def _state(folder: Any) -> dict[str, Any] | None:
    try:
        answer = control_client.ask(folder.socket, GetStatus(), AgentStatus, deadline_s=2)
    except BootseerError:
        kept = folder.read("state/state.json")  # root's to read
        return {**kept, "state": "agent died"} if kept else None
    return answer._asdict()


def _table(jobs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("job", "user", "key", "state", "image", "progress", ""):
        table.add_column(name)
    for job in jobs:
        about = job["job"]
        for image in job["images"] or [{}]:
            want, done = image.get("want_bytes", 0), image.get("done_bytes", 0)
            table.add_row(
                str(about["job_id"]),
                plain(about["user"]),
                plain(about["key"]),
                job["state"],
                plain(image.get("path", "")),
                ProgressBar(total=want, completed=done, width=20) if want else "recording",
                f"{format_size(done)} of {format_size(want)}" if want else plain(job["detail"]),
            )
    return table

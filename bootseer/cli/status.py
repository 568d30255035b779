"""bootseer status: show the state of this node's jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bootseer import config as settings
from bootseer.agent.messages.control import AgentStatus, GetStatus
from bootseer.agent.node import control_client
from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.registry import job_folders
from bootseer.cli.terminal.console import console, new_table, plain, print_json
from bootseer.errors import BootseerError, Corrupt
from bootseer.ipc.typed_json import from_object
from bootseer.units import format_size

if TYPE_CHECKING:
    from rich.table import Table


@click.command(epilog="Example:  srun --overlap --jobid=1234 bootseer status")
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
def status(as_json: bool) -> None:
    """Show the jobs of BootSeer on this node and their progress.

    Users see their own jobs; root sees all, including those of dead agents.
    """
    jobs = [state for state in map(_state, job_folders(settings.load().node.run_dir)) if state]
    if as_json:
        print_json([job._asdict() for job in jobs])
    elif not jobs:
        click.echo("no job of yours with --bootseer is on this node")
    else:
        console().print(_table(jobs))


def _state(folder: JobFolder) -> AgentStatus | None:
    try:
        return control_client.ask(folder.socket, GetStatus(), AgentStatus, deadline_s=2)
    except BootseerError:
        kept = folder.read("state/state.json")  # root's to read
    try:
        state = from_object(kept or {}, AgentStatus, "state.json")
    except Corrupt:
        return None
    return state._replace(state="agent died")


def _table(jobs: list[AgentStatus]) -> Table:
    from rich.progress_bar import ProgressBar

    table = new_table("job", "user", "key", "state", "image", "progress", "", overflow="ellipsis")
    for job in jobs:
        about = job.job
        for image in job.images or [{}]:
            want, done = image.get("want_bytes", 0), image.get("done_bytes", 0)
            table.add_row(
                str(about["job_id"]),
                plain(str(about["user"])),
                plain(str(about["key"])),
                job.state,
                plain(image.get("path", "")),
                ProgressBar(total=want, completed=done, width=20) if want else "recording",
                f"{format_size(done)} of {format_size(want)}" if want else plain(job.detail),
            )
    return table

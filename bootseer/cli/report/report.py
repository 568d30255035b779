"""bootseer report: the stages of a job's start-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bootseer.cli.terminal.console import line_width, print_json, print_lines
from bootseer.errors import BootseerError, NotFound

if TYPE_CHECKING:
    from bootseer.startup.report import Report
    from bootseer.store.api.base import Store


def _job_id(ctx: click.Context, param: click.Parameter, value: str) -> int:
    if value.isascii() and value.isdecimal() and int(value) > 0:
        return int(value)
    raise click.BadParameter(
        f"{value!a} is not the number of a job, such as 1234; of a job in an array, "
        "`squeue --format=%A` shows it"
    )


@click.command(epilog="Examples:  bootseer report 1234   ·   bootseer report 1234 --json")
@click.argument("job", callback=_job_id)
@click.option("--user", help="Owner of the job; yours by default.")
@click.option("--alone", is_flag=True, help="Do not compare a warm start with the latest cold one.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
def report(job: int, user: str | None, alone: bool, as_json: bool) -> None:
    """Show the stages of JOB's start-up on each node.

    A cold start, which prefetched nothing, is shown beside a warm one. Of a job with many nodes,
    the slowest are shown; --json has all. A line that begins with "fallback" names an action that
    failed, and the reason. A job's events are there once its epilog has run.
    """
    from bootseer.cli.user_store import with_store

    async def read(store: Store, owner: str) -> list[Report]:
        return await _reports(store, owner, job, alone)

    reports = with_store(user, read)
    if as_json:
        print_json([r.document() for r in reports])
        return
    from bootseer.cli.report import timeline

    print_lines(timeline.write(reports, line_width()))


async def _reports(store: Store, owner: str, job: int, alone: bool) -> list[Report]:
    from bootseer.startup.report import build
    from bootseer.startup.run_events import read_run, runs_of_job

    runs = await runs_of_job(store, job)
    if not runs:
        raise NotFound(
            f"nothing is known of job {job} in {store.url}: its epilog may not have run yet, it "
            "may have run without --bootseer, or it was another user's (--user)"
        )
    asked = [build(await read_run(store, run)) for run in runs]
    if alone or len(asked) != 1 or asked[0].kind == "cold":
        return asked
    cold = await _latest_cold(store, owner, asked[0])
    return [cold, *asked] if cold else asked


async def _latest_cold(store: Store, owner: str, warm: Report) -> Report | None:
    """Find the newest cold start under the same key before a warm one."""
    from bootseer.startup.plans import read_plan
    from bootseer.startup.report import build
    from bootseer.startup.run_events import read_run

    try:
        plan = await read_plan(store, owner, warm.key)
    except BootseerError:
        return None  # what was asked for can be shown without
    for run in reversed(plan.runs if plan else ()):
        if run.kind == "cold" and run.started_ns < warm.started_ns:
            try:
                return build(await read_run(store, run.run))
            except BootseerError:
                continue
    return None

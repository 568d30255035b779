"""bootseer node: care for a compute node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import click

from bootseer import config as settings
from bootseer.agent.node import registry
from bootseer.agent.node.reap_agents import reap, reap_dead
from bootseer.agent.node.registry import job_folders
from bootseer.errors import Denied, Unavailable

_SQUEUE_S = 20


@click.group()
def node() -> None:
    """Care for this compute node.

    \b
    Example:
      bootseer node reap
    """


@node.command("reap", epilog="Example, for HealthCheckProgram or cron:  bootseer node reap")
@click.option("--json", "as_json", is_flag=True, help="Print what was reaped as JSON.")
def reap_command(as_json: bool) -> None:
    """Remove what ended jobs left on this node.

    That is processes, mounts and folders. Every prolog does this for agents that have died. This
    command also ends agents whose job Slurm no longer knows, and processes that still serve an
    image of such a job after its agent has died.
    """
    if os.geteuid() != 0:
        raise Denied("agents are root's: run this as root")
    run_dir = settings.load().node.run_dir
    reaped = reap_dead(run_dir)
    at_work = [f for f in job_folders(run_dir) if registry.agent_pid(f) or registry.is_served(f)]
    if at_work:
        known = _jobs_known_to_slurm()
        for folder in at_work:
            name = folder.path.rpartition("/")[2]
            if name not in known and reap(folder):
                reaped.append(name)
    if as_json:
        click.echo(json.dumps({"reaped": reaped}))
    else:
        click.echo(f"reaped: {', '.join(reaped)}" if reaped else "nothing to reap")


def _jobs_known_to_slurm() -> set[str]:
    """Return the ids of jobs that have not ended, completing ones included.

    The caller's SQUEUE_* and SLURM_CLUSTERS are ignored: they could hide jobs, whose agents would
    be killed.
    """
    squeue = shutil.which("squeue")
    if squeue is None:
        raise Unavailable("cannot find which jobs have ended: squeue is not in the PATH")
    try:
        answer = subprocess.run(
            [squeue, "--noheader", "--all", "--format=%A"],
            env={name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ},
            capture_output=True,
            text=True,
            timeout=_SQUEUE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"no answer from squeue in {_SQUEUE_S} s, nothing was done") from error
    if answer.returncode != 0:
        raise Unavailable(f"squeue failed, nothing was done: {answer.stderr.strip()}")
    return set(answer.stdout.split())

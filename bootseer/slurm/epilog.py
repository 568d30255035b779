"""End a job's agent: what it recorded is published, and nothing of it stays on the node.

Called by the plugin's job_epilog hook and by slurm.conf's Epilog=; the second call finds
nothing left to do. Always ends well: an epilog that fails would drain the node.

Only the standard library is imported.
"""

from __future__ import annotations

import os

from bootseer import config as settings
from bootseer.agent.messages.control import Finish, Finished
from bootseer.agent.node import agent_process, control_client, registry
from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.reap_agents import reap, remove
from bootseer.errors import BootseerError, NotFound
from bootseer.slurm.hook import log_line

_MARGIN_S = 2.0
"""Kept back of the deadline to clear up what did not end by itself."""


def main() -> int:
    """Run for the job that the environment describes; prints what was done, returns 0."""
    try:
        job_id = int(os.environ.get("SLURM_JOB_ID", "0"))
        config = _settings()
        folder = JobFolder.of(config.node.run_dir, job_id)
        if job_id and os.path.isdir(folder.path):
            log_line(f"job {job_id}: {_end(folder, config)}")
    except BootseerError as error:
        log_line(str(error))
    except Exception as error:  # noqa: BLE001 (the hook must not fail the job)
        log_line(f"internal error: {error!r}")
    return 0


def _settings() -> settings.Config:
    """Load the settings; were they broken while jobs ran, their agents are ended all the same."""
    try:
        return settings.load()
    except BootseerError as error:
        log_line(f"{error}; going by the defaults")
        return settings.load(os.devnull)


def _end(folder: JobFolder, config: settings.Config) -> str:
    deadline_s = config.epilog.deadline_s
    try:
        request = Finish(max(0.5, deadline_s - _MARGIN_S))
        latest_s = deadline_s - _MARGIN_S / 2
        answer = control_client.ask(folder.socket, request, Finished, latest_s)
    except NotFound:
        reap(folder)
        return "its agent had died; its leftovers are removed"
    except BootseerError as error:
        reap(folder, f"killed: {error}")
        return f"its agent was killed: {error}"
    pid = registry.agent_pid(folder)
    if pid is not None:
        agent_process.await_end(pid, _MARGIN_S / 2)
    remove(folder)
    if answer.published:
        return f"published to {answer.detail}"
    return f"not published, kept for the user's next job here: {answer.detail}"

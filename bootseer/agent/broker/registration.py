"""Record a job's agent processes in its folder, see `bootseer.agent.node.registry`.

Imports the standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import start_time


def register(folder: JobFolder) -> None:
    """Record this process as the job's agent, with its control group."""
    folder.write("process.json", _mark(os.getpid()) | {"cgroup": _cgroup()})


def register_servers(folder: JobFolder, pids: Iterable[int]) -> None:
    """Record the image servers, on which the job depends even without the agent."""
    folder.write("server.json", {"servers": list(map(_mark, pids))})


def _cgroup() -> str:
    with open("/proc/self/cgroup") as file:
        return next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "")


def _mark(pid: int) -> dict[str, int | str | None]:
    return {"pid": pid, "start": start_time(pid)}


def note_ended(folder: JobFolder) -> None:
    """Record that the agent is ending normally: the epilog removes its folder."""
    with suppress(OSError):  # /run is full
        folder.write("ended.json", {})

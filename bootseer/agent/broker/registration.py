"""Note in a job's folder which processes look after it, see `bootseer.agent.node.registry`.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import start_time


def register(folder: JobFolder) -> None:
    """Note that this process is the job's agent, and in which control group it is."""
    folder.write("process.json", _mark(os.getpid()) | {"cgroup": _cgroup()})


def register_servers(folder: JobFolder, pids: Iterable[int]) -> None:
    """Note the servers of images: the job goes on without the agent."""
    folder.write("server.json", {"servers": list(map(_mark, pids))})


def _cgroup() -> str:
    with open("/proc/self/cgroup") as file:
        return next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "")


def _mark(pid: int) -> dict[str, Any]:
    return {"pid": pid, "start": start_time(pid)}


def note_ended(folder: JobFolder) -> None:
    """Keep that the agent is about to end as it should: the epilog clears its folder away."""
    with suppress(OSError):  # /run is full
        folder.write("ended.json", {})

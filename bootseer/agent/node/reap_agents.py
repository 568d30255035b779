"""Remove what dead agents have left: processes, mounts, folders.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from bootseer.agent.node import agent_process, cgroup, cleanup, registry
from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.job import JobFolder


def reap_dead(run_dir: str) -> list[str]:
    """Reap the folders of all dead agents; returns the jobs' names.

    Jobs whose image is still served are left to their epilogs.

    A separate process publishes the events they had recorded. Folders that cannot be reaped are
    left to the next call.
    """
    reaped = []
    dead_folders = registry.job_folders(run_dir, "dead")
    for folder in registry.job_folders(run_dir):
        if registry.agent_pid(folder) is not None or registry.is_starting(folder):
            continue
        if registry.has_ended(folder):
            if not registry.is_young(folder):  # otherwise its epilog is about to
                remove(folder)
        elif not registry.is_served(folder) and reap(folder):
            reaped.append(os.path.basename(folder.path))
    for dead_folder in dead_folders:
        if registry.agent_pid(dead_folder) is None and not registry.is_starting(dead_folder):
            dead_folder.remove()  # the process that was publishing its events has died too
    return reaped


def reap(folder: JobFolder, why: str = "") -> bool:
    """Kill what is left of an agent, dead or alive, and move its folder away.

    The folder is renamed first, so that a job with the same id can start.

    Args:
        folder: its job's folder.
        why: the reason, if a live agent is killed.

    Returns:
        Whether it was reaped; otherwise another process was first, or /run is full.
    """
    dead = f"{os.path.dirname(os.path.dirname(folder.path))}/dead"
    dead_folder = JobFolder(f"{dead}/{os.path.basename(folder.path)}-{time.time_ns()}")
    try:
        # First: a process of the agent may be waiting in a mount whose server is stopped.
        _unmount_below(folder.path)
        agent_process.kill_all(folder)
        _unmount_below(folder.path)
        cgroup.sweep(_group(folder))
        settings = _discard_written(folder)
        os.makedirs(dead, exist_ok=True)
        os.chmod(dead, 0o711)  # the process that publishes its events is not root
        registry.deregister(folder)
        with suppress(OSError):  # /run is full
            folder.write("died.json", {"why": why}, 0o644)  # for the process that publishes
        os.rename(folder.path, dead_folder.path)
    except OSError:
        return False
    with suppress(OSError):
        agent_process.start(dead_folder, "recover")
    _clean(settings)
    return True


def remove(folder: JobFolder) -> None:
    """Remove the folder of an ending agent, and its remaining processes.

    A user can stop an agent's process before it is set to die with the agent.
    """
    agent_process.kill_all(folder)
    if folder.has_mounts():
        _unmount_below(folder.path)
    cgroup.sweep(_group(folder))
    settings = _discard_written(folder)
    folder.remove()
    _clean(settings)


def _discard_written(folder: JobFolder) -> BrokerSettings | None:
    """Move aside what a job has written over its environments; returns its settings."""
    settings = folder.broker_settings()
    if settings is not None:
        cleanup.discard(f"{settings.scratch}/{os.path.basename(folder.path)}")
    return settings


def _clean(settings: BrokerSettings | None) -> None:
    """Start removing files of ended jobs, in a process that outlives their agents."""
    if settings is not None:
        cleanup.start(settings.scratch, settings.run_dir)


def _group(folder: JobFolder) -> str:
    return str((folder.read("process.json") or {}).get("cgroup"))


def _unmount_below(path: str) -> None:
    from bootseer.fuse.mountinfo import read_mounts  # only now: it takes 8 ms

    below = [m.mountpoint for m in read_mounts() if m.mountpoint.startswith(f"{path}/")]
    if not below:
        return
    from bootseer._io import lib

    for point in sorted(below, reverse=True):
        lib.bs_unmount(os.fsencode(point))

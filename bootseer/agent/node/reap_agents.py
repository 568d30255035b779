"""Clear away what dead agents have left: processes, mounts, folders.

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
    """Reap the folders of all agents that have died; returns the jobs' names.

    A job whose image is being served is left to its epilog.

    What they had noted is published by a process of its own, which nobody waits for. What cannot be
    reaped is left to the next who comes.
    """
    reaped = []
    graves = registry.job_folders(run_dir, "dead")
    for folder in registry.job_folders(run_dir):
        if registry.agent_pid(folder) is not None or registry.is_starting(folder):
            continue
        if registry.has_ended(folder):
            if not registry.is_young(folder):  # else its epilog is about to
                remove(folder)
        elif not registry.is_served(folder) and reap(folder):
            reaped.append(os.path.basename(folder.path))
    for grave in graves:
        if registry.agent_pid(grave) is None and not registry.is_starting(grave):
            grave.remove()  # whoever was to bury it has died too
    return reaped


def reap(folder: JobFolder, why: str = "") -> bool:
    """End what is left of an agent, dead or alive, and see to its folder.

    The folder gets another name first, so that a job with the same id can start anew at once.

    Args:
        folder: of its job.
        why: it is ended, if it lives, for the report.

    Returns:
        Whether it has; otherwise another was first, or /run is full.
    """
    dead = f"{os.path.dirname(os.path.dirname(folder.path))}/dead"
    grave = JobFolder(f"{dead}/{os.path.basename(folder.path)}-{time.time_ns()}")
    try:
        # First, for what it is looking at may be waiting for a mount whose server is stopped.
        _unmount_below(folder.path)
        agent_process.kill_all(folder)
        _unmount_below(folder.path)
        cgroup.sweep(_group(folder))
        settings = _discard_written(folder)
        os.makedirs(dead, exist_ok=True)
        os.chmod(dead, 0o711)  # who publishes what is there is not root
        registry.deregister(folder)
        with suppress(OSError):  # /run is full
            folder.write("died.json", {"why": why}, 0o644)  # for who publishes
        os.rename(folder.path, grave.path)
    except OSError:
        return False
    with suppress(OSError):
        agent_process.start(grave, "bury")
    _clean(settings)
    return True


def remove(folder: JobFolder) -> None:
    """Remove the folder of an agent that has ended or is to, and what it did not get to.

    A user can stop a process of the agent's just before that would ask to die with it.
    """
    agent_process.kill_all(folder)
    if folder.has_mounts():
        _unmount_below(folder.path)
    cgroup.sweep(_group(folder))
    settings = _discard_written(folder)
    folder.remove()
    _clean(settings)


def _discard_written(folder: JobFolder) -> BrokerSettings | None:
    """Put aside what a job has written over its environments; returns its settings."""
    settings = folder.broker_settings()
    if settings is not None:
        cleanup.discard(f"{settings.scratch}/{os.path.basename(folder.path)}")
    return settings


def _clean(settings: BrokerSettings | None) -> None:
    """Have what ended jobs have written removed, by who does not end with their agents."""
    if settings is not None:
        cleanup.start(settings.scratch, settings.run_dir)


def _group(folder: JobFolder) -> str:
    return str((folder.read("process.json") or {}).get("cgroup"))


def _unmount_below(path: str) -> None:
    from bootseer.fuse.mountinfo import read_mounts  # only now, and so is ctypes: they take 8 ms

    below = [m.mountpoint for m in read_mounts() if m.mountpoint.startswith(f"{path}/")]
    if not below:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    mnt_force, mnt_detach = 1, 2  # by force, or who waits there waits for the server's end
    for point in sorted(below, reverse=True):
        libc.umount2(os.fsencode(point), mnt_force | mnt_detach)

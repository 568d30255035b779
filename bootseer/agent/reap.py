"""Clear away what dead agents have left: processes, mounts, folders.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import shutil
import time

from bootseer.agent import process
from bootseer.agent.job import JobFolder, job_folders


def reap_dead(run_dir: str) -> list[str]:
    """Reap the folders of all agents that have died; returns the jobs' names.

    What they had noted is published by a process of its own, which nobody waits for.
    """
    reaped = []
    graves = job_folders(run_dir, "dead")
    for folder in job_folders(run_dir):
        if process.agent_pid(folder) is None and not process.is_starting(folder):
            reap(folder)
            reaped.append(os.path.basename(folder.path))
    for grave in graves:
        if process.agent_pid(grave) is None and not process.is_starting(grave):
            shutil.rmtree(grave.path, ignore_errors=True)  # whoever was to bury it has died too
    return reaped


def reap(folder: JobFolder) -> None:
    """End what is left of an agent, dead or alive, and see to its folder.

    The folder gets another name first, so that a job with the same id can start anew at once.
    """
    process.kill_all(folder)
    _unmount_below(folder.path)
    buried = JobFolder(f"{os.path.dirname(os.path.dirname(folder.path))}/dead")
    os.makedirs(buried.path, mode=0o700, exist_ok=True)
    grave = JobFolder(f"{buried.path}/{os.path.basename(folder.path)}-{time.time_ns()}")
    try:
        os.rename(folder.path, grave.path)
    except OSError:
        return  # another prolog was first
    process.start(grave, "bury")


def _unmount_below(path: str) -> None:
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file]
    below = [point for point in points if point.startswith(path + "/")]
    if not below:
        return
    import ctypes  # only now: it costs the hook path 5 ms

    libc = ctypes.CDLL(None, use_errno=True)
    mnt_detach = 2
    for point in sorted(below, reverse=True):
        libc.umount2(os.fsencode(point), mnt_detach)

"""Remove what jobs have written over their environments, in a process of its own.

The content is a user's: folders as deep as the disk allows, in any number. So nobody waits for the
removal, no job does it for another, and each folder has its own child and deadline: one that cannot
be removed stops nothing else.

Standard library and our own extension only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from bootseer._io import lib
from bootseer.agent.node import process

FOLDER_S = 60
"""Longest that the removal of one folder may take; what is left is for the next job's end."""
_GOING = ".going-"
_NICE = 19


def discard(folder: str, run_dir: str) -> None:
    """Have the folders of a job and of jobs that have ended removed, without waiting for it.

    Args:
        folder: of the job, in a folder that only root can change; it may be missing.
        run_dir: knows which jobs there are.
    """
    parent, name = os.path.split(folder)
    with suppress(OSError):
        os.rename(folder, f"{parent}/{_GOING}{name}-{time.time_ns()}")
    if left_overs(parent, run_dir):
        with suppress(OSError):
            process.spawn_detached("broker.cleanup", parent, run_dir)


def left_overs(parent: str, run_dir: str) -> list[str]:
    """List the folders that no job uses."""
    try:
        names = os.listdir(parent)
    except OSError:
        return []
    return [
        name
        for name in sorted(names)
        if name.startswith(_GOING) or not os.path.exists(f"{run_dir}/jobs/{name}")
    ]


def main() -> None:
    """Remove as the command line says: the folder that they are in, the run directory."""
    parent, run_dir = sys.argv[1:3]
    lib.bs_io_idle()
    os.nice(_NICE)
    folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    for name in left_overs(parent, run_dir):
        child = os.fork()
        if child == 0:
            signal.alarm(FOLDER_S)
            lib.bs_remove(folder, os.fsencode(name))
            os._exit(0)
        os.waitpid(child, 0)

"""Remove what jobs have written over their environments, in a process of its own.

The content is a user's: folders as deep as the disk allows, in any number. So nobody waits for the
removal, no job does it for another, and each folder has its own child and deadline: one that cannot
be removed stops nothing else.

Imported by the hook path: the standard library only, but in the process that removes.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial

from bootseer.agent.node import spawn

FOLDER_S = 600
"""Longest that the removal of one folder may take, beside jobs that have the processors; what is
left is for the next job's end."""
_GOING = ".going-"
_NICE = 19


def discard(folder: str) -> None:
    """Put the folder of a job that has ended aside, if it has one: a requeued job has its number.

    Args:
        folder: in a folder that only root can change.
    """
    parent, name = os.path.split(folder)
    with suppress(OSError):
        os.rename(folder, f"{parent}/{_GOING}{name}-{time.time_ns()}")


def start(parent: str, run_dir: str) -> None:
    """Have the folders of jobs that have ended removed, without waiting for it.

    Args:
        parent: of them.
        run_dir: knows which jobs there are.
    """
    if left_overs(parent, run_dir):
        with suppress(OSError):
            spawn.spawn_detached("node.cleanup", parent, run_dir)


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
    from bootseer._io import lib

    parent, run_dir = sys.argv[1:3]
    lib.bs_io_idle()
    os.nice(_NICE)
    folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # another is at it, and looks again before it ends
    tried: set[str] = set()
    while names := set(left_overs(parent, run_dir)) - tried:
        tried |= names
        for name in sorted(names):
            os.waitpid(spawn.fork(partial(_remove, folder, name)), 0)


def _remove(folder: int, name: str) -> None:
    from bootseer._io import lib

    signal.alarm(FOLDER_S)
    lib.bs_remove(folder, os.fsencode(name))

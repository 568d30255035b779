"""Remove files that jobs wrote over their environments, in a separate process.

A user controls the content: folders may be as deep and as many as the disk allows. So no process
waits for the removal, and each folder has its own child process and deadline: a folder that cannot
be removed does not block others.

Imported by the hook path: the standard library only, except in the removing process.
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
"""Time limit for the removal of one folder on a busy node; the next job's end removes the rest."""
_GOING = ".going-"
_NICE = 19


def discard(folder: str) -> None:
    """Rename the folder of an ended job, if any: a requeued job gets the same number.

    Args:
        folder: the folder; only root can change its parent.
    """
    parent, name = os.path.split(folder)
    with suppress(OSError):
        os.rename(folder, f"{parent}/{_GOING}{name}-{time.time_ns()}")


def start(parent: str, run_dir: str) -> None:
    """Start removing the folders of ended jobs, without waiting.

    Args:
        parent: the folder that they are in.
        run_dir: the run directory, with a folder for each
            job.
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
    """Remove the left-over folders; arguments: their parent folder, the run directory."""
    from bootseer._io import lib

    parent, run_dir = sys.argv[1:3]
    lib.bs_io_idle()
    os.nice(_NICE)
    folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # another process is removing, and checks again before it ends
    tried: set[str] = set()
    while names := set(left_overs(parent, run_dir)) - tried:
        tried |= names
        for name in sorted(names):
            os.waitpid(spawn.fork(partial(_remove, folder, name)), 0)


def _remove(folder: int, name: str) -> None:
    from bootseer._io import lib

    signal.alarm(FOLDER_S)
    lib.bs_remove(folder, os.fsencode(name))

"""Start the broker of a job, in a control group of its own.

Standard library and our own extension only.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Thread

from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import leave


def main() -> None:
    """Run as the command line says: mode, the job's folder, its control socket, control group.

    The socket is a descriptor, negative if it is to be made; without the folder of a group this
    process stays in the one that it is in.
    """
    mode, folder, fd, *groups = sys.argv[1:]
    # The kernel takes some 15 ms to move a process: the rest is imported meanwhile.
    moves = [Thread(target=_enter, args=(group,)) for group in groups if group]
    for move in moves:
        move.start()
    from bootseer.agent.broker.startup import run

    for move in moves:
        move.join()
    leave(run(mode, JobFolder(folder), int(fd)))  # whatever threads are still waiting for


def _enter(group: str) -> None:
    with suppress(OSError), open(f"{group}/cgroup.procs", "w") as file:
        file.write("0")

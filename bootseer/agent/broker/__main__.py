"""Start a job's broker in its own control group.

Imports the standard library and bootseer's C extension only.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Thread

from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import leave


def main() -> None:
    """Run the broker; arguments: mode, job folder, control socket, control groups.

    The socket is a descriptor; if it is negative, the broker creates the socket. Without a group's
    folder this process stays in its present control group.
    """
    mode, folder, fd, *groups = sys.argv[1:]
    # The kernel takes some 15 ms to move a process: import the rest meanwhile.
    moves = [Thread(target=_enter, args=(group,)) for group in groups if group]
    for move in moves:
        move.start()
    from bootseer.agent.broker.startup import run

    for move in moves:
        move.join()
    leave(run(mode, JobFolder(folder), int(fd)))  # does not wait for other threads


def _enter(group: str) -> None:
    with suppress(OSError), open(f"{group}/cgroup.procs", "w") as file:
        file.write("0")

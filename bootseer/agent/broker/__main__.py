"""Start a job's broker in its own control group.

Imports the standard library and bootseer's C extension only.
"""

from __future__ import annotations

import sys
from threading import Thread

from bootseer.agent.node import cgroup
from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import leave


def main() -> None:
    """Run the broker; arguments: mode, job folder, name of a new control group to enter.

    Without a name, this process stays in its present control group.
    """
    mode, folder, *groups = sys.argv[1:]
    # Moving a process takes some 15 ms: import the rest meanwhile.
    moves = [Thread(target=cgroup.enter, args=(group,)) for group in groups]
    for move in moves:
        move.start()
    from bootseer.agent.broker.startup import run

    for move in moves:
        move.join()
    leave(run(mode, JobFolder(folder)))  # does not wait for other threads

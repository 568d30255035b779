"""All nodes of a job publish at once, each in a process of its own.

    python -m bootseer_dev.bench.epilog_client URL USER JOB NODES cold|warm

prints, for each node, the seconds until its agent would end, an error or "", its role, and how
often it has called which operation of the store.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter

import trio

from bootseer.agent.node.job import Job
from bootseer.agent.workers.spare_node import spare_number
from bootseer.errors import BootseerError
from bootseer.image.hot.repository import is_among
from bootseer.store.api.base import Store
from bootseer.testing.fault_store import FlakyStore
from bootseer_dev.actors.epilog import Epilog, jobs, recording

MODULE = "bootseer_dev.bench.epilog_client"


def main() -> None:
    """Run one process for each node; all begin together, with everything imported."""
    url, user, number, nodes, kind = sys.argv[1:]
    barrier, release = os.pipe()
    results, result = os.pipe()
    epilogs = [
        _CountedEpilog(job, recording(job.node_index, is_warm=kind == "warm"), {"store.url": url})
        for job in jobs(user, int(number), int(nodes))
    ]
    for epilog in epilogs:
        if not os.fork():
            os.close(release)
            os.read(barrier, 1)
            os.write(result, (json.dumps(_publish(epilog)) + "\n").encode())
            os._exit(0)
    os.close(release)
    os.close(result)
    with open(results) as lines:
        print(json.dumps([json.loads(line) for line in lines]))


class _CountedEpilog(Epilog):
    """A node's publication, with a list of the operations that it has called."""

    def store(self) -> Store:
        store = FlakyStore(super().store(), lambda *_: False)
        self.calls = store.calls
        return store


def _publish(epilog: _CountedEpilog) -> tuple[float, str, str, dict[str, int]]:
    began_s = time.monotonic()
    role = _role(epilog.job, epilog.config.image.traces_per_run)
    try:
        trio.run(epilog.run)
    except (BootseerError, OSError):
        return time.monotonic() - began_s, traceback.format_exc()[-500:], role, {}
    published = epilog.published
    error = "" if published and published.ok else published.detail if published else "nothing said"
    return (
        epilog.published_at_s - began_s,
        error,
        role,
        Counter(operation for operation, _ in epilog.calls),
    )


def _role(job: Job, count: int) -> str:
    if is_among(count, job.nodes, job.node_index):
        return "recording"
    is_spare = spare_number(count, job.nodes, job.node_index) is not None
    return "spare" if is_spare else "other"


if __name__ == "__main__":
    main()

"""All nodes of a job publish at once, each in a process of its own.

    python -m bootseer_dev.bench.epilog_client URL USER JOB NODES cold|warm

prints, for each node, the seconds until its agent would end, and an error or "".
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

import trio

from bootseer.errors import BootseerError
from bootseer_dev.actors.epilog import Epilog, jobs, recording

MODULE = "bootseer_dev.bench.epilog_client"


def main() -> None:
    """Run one process for each node; all begin together, with everything imported."""
    url, user, number, nodes, kind = sys.argv[1:]
    barrier, release = os.pipe()
    results, result = os.pipe()
    epilogs = [
        Epilog(job, recording(job.node_index, is_warm=kind == "warm"), {"store.url": url})
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


def _publish(epilog: Epilog) -> tuple[float, str]:
    began_s = time.monotonic()
    try:
        trio.run(epilog.run)
    except (BootseerError, OSError):
        return time.monotonic() - began_s, traceback.format_exc()[-500:]
    published = epilog.published
    error = "" if published and published.ok else published.detail if published else "nothing said"
    return epilog.published_at_s - began_s, error


if __name__ == "__main__":
    main()

"""A checkpoint tree on a mount, for tests and benchmarks; `bootseer_dev.files.served` mounts it."""

from __future__ import annotations

import argparse
import json
import logging
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import trio

from bootseer.agent.node.privileges import drop_privileges
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.serve import CheckpointOptions, serve_checkpoint
from bootseer.checkpoint.mount.view import ViewOptions
from bootseer.checkpoint.read.fetcher import FetchLimits
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.errors import Unavailable
from bootseer.fuse.serve_view import run
from bootseer.store.from_url import open_store
from bootseer.store.wrappers.limit import LimitStore
from bootseer.store.wrappers.retry import RetryStore
from bootseer_dev.cluster.machines import Machines
from bootseer_dev.files import served

MODULE = "bootseer_dev.files.checkpoint_mount"
READY = "ready"
MOUNTPOINT = "/mnt"
READ_AHEAD_KIB = 4096


@contextmanager
def mounted(
    cluster: Machines, url: str, user: str, *options: str, mountpoint: str = MOUNTPOINT
) -> Iterator[int]:
    """Mount a tree for a user on a folder of a cluster's head, which reaches its HDFS.

    Yields:
        The server's process id, as the machine counts.

    Raises:
        Unavailable: it cannot be mounted.
    """
    program = ["-m", MODULE, "--url", url, *options]
    argv = [sys.executable, "-m", served.MODULE, mountpoint, user, str(READ_AHEAD_KIB), *program]
    process = cluster.popen(argv, stdin=subprocess.PIPE, stderr=None)
    assert process.stdout is not None and process.stdin is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise Unavailable("the mount cannot be used; its output says why")
        yield int(line)
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def main() -> None:
    """Take on a user's rights and serve until SIGTERM or an unmount."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("connection", type=int)
    parser.add_argument("--user", required=True)
    parser.add_argument("--url", required=True, help="of the store")
    parser.add_argument("--deadline", type=float, default=20, help="of one operation, in seconds")
    parser.add_argument("--fetch", type=json.loads, default={}, help="FetchLimits, as JSON")
    parser.add_argument("--write", type=json.loads, default={}, help="WriteOptions, as JSON")
    parser.add_argument("--view", type=json.loads, default={}, help="ViewOptions, as JSON")
    given = parser.parse_args()
    # Tests wait for lines on stdout; stderr is in the output of a test that fails.
    handlers = [logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)]
    logging.basicConfig(handlers=handlers, format="%(message)s", level=logging.ERROR)
    user = pwd.getpwnam(given.user)
    drop_privileges(user.pw_name, user.pw_uid, user.pw_gid, keep_lock=False)
    options = CheckpointOptions(
        FetchLimits(**given.fetch), WriteOptions(**given.write), ViewOptions(**given.view)
    )

    async def serve(*, task_status: trio.TaskStatus[object]) -> None:
        limit = trio.CapacityLimiter(64)
        inner = LimitStore(open_store(given.url), deadline_s=given.deadline, operations=limit)
        owners = OwnerNames(user.pw_uid, user.pw_gid, user.pw_name)
        await serve_checkpoint(
            RetryStore(inner), given.connection, owners, options, task_status=task_status
        )

    run(partial(serve), ready=READY)


if __name__ == "__main__":
    main()

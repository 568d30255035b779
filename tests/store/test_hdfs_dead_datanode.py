"""Writing while the NameNode goes on choosing a DataNode that has died, as it does for ten minutes.

The client is a process of its own: a sync that hangs keeps its thread.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from bootseer.store.name import TEMPORARY_PREFIX
from bootseer.testing.cluster import Cluster, ClusterSpec
from bootseer.testing.cluster.poll import wait_until
from bootseer.testing.hdfs import Hdfs, HdfsSettings, hadoop_jars

pytestmark = [pytest.mark.root, pytest.mark.hdfs]

BUILD = Path(__file__).parents[2] / "build"
DEAD = "d2"
# Hadoop's own: until then a DataNode is taken to be alive.
SITE = {
    "dfs.namenode.heartbeat.recheck-interval": "300000",
    "dfs.heartbeat.interval": "3",
    "dfs.namenode.avoid.read.stale.datanode": "false",
}
_numbers = count()

# Compares what it has written, and waits for a line before it meets the fault.
CLIENT = """
import json, os, sys
import trio
from bootseer.store.base import publish, read_all
from bootseer.store.limit import LimitStore
from bootseer.store.locate import open_store
from bootseer.store.retry import RetryStore

MIB = 1 << 20
url, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


async def small(store):
    for number in range(count):
        content = os.urandom(number * 9000)
        await publish(store, f"folder/{number}", content)
        assert await read_all(store, f"folder/{number}", MIB) == content


async def growing(store):
    for number in range(count):
        content = os.urandom(MIB)
        async with store.append(f"parts/{number}") as appender:
            await appender.write(content[:1000])
            await appender.write(memoryview(content)[1000:])
            await appender.sync()
            await appender.finish()
        assert await read_all(store, f"parts/{number}", MIB) == content


async def cancelled(store):
    written = 0
    for number in range(count):
        with trio.move_on_after(number * 0.005):
            await publish(store, f"folder/{number}", b"x" * 1000)
            written += 1
    return written


def ready():
    print("ready", flush=True)
    sys.stdin.readline()


async def main():
    limit = trio.CapacityLimiter(64)
    store = RetryStore(LimitStore(open_store(url), deadline_s=10, operations=limit))
    await publish(store, "first", b"")
    ready()
    print(json.dumps(await globals()[what](store)))


trio.run(main)
"""


@pytest.fixture(scope="module")
def hdfs():
    spec = ClusterSpec(name=f"dead-{os.getpid()}", nodes=0, datanodes=3)
    with Cluster.up(spec) as cluster:
        yield Hdfs.start(cluster, hadoop_jars(BUILD), HdfsSettings(replication=2, site=SITE))


@contextmanager
def dead(hdfs):
    hdfs.stop(DEAD)
    try:
        yield
    finally:
        hdfs.start_datanodes(DEAD)


@contextmanager
def silent(hdfs):
    hdfs.signal(DEAD, "STOP")
    try:
        yield
    finally:
        hdfs.signal(DEAD, "CONT")


def write(hdfs, fault, what, count):
    """Have a client write while a DataNode does not answer, and return what it tells."""
    root = f"/dead/{next(_numbers)}"
    argv = [sys.executable, "-c", CLIENT, hdfs.url + root, what, str(count)]
    env = {"HADOOP_USER_NAME": "root"}
    client = hdfs.cluster.popen(argv, env=env, stdin=subprocess.PIPE, stderr=None)
    assert client.stdout.readline().strip() == "ready"
    with fault(hdfs):
        answer, _ = client.communicate("go on\n", timeout=180)
        assert client.returncode == 0
        # What a thread that was left behind has made goes when it gets that far.
        wait_until(
            lambda: TEMPORARY_PREFIX not in hdfs.fs("-ls", "-C", "-R", root).stdout,
            "temporary files are gone",
            timeout_s=30,
        )
    return json.loads(answer)


@pytest.mark.parametrize(("fault", "count"), [(dead, 40), (silent, 10)])
def test_small_files_are_written(hdfs, fault, count):
    write(hdfs, fault, "small", count)


def test_growing_files_are_written(hdfs):
    write(hdfs, dead, "growing", 30)


def test_what_is_cancelled_leaves_nothing(hdfs):
    assert 0 < write(hdfs, dead, "cancelled", 60) < 60

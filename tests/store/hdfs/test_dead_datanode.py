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
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.hdfs import Hdfs, HdfsSettings, hadoop_jars

from bootseer.store.api.name import TEMPORARY_PREFIX

pytestmark = [pytest.mark.root, pytest.mark.hdfs, pytest.mark.faults]

BUILD = Path(__file__).parents[3] / "build"
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
from pathlib import PurePosixPath
import trio
from bootseer.agent.node.spawn import leave
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.checkpoint.write.draft import Drafts
from bootseer.store.api.base import publish, read_all
from bootseer.store.hdfs.store import HdfsStore
from bootseer.store.wrappers.limit import LimitStore
from bootseer.store.wrappers.retry import RetryStore

MIB = 1 << 20
authority, root, what, count = *sys.argv[1:4], int(sys.argv[4])


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


async def striped(store):
    options = WriteOptions(unit_bytes=MIB, width=8, block_bytes=4 * MIB, memory_bytes=32 * MIB)
    tree = CheckpointTree(store)
    content = os.urandom(MIB)
    async with trio.open_nursery() as nursery:
        drafts = Drafts(tree, nursery, options)
        draft = drafts.begin("file", None)
        for number in range(count):
            if number == 16:
                ready()
            await draft.write(number * MIB, content[number:] + content[:number])
        source = tree.source(await draft.publish())
        await source.plan()
        for number in range(count):
            assert await source.fetch(number) == content[number:] + content[:number]
        await source.close()
    return drafts.context.broken


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
    # One thread: those in which a sync hangs must not count.
    inner = HdfsStore(authority, PurePosixPath(root), threads=trio.CapacityLimiter(1))
    limit = trio.CapacityLimiter(64)
    store = RetryStore(LimitStore(inner, deadline_s=10, operations=limit))
    await publish(store, "first", b"")
    if what != "striped":
        ready()
    print(json.dumps(await globals()[what](store)))


trio.run(main)
leave(0)  # threads hang in calls of the store
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
    authority = hdfs.url.removeprefix("hdfs://")
    argv = [sys.executable, "-P", "-c", CLIENT, authority, root, what, str(count)]
    env = {"HADOOP_USER_NAME": "root"}
    client = hdfs.cluster.popen(argv, env=env, stdin=subprocess.PIPE, stderr=None)
    assert client.stdout.readline().strip() == "ready"
    with fault(hdfs):
        try:
            answer, _ = client.communicate("go on\n", timeout=180)
        finally:
            client.kill()
            client.communicate()
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


NOT_RECOVERED = pytest.mark.xfail(
    reason="what was written to a block with a silent machine cannot be read back until HDFS has "
    "recovered the block, for which it waits for that machine: the file fails, and close(2) says so"
)


@pytest.mark.parametrize(
    ("fault", "size_mib"), [(dead, 128), pytest.param(silent, 48, marks=NOT_RECOVERED)]
)
def test_a_striped_file_is_written_block_after_block(hdfs, fault, size_mib):
    assert write(hdfs, fault, "striped", size_mib) > 0


def test_what_is_cancelled_leaves_nothing(hdfs):
    assert 0 < write(hdfs, dead, "cancelled", 60) < 60

"""The HDFS store, with two NameNodes of which one takes over."""

import os
from pathlib import Path, PurePosixPath

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.hdfs import Hdfs, hadoop_jars
from bootseer_dev.hdfs.conf import NAMESERVICE

from bootseer.store.api.base import publish, read_all
from bootseer.store.hdfs.store import HdfsOptions, HdfsStore
from bootseer.store.wrappers.retry import RetryStore

pytestmark = [pytest.mark.root, pytest.mark.hdfs, pytest.mark.faults]

BUILD = Path(__file__).parents[3] / "build"


@pytest.fixture(scope="module")
def hdfs():
    jars = hadoop_jars(BUILD)
    spec = ClusterSpec(name=f"failover-{os.getpid()}", nodes=0, datanodes=1, namenodes=2)
    with Cluster.up(spec) as cluster:
        started = Hdfs.start(cluster, jars)
        with cluster.network():
            yield started


@pytest.fixture
def store(hdfs, request):
    conf_dir = hdfs.cluster.state_dir / "etc" / "hadoop"
    folder = PurePosixPath("/", request.node.name)
    return HdfsStore(NAMESERVICE, folder, HdfsOptions(str(conf_dir)))


async def test_a_store_follows_the_active_namenode(hdfs, store):
    await publish(store, "before", b"1")
    async with store.open("before") as reader:
        old = hdfs.active_namenode()
        assert hdfs.fail_over() != old
        assert await reader.pread(0, 1) == b"1"
    assert await read_all(store, "before", 1) == b"1"
    await publish(store, "after", b"2")
    hdfs.fail_over()
    assert [info.name for info in await store.list()] == ["after", "before"]


async def test_a_write_goes_on_when_the_active_namenode_dies(hdfs, store):
    store = RetryStore(store)
    async with store.create("long") as writer:
        await writer.write(b"1" * 1000)
        dead = hdfs.active_namenode()
        hdfs.stop(dead)
        assert hdfs.fail_over() != dead
        await writer.write(b"2" * 1000)
        await writer.commit()
    assert await read_all(store, "long", 2000) == b"1" * 1000 + b"2" * 1000
    hdfs.start_namenode(dead)

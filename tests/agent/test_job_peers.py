"""Which reads of a worker go through the other nodes of its job."""

import pytest
import trio

from bootseer.agent.messages.worker import StartTask
from bootseer.agent.node.job import Job
from bootseer.agent.workers.base import Task, owner_of
from bootseer.agent.workers.job_peers import JobPeers
from bootseer.peers.start_store import StartStore, store_itself
from bootseer.peers.store import PeerStore
from bootseer.store.from_settings import connect, connect_images
from bootseer.store.from_url import open_store

JOB = Job(7, "c", "n1", 1000, 1000, "u", "/home/u", "k", False, "bootseer://x", 1.0, 1)
LARGE = JOB._replace(nodes=8, nodelist="n[1-8]", secret="00" * 32)
SETTINGS = {"store.url": "file:///own", "image.store_url": "file:///images"}


@pytest.fixture
def peers_of(nursery):
    def make(job):
        return JobPeers(Task(None, StartTask(job, SETTINGS)), nursery)

    return make


@pytest.fixture
async def nursery():
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


def stores(peers):
    config, owner = peers._task.config, owner_of(peers._task.job)
    return connect(config, owner), connect_images(config, owner)


async def test_nodes_of_a_large_job_start_together(peers_of):
    peers = peers_of(LARGE)
    for number, store in enumerate(stores(peers)):
        starts = peers.start_reads(store)
        assert type(starts) is StartStore and starts._number == number
        assert store_itself(starts) is store
        shared = peers.through(starts)
        assert type(shared) is PeerStore and shared._inner is store


@pytest.mark.parametrize(
    "job",
    [JOB, LARGE._replace(nodes=3, nodelist="n[1-3]"), LARGE._replace(is_later=True)],
    ids=["of one node", "small", "later"],
)
async def test_others_read_what_the_store_has_now(peers_of, job):
    peers = peers_of(job)
    for store in stores(peers):
        assert peers.start_reads(store) is store


async def test_other_stores_are_read_by_each_node(peers_of):
    peers, other = peers_of(LARGE), open_store("file:///elsewhere")
    assert peers.start_reads(other) is other is peers.through(other)

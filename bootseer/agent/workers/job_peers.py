"""The nodes of a job, as workers ask them for what they have read from the job's stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bootseer.agent.node.job import Job
from bootseer.agent.workers.base import Task, owner_of
from bootseer.config import Config
from bootseer.core.nodelist import expand
from bootseer.env.snapshot.group_store import shared_stores
from bootseer.peers.client import PeerClient, PortRange
from bootseer.peers.grid import PeerGrid
from bootseer.peers.store import PeerStore
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect, connect_images

_OPERATIONS = 32
_MAX_NOTES = 8


def job_stores(task: Task) -> Iterator[Store]:
    """Yield the stores that nodes of a job read for each other, in the same order on all nodes.

    Raises:
        ConfigError: this version does not support one of them.
    """
    owner = owner_of(task.job)
    yield connect(task.config, owner, operations=_OPERATIONS)
    yield connect_images(task.config, owner, operations=_OPERATIONS)
    yield from shared_stores(task.config, owner)


def ports(job: Job, config: Config) -> list[int]:
    """List the TCP ports where the job's servers may listen."""
    first = config.peers.first_port
    return PortRange(first, min(first + config.peers.ports - 1, 65535)).of_job(job.job_id)


def peer_client(task: Task, note: Callable[[str], None]) -> PeerClient | None:
    """Return what asks the other nodes of a job; None if they do not talk to each other.

    Args:
        task: of this worker.
        note: called with the reason when a node is given up, a few times at most.
    """
    job, config = task.job, task.config
    hosts = [f"{name}{config.peers.host_suffix}" for name in expand(job.nodelist)]
    if not job.has_peers(config.peers.min_nodes) or len(hosts) != job.nodes:
        return None
    notes = iter(range(_MAX_NOTES))

    def note_some(why: str) -> None:
        if next(notes, None) is not None:
            note(why)

    return PeerClient(
        hosts,
        PeerGrid(job.nodes, job.node_index),
        bytes.fromhex(job.secret),
        ports(job, config),
        note_some,
    )


def through_peers(store: Store, stores: Iterator[Store], client: PeerClient | None) -> Store:
    """Read the objects of a store from the other nodes first, if that is one of the job's stores.

    Args:
        store: the store.
        stores: the job's, see `job_stores`.
        client: asks the nodes; None to ask nobody.
    """
    if client is None:
        return store
    number = next((n for n, one in enumerate(stores) if one.url == store.url), None)
    return store if number is None else PeerStore(store, number, client)

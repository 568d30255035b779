"""The nodes of a job, as workers ask them for what they have read from the job's stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property

import trio

from bootseer.agent.node.job import Job
from bootseer.agent.workers.base import Task, owner_of
from bootseer.config import Config
from bootseer.core.nodelist import expand
from bootseer.env.snapshot.group_store import shared_stores
from bootseer.errors import Closed
from bootseer.peers.client import PeerClient, ports_of_job
from bootseer.peers.grid import PeerGrid
from bootseer.peers.shared_files import SharedFiles
from bootseer.peers.start_store import StartStore, store_itself
from bootseer.peers.store import PeerStore
from bootseer.store.api.base import Store
from bootseer.store.from_settings import connect, connect_images, connect_to

_OPERATIONS = 32
_CHECKPOINT_OPERATIONS = 64
"""Concurrent requests of a checkpoint's store: all reads, writes and look-ups."""
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
    if task.job.checkpoint:
        yield checkpoint_store(task)


def checkpoint_store(task: Task) -> Store:
    """Open the store of the job's checkpoint.

    Raises:
        ConfigError: this version does not support it.
    """
    return connect_to(
        task.job.checkpoint,
        task.config,
        owner_of(task.job),
        private=False,
        operations=_CHECKPOINT_OPERATIONS,
    )


def ports(job: Job, config: Config) -> list[int]:
    """List the TCP ports where the job's servers may listen."""
    first = config.peers.first_port
    return ports_of_job(range(first, min(first + config.peers.ports, 65536)), job.job_id)


def connect_peers(job: Job, config: Config, note: Callable[[str], None]) -> PeerClient | None:
    """Return what asks the job's nodes, connected to none yet; None if they have no servers.

    Args:
        job, config: of this worker's task.
        note: called with the reason when a node is given up.
    """
    names = expand(job.nodelist) if job.has_peers(config.peers.min_nodes) else []
    if not names or len(names) != job.nodes:
        return None
    hosts = [f"{name}{config.peers.host_suffix}" for name in names]
    grid, secret = PeerGrid(job.nodes, job.node_index), bytes.fromhex(job.secret)
    return PeerClient(hosts, grid, secret, ports(job, config), note)


class JobPeers:
    """The nodes of a job, for one worker that reads from them.

    Attributes:
        client: asks the nodes; None if they do not read from each other.
    """

    def __init__(self, task: Task, nursery: trio.Nursery) -> None:
        """Connect to nobody yet.

        Args:
            task: of this worker.
            nursery: for reports of nodes that are given up.
        """
        self._task = task
        self._nursery = nursery
        self._notes = 0
        self.client = connect_peers(task.job, task.config, self._note)

    def through(self, store: Store) -> Store:
        """Read the objects of a store from the nodes first, if it is one of the job's stores.

        Only for objects that are never replaced by others, and whose readers check what they get.
        """
        store = store_itself(store)
        number = self._number(store)
        if self.client is None or number is None:
            return store
        return PeerStore(store, number, self.client)

    def start_reads(self, store: Store) -> Store:
        """Read the small objects of a store that all nodes read as the job starts, once for many.

        They may be replaced, and what was read some seconds ago is good enough for a start: not for
        what the job requests later, and not for changing them.
        """
        number = self._number(store)
        if self.client is None or number is None or self._task.job.is_later:
            return store
        return StartStore(store, number, self.client)

    def files_of_checkpoint(self, store: Store) -> SharedFiles | None:
        """Share the checkpoint's files that several nodes read; None if they share nothing.

        Args:
            store: from `checkpoint_store`.
        """
        number = self._number(store)
        if self.client is None or number is None:
            return None
        return SharedFiles(store, number, self.client)

    def _number(self, store: Store) -> int | None:
        """Return the number of a store among the job's, None if nodes do not read it for others."""
        if self.client is None or store.url not in self._urls:
            return None
        return self._urls.index(store.url)

    @cached_property
    def _urls(self) -> list[str]:
        """The URLs of the job's stores by number; to connect looks up groups of users."""
        return [store.url for store in job_stores(self._task)]

    def close(self) -> None:
        """End all connections."""
        if self.client is not None:
            self.client.close()

    def _note(self, why: str) -> None:
        self._notes += 1
        if self._notes <= _MAX_NOTES:
            self._nursery.start_soon(self._report, why)

    async def _report(self, why: str) -> None:
        with suppress(Closed):
            async with self._task.stage("peers.lost") as report:
                report.fall_back(f"what it has is read elsewhere: {why}")

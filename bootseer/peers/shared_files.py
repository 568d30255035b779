"""Find out which files several nodes of a job read, to read those through each other.

Each node may read a part of a checkpoint that no other node reads: through another node, that would
take two links instead of one. Nobody knows before which files are shared. So a node asks the home
of a file's name whether another node has asked, too, and asks again while it reads.
"""

from __future__ import annotations

import trio

from bootseer.peers.client import PeerClient
from bootseer.peers.store import PeerStore
from bootseer.store.api.base import Store

_ASK_FIRST_S = 0.1
_ASK_LAST_S = 2.0
_STAYS_SHARED_S = 20.0


class SharedFiles:
    """The files of one store, as this node of a job reads them.

    Attributes:
        store: reads objects of shared files through the nodes of the job.
    """

    def __init__(self, store: Store, number: int, client: PeerClient) -> None:
        """Ask nobody yet.

        Args:
            store: that has the files.
            number: of it among the job's stores.
            client: asks the nodes.
        """
        self.store = PeerStore(store, number, client)
        self._number = number
        self._client = client

    def file(self, name: str) -> SharedFile:
        """Return a file that this node reads.

        Args:
            name: of the file, the same on all nodes, and of one version of it.
        """
        return SharedFile(name, self._number, self._client)


class SharedFile:
    """A file that this node reads, and others may read.

    Concurrency: any number of tasks of one trio run.
    """

    def __init__(self, name: str, number: int, client: PeerClient) -> None:
        """Use `SharedFiles.file`."""
        self._name = name
        self._number = number
        self._client = client
        self._is_shared = False
        self._ask_at = 0.0
        self._pause_s = _ASK_FIRST_S
        self._first = trio.Lock()
        self._is_known = False

    async def is_shared(self) -> bool:
        """Return whether another node reads the file, as far as is known."""
        if not self._is_known:
            async with self._first:
                if not self._is_known:
                    await self._ask()
                    self._is_known = True
        elif trio.current_time() >= self._ask_at:
            await self._ask()
        return self._is_shared

    async def _ask(self) -> None:
        self._ask_at = trio.current_time() + self._pause_s  # other tasks go by what is known
        self._is_shared = await self._client.is_shared(self._number, self._name)
        wait_s = min(2 * self._pause_s, _ASK_LAST_S)
        self._pause_s = _STAYS_SHARED_S if self._is_shared else wait_s
        self._ask_at = trio.current_time() + self._pause_s

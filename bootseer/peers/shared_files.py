"""Find out which files several nodes of a job read, to read those through each other.

Each node may read a part of a checkpoint that no other node reads: through another node, that would
take two links instead of one. Nobody knows before which files are shared. So a node asks the home
of a file's name whether another node has asked, too, and asks again while it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from bootseer.peers.client import PeerClient
from bootseer.peers.store import PeerStore
from bootseer.store.api.base import Store

_ASK_FIRST_S = 0.1
_ASK_LAST_S = 2.0
_STAYS_SHARED_S = 20.0


@dataclass(slots=True)
class _File:
    """What is known of a file.

    Attributes:
        is_shared: another node reads it.
        ask_at: when to ask next, on trio's clock.
        pause_s: between two questions.
    """

    is_shared: bool = False
    ask_at: float = 0.0
    pause_s: float = _ASK_FIRST_S


class SharedFiles:
    """The files of one store, as this node of a job reads them.

    Concurrency: any number of tasks of one trio run.

    Attributes:
        store: reads objects of shared files through the nodes of the job.
        client: asks the nodes.
    """

    def __init__(self, store: Store, number: int, client: PeerClient) -> None:
        """Ask nobody yet.

        Args:
            store: that has the files.
            number: of it among the job's stores.
            client: asks the nodes.
        """
        self.store = PeerStore(store, number, client)
        self.client = client
        self._number = number
        self._files: dict[str, _File] = {}

    async def is_shared(self, name: str) -> bool:
        """Return whether another node reads a file, as far as is known.

        Args:
            name: of the file, the same on all nodes, and of one version of it.
        """
        file = self._files.setdefault(name, _File())
        if trio.current_time() >= file.ask_at:
            file.ask_at = trio.current_time() + file.pause_s  # other tasks go by what is known
            file.is_shared = await self.client.is_shared(self._number, name)
            file.pause_s = _STAYS_SHARED_S if file.is_shared else min(2 * file.pause_s, _ASK_LAST_S)
            file.ask_at = trio.current_time() + file.pause_s
        return file.is_shared

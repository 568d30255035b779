"""Lend a job the node's blocks of an image whose manifest its user has shown.

Standard library and our own extension only.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from threading import Thread

from bootseer.agent.broker.messages import close_all
from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.cache.folder import BlockCache, CacheEntry
from bootseer.cache.reservation import REQUEST, answer_reservation
from bootseer.cache.size import EntrySize
from bootseer.cache.token import sealed_token
from bootseer.errors import BootseerError, NotFound, Unavailable

MAX_LENT = 64
"""Entries in use by a job at once."""


def open_cache(settings: BrokerSettings) -> BlockCache:
    """Name the node's block cache, as the settings say."""
    folder = Path(settings.cache_dir, "images")
    return BlockCache(folder, settings.quota_bytes, settings.free_share, settings.user_share)


class Lender:
    """The entries that a job has in use.

    Concurrency: any number of threads.
    """

    def __init__(self, uid: int, settings: BrokerSettings) -> None:
        """Begin with none.

        Args:
            uid: of the job's user, for whom room is counted.
            settings: of the node.
        """
        self._uid = uid
        self._cache = open_cache(settings)
        self._numbers = count(1)
        self._lent: dict[int, CacheEntry] = {}

    def lend(self, token: bytes) -> tuple[int, list[int]]:
        """Lend an image's entry, found by its token.

        Returns:
            The entry's number, and the descriptors that `messages.Lend` lists.

        Raises:
            NotFound: the node has none.
            BootseerError: as for `BlockCache.find`.
        """
        return self._hand_out(self._cache.find(token, self._uid))

    def lend_new(self, size: EntrySize, manifest_fd: int) -> tuple[int, list[int]]:
        """Lend an image's entry, given its manifest; make what is missing of it.

        Raises:
            Corrupt: that is no manifest in sealed memory.
            BootseerError: as for `BlockCache.create`.
        """
        token, size_bytes = sealed_token(manifest_fd)
        if size_bytes != size.manifest_bytes:
            raise Unavailable("the manifest has another length than was said")
        return self._hand_out(self._cache.create(token, size, manifest_fd, self._uid))

    def sweep(self) -> list[str]:
        """See `BlockCache.sweep`."""
        return self._cache.sweep()

    def entry(self, number: int) -> CacheEntry:
        """Return an entry that is lent.

        Raises:
            NotFound: it is not.
        """
        entry = self._lent.get(number)
        if entry is None:
            raise NotFound("the image's entry is not lent any more")
        return entry

    def _hand_out(self, entry: CacheEntry) -> tuple[int, list[int]]:
        with ExitStack() as undo:
            undo.callback(entry.close)
            if len(self._lent) >= MAX_LENT:
                raise Unavailable(f"{MAX_LENT} entries of the block cache are in use by this job")
            fds: list[int] = []
            undo.callback(lambda: close_all(fds))
            fds.append(entry.open_manifest())
            fds += entry.open_blocks()
            fds += entry.open_keeper()
            number = next(self._numbers)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._lent[number] = entry
            Thread(target=self._grant, args=(number, entry, ours), daemon=True).start()
            undo.pop_all()
        return number, [*fds, theirs.detach()]

    def _grant(self, number: int, entry: CacheEntry, end: socket.socket) -> None:
        """Grant room until the keeper has gone; then the entry is not in use any more."""
        with end, suppress(OSError, BootseerError):
            while message := end.recv(REQUEST.size + 1):
                end.send(answer_reservation(message, entry.reserve))
        del self._lent[number]
        entry.close()

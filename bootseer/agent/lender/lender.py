"""Lend a job the node's cached blocks of an image whose manifest its user has shown.

The block cache belongs to a separate account; root and the supervisor write to it only through
descriptors lent here. The lender parses no user data: it treats a manifest as bytes with a
token.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import BoundedSemaphore, Thread

from bootseer.agent.messages.lender import VERBS, CreateEntry, OpenEntry
from bootseer.agent.node.broker_settings import BrokerSettings
from bootseer.agent.node.spawn import leave
from bootseer.cache.folder import BlockCache, CacheEntry
from bootseer.cache.reservation import REQUEST, answer_reservation
from bootseer.cache.size import EntrySize
from bootseer.cache.token import sealed_token
from bootseer.errors import BootseerError, Corrupt, Unavailable
from bootseer.ipc.descriptors import close_all, exactly
from bootseer.ipc.request_server import RequestServer

MAX_LENT = 64
"""Entries that a job may have in use at a time."""


def open_cache(settings: BrokerSettings) -> BlockCache:
    """Return the node's block cache, as configured."""
    limits = (settings.quota_bytes, settings.free_share, settings.user_share)
    return BlockCache(Path(settings.blocks), *limits)


class Lender:
    """Serves the requests of one job and holds its entries.

    Concurrency: any number of threads.
    """

    def __init__(self, uid: int, settings: BrokerSettings) -> None:
        """Create a lender without entries in use.

        Args:
            uid: the job's user, to whom space is charged.
            settings: the node's settings for brokers.
        """
        self._uid = uid
        self._cache = open_cache(settings)
        self._free = BoundedSemaphore(MAX_LENT)

    def carry_out(self, request: OpenEntry | CreateEntry, fds: list[int], sent: list[int]) -> int:
        """Lend an image's entry, as `bootseer.agent.messages.lender` describes.

        Raises:
            NotFound: the node has no such entry.
            Corrupt: the descriptor is not a manifest in sealed memory of the stated length.
            BootseerError: as for `BlockCache.find` and `BlockCache.create`.
        """
        if isinstance(request, OpenEntry):
            entry = self._cache.find(request.token, self._uid)
        else:
            (manifest_fd,) = exactly(fds, 1)
            size = EntrySize(request.manifest_bytes, request.image_bytes, request.blocks)
            token, size_bytes = sealed_token(manifest_fd)
            if size_bytes != size.manifest_bytes:
                raise Corrupt("the manifest does not have the length stated in the request")
            entry = self._cache.create(token, size, manifest_fd, self._uid)
        sent += self._hand_out(entry)
        strange = self._cache.sweep()
        with suppress(OSError):  # /run is full
            for what in strange:
                print(what, file=sys.stderr, flush=True)
        return len(strange)

    def _hand_out(self, entry: CacheEntry) -> list[int]:
        with ExitStack() as undo:
            undo.callback(entry.close)
            if not self._free.acquire(blocking=False):
                raise Unavailable(
                    f"cannot open another cached image: this job uses {MAX_LENT} already"
                )
            undo.callback(self._free.release)
            fds: list[int] = []
            undo.callback(lambda: close_all(fds))
            fds.append(entry.open_manifest())
            fds += entry.open_blocks()
            fds += entry.open_keeper()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            Thread(target=self._grant, args=(entry, ours), daemon=True).start()
            undo.pop_all()
        return [*fds, theirs.detach()]

    def _grant(self, entry: CacheEntry, end: socket.socket) -> None:
        """Grant space until the keeper has gone; then release the entry."""
        with end, suppress(OSError, BootseerError):
            while message := end.recv(REQUEST.size + 1):
                end.send(answer_reservation(message, entry.reserve))
        entry.close()
        self._free.release()


def serve(end: socket.socket, uid: int, settings: BrokerSettings) -> None:
    """Serve a supervisor's requests until it ends; then exit this process.

    Args:
        end: our end of the channel to the supervisor.
        uid: the job's user.
        settings: the node's settings for brokers.
    """
    RequestServer(end, VERBS, Lender(uid, settings).carry_out).run()
    leave(0)

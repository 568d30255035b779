"""Entries of the block cache: opened by the lender, written here for the image's server."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial

import trio

from bootseer.agent.messages.lender import DESCRIPTORS, CreateEntry, OpenEntry
from bootseer.cache.keeper import BlockKeeper, check_entry, take_manifest
from bootseer.cache.keeper_link import serve_keeper
from bootseer.cache.reservation_client import ReservationClient, Room
from bootseer.core.image_manifest import ImageManifest
from bootseer.ipc.descriptors import close_all, exactly
from bootseer.ipc.request_client import RequestClient


class CacheEntryHandle:
    """An entry of the block cache, in use until it is closed.

    Attributes:
        foreign_files: number of foreign files in the cache; agent.log lists them.
        readers: descriptors for readers: manifest, data and map.
    """

    def __init__(self, foreign_files: int, fds: list[int], manifest: ImageManifest) -> None:
        """Take over the descriptors that `OpenEntry` lists."""
        self.foreign_files = foreign_files
        self.readers = fds[:3]
        self._manifest = manifest
        self._room = ReservationClient(socket.socket(fileno=fds[6]))
        data, block_map, claims = fds[3:6]
        has_room = Room(self._room.reserve).take
        self._keeper = BlockKeeper(data, block_map, claims, manifest, has_room)

    async def keep(self, ends: list[socket.socket], memory: int) -> None:
        """Serve the block keeper until the other ends are closed; then close the entry.

        Args:
            ends: of the sockets.
            memory: descriptor of the memory that is shared with the other ends; taken over.

        Cancellation: the threads finish their current request, and the entry is closed with this
        process.
        """
        async with trio.open_nursery() as nursery:
            for end in ends:
                call = partial(serve_keeper, self._keeper, self._manifest, end, memory)
                nursery.start_soon(partial(trio.to_thread.run_sync, call, abandon_on_cancel=True))
        os.close(memory)
        self.close()

    def close(self) -> None:
        """Release the entry, so that it may be removed."""
        self._keeper.close()
        self._room.close()
        self.close_readers()

    def close_readers(self) -> None:
        """Close the readers' descriptors, once sent."""
        close_all(self.readers)
        self.readers = []


async def open_cache_entry(lender: RequestClient, digest: str, token: bytes) -> CacheEntryHandle:
    """Open an image's entry by its token.

    Args:
        lender: channel to this job's lender.
        digest: digest of the image.
        token: token of its manifest.

    Raises:
        NotFound: the node has none, or a damaged one: `create_cache_entry` creates it.
        Corrupt: the token belongs to another image.
        BootseerError: as for `BlockCache.find`.
    """
    return await _open(lender, OpenEntry(token), [], lambda fds: check_entry(fds, digest, token))


async def create_cache_entry(
    lender: RequestClient, digest: str, manifest_fd: int
) -> CacheEntryHandle:
    """Open or create an image's entry, given its manifest.

    Args:
        lender: channel to this job's lender.
        digest: digest of the image.
        manifest_fd: descriptor of the manifest in sealed memory; stays the caller's.

    Raises:
        Corrupt: it is not the manifest of that image.
        BootseerError: as for `BlockCache.create`.
    """
    manifest, size = await trio.to_thread.run_sync(take_manifest, manifest_fd, digest)
    request = CreateEntry(size.manifest_bytes, size.image_bytes, size.blocks)
    return await _open(lender, request, [manifest_fd], lambda fds: manifest)


async def _open(
    lender: RequestClient,
    request: OpenEntry | CreateEntry,
    handed: list[int],
    manifest_of: Callable[[list[int]], ImageManifest],
) -> CacheEntryHandle:
    reply, fds = await lender.ask(request, handed)
    try:
        exactly(fds, DESCRIPTORS)
        manifest = await trio.to_thread.run_sync(manifest_of, fds[:3])
        return CacheEntryHandle(reply.value, fds, manifest)
    except BaseException:
        close_all(fds)
        raise

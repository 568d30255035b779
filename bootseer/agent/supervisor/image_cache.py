"""An image's blocks on this node: lent by the lender, and kept here for its server."""

from __future__ import annotations

import os
import socket
from functools import partial

import trio

from bootseer.agent.messages.client import Client
from bootseer.agent.messages.lender import DESCRIPTORS, Lend, LendNew
from bootseer.agent.messages.message import close_all, exactly
from bootseer.cache.keeper import BlockKeeper, entry_size, read_manifest
from bootseer.cache.link import serve_keeper
from bootseer.cache.room import ReservationClient, Room
from bootseer.cache.size import SUM_BYTES, EntrySize
from bootseer.cache.token import manifest_token
from bootseer.core import image
from bootseer.core.image import ImageManifest
from bootseer.errors import NotFound


class LentImage:
    """An entry of the block cache, in use until it is closed.

    Attributes:
        strange: how much is in the cache that is no part of it; the agent's log names that.
        readers: descriptors for whoever reads blocks: manifest, data and map.
    """

    def __init__(self, strange: int, fds: list[int], manifest: ImageManifest) -> None:
        """Take over the descriptors that `Lend` lists."""
        self.strange = strange
        self.readers = fds[:3]
        self._manifest = manifest
        self._room = ReservationClient(socket.socket(fileno=fds[6]))
        data, block_map, claims = fds[3:6]
        has_room = Room(self._room.reserve).take
        self._keeper = BlockKeeper(data, block_map, claims, manifest, has_room)

    async def keep(self, ends: list[socket.socket]) -> None:
        """Answer requests to keep blocks until the other ends are closed; then close the entry.

        Cancellation: the threads go on to the end of the request that they are at, and the entry
        is closed with this process.
        """
        async with trio.open_nursery() as nursery:
            for end in ends:
                call = partial(serve_keeper, self._keeper, self._manifest, end)
                nursery.start_soon(partial(trio.to_thread.run_sync, call, abandon_on_cancel=True))
        self.close()

    def close(self) -> None:
        """Let others have the entry removed."""
        self._keeper.close()
        self._room.close()
        self.close_readers()

    def close_readers(self) -> None:
        """Close what is for readers, once they have it."""
        close_all(self.readers)
        self.readers = []


async def borrow(lender: Client, digest: str, token: bytes) -> LentImage:
    """Borrow an image's entry, found by its token.

    Args:
        lender: of this job.
        digest: of the image.
        token: of its manifest.

    Raises:
        NotFound: the node has none, or a damaged one: `borrow_new` makes it.
        Corrupt: the token is another image's.
        BootseerError: as for `BlockCache.find`.
    """
    reply, fds = await lender.ask(Lend(token))
    try:
        manifest = await trio.to_thread.run_sync(_read, fds, digest, token)
        return LentImage(reply.value, fds, manifest)
    except BaseException:
        close_all(fds)
        raise


async def borrow_new(lender: Client, digest: str, manifest_fd: int) -> LentImage:
    """Borrow an image's entry, given its manifest; have it made if need be.

    Args:
        lender: of this job.
        digest: of the image.
        manifest_fd: of the manifest in sealed memory; stays the caller's.

    Raises:
        Corrupt: it is not the manifest of that image.
        BootseerError: as for `BlockCache.create`.
    """
    manifest, size = await trio.to_thread.run_sync(_decode, manifest_fd, digest)
    request = LendNew(size.manifest_bytes, size.image_bytes, size.blocks)
    reply, fds = await lender.ask(request, [manifest_fd])
    try:
        return LentImage(reply.value, fds, manifest)
    except BaseException:
        close_all(fds)
        raise


def _decode(manifest_fd: int, digest: str) -> tuple[ImageManifest, EntrySize]:
    encoded = read_manifest(manifest_fd)
    manifest = image.decode(encoded, "the manifest handed over", digest)
    return manifest, entry_size(encoded, manifest)


def _read(fds: list[int], digest: str, token: bytes) -> ImageManifest:
    """Read the manifest of an entry, and compare with it what the entry is."""
    encoded = read_manifest(exactly(fds, DESCRIPTORS)[0])
    if manifest_token(encoded) != token:
        raise NotFound("the manifest in the block cache is damaged")
    manifest = image.decode(encoded, "the manifest in the block cache", digest)
    lengths = [os.fstat(fd).st_size for fd in fds[:3]]
    if lengths != [len(encoded), manifest.size_bytes, manifest.blocks * SUM_BYTES]:
        raise NotFound("files in the block cache do not have the image's length")
    return manifest

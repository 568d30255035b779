"""One node of a job imports an image that is new to the store; the others wait for it.

image-imports/KEY/NNNN.json is the lease of the node that imports (`bootseer.store.key_lease`). It
is in the user's own store, so no other user can make a job wait. Its node gives it up when the
image has its name in the image store, when the import has failed, and when the upload is expected
to take longer than the import did. A waiting node reads the lease once; after that, each poll is
one stat.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from bootseer.errors import BootseerError, NotFound
from bootseer.image.library import catalog
from bootseer.image.library.upload import UploadProgress
from bootseer.store import key_lease
from bootseer.store.api.base import Store
from bootseer.store.key_lease import KeyLease
from bootseer.store.wrappers.backoff import Backoff
from bootseer.units import NS_PER_S

ANNOUNCE_S = 10.0
"""Longest wait for a lease to appear: the nodes of a step do not begin at the same moment."""
LEAST_UPLOAD_S = 10.0
"""An upload may take as long, however short the import was."""
FOLDER = "image-imports"
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 5.0
_LAST_LOOK_S = 10.0
_LEFT_NS = 3600 * NS_PER_S
"""After this time, the lease of a node that died is removed."""


@dataclass(frozen=True, slots=True)
class JobImport:
    """An import of an image by one of a job's nodes, for all of them.

    Attributes:
        run: name of the run, the same on all nodes of the job.
        image: name of the image in the image store.
        leases: the user's own store.
        images: the image store.
    """

    run: str
    image: str
    leases: Store
    images: Store

    @property
    def folder(self) -> str:
        """Return the folder of its lease."""
        key = hashlib.sha256(f"{self.run}\n{self.image}".encode()).hexdigest()
        return f"{FOLDER}/{key}"


@dataclass(frozen=True, slots=True)
class WaitResult:
    """How a wait ended.

    Attributes:
        holder: user and node that imported the image, "" if none announced it.
        why: why the image is not in the store; "" if it is.
    """

    holder: str
    why: str


@asynccontextmanager
async def announced(shared: JobImport, who: str, nursery: trio.Nursery) -> AsyncIterator[None]:
    """Hold the lease of an import for the length of a block; then it is given up.

    Args:
        shared: the import.
        who: name of the holder, for the user.
        nursery: for the task that renews the lease.

    Raises:
        BootseerError: the lease is another node's, a store does not answer, or the user may not
            add images to the image store; then waiting would be in vain.
    """
    async with shared.images.create(catalog.name_object(shared.image)):
        pass  # without a commit, nothing is written
    lease = await key_lease.acquire(shared.leases, shared.folder, who)
    if lease is None:
        raise NotFound("another step of the job imports the image already")
    async with key_lease.held(shared.leases, shared.folder, lease, nursery):
        with suppress(BootseerError):
            await _remove_left(shared.leases)
        yield


async def wait_for_import(shared: JobImport, nodes: int, limit_s: float) -> WaitResult:
    """Wait until another node has imported an image, as long as that is better than to import it.

    Args:
        shared: the import.
        nodes: number of nodes that may be waiting.
        limit_s: longest time to wait.

    Cancellation: nothing is left behind.
    """
    pauses = key_lease.pauses(nodes, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    waiting = _Wait(shared, pauses)
    why = f"waited the longest time allowed, {limit_s:g} s"
    try:
        with trio.move_on_after(limit_s):
            why = await waiting.run()
    except BootseerError as error:
        return WaitResult(waiting.holder, f"cannot find out whether another node does: {error}")
    with trio.move_on_after(_LAST_LOOK_S), suppress(BootseerError):
        await catalog.resolve(shared.images, shared.image)
        why = ""
    return WaitResult(waiting.holder, why)


async def until_slow(progress: UploadProgress, limit_s: float) -> None:
    """Return once an upload is expected to take longer than a limit, by its speed so far.

    Args:
        progress: of the upload, which begins now.
        limit_s: for the whole upload.
    """
    began = trio.current_time()
    while True:
        await trio.sleep(limit_s / 8)
        took_s = trio.current_time() - began
        done = progress.done_bytes / progress.total_bytes if progress.total_bytes else 0.0
        if took_s >= limit_s / 4 and took_s > limit_s * done:
            return


@dataclass(eq=False, slots=True)
class _Wait:
    """A wait in progress.

    Attributes:
        holder: user and node with the lease, "" while there is none.
    """

    shared: JobImport
    pauses: Backoff
    holder: str = ""

    async def run(self) -> str:
        """Wait until the lease has been given up; returns why there is nothing more to wait for.

        Raises:
            BootseerError: the store does not answer.
        """
        lease = None
        # Long enough for two looks.
        with trio.move_on_after(max(ANNOUNCE_S, 3 * self.pauses.first_s)):
            lease = await self._find()
        if lease is None:
            return "no other node has announced that it imports the image"
        self.holder = lease.holder
        shared = self.shared
        if await key_lease.wait_for_end(shared.leases, shared.folder, lease, self.pauses):
            return f"{lease.holder} has not added it to the store, or not soon enough"
        return f"{lease.holder} has stopped importing it"

    async def _find(self) -> KeyLease | None:
        """Return the lease once it is there; None if the image is in the store before."""
        shared = self.shared
        attempt = 0
        while True:
            attempt += 1
            await trio.sleep(self.pauses.pause_s(attempt))
            lease = await key_lease.read_lease(shared.leases, shared.folder)
            if lease is not None and lease.is_live:
                return lease
            with suppress(NotFound):
                await catalog.resolve(shared.images, shared.image)
                return None


async def _remove_left(store: Store) -> None:
    """Remove the leases of nodes that died.

    Raises:
        BootseerError: the store does not answer.
    """
    for folder in await store.list(FOLDER):
        lease = await key_lease.read_lease(store, folder.name)
        if lease is not None and time.time_ns() - lease.until_ns > _LEFT_NS:
            with suppress(NotFound):
                await store.delete_tree(folder.name)

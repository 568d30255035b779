"""Lend the worker that serves an image the blocks that the node has of it."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import trio

from bootseer.agent.messages.worker import BlocksLent, BlocksRefused, BorrowBlocks
from bootseer.agent.supervisor.event_log import EventLog
from bootseer.agent.supervisor.images.image_cache import (
    CacheEntryHandle,
    create_cache_entry,
    open_cache_entry,
)
from bootseer.agent.supervisor.images.kernel_mount import KernelMount
from bootseer.agent.supervisor.worker_process import Worker
from bootseer.errors import BootseerError, NotFound
from bootseer.ipc.request_client import RequestClient


class BlockLending:
    """Answers one worker that asks for blocks.

    Attributes:
        has_lent: it has been lent an image's.
    """

    def __init__(self, lender: RequestClient, worker: Worker, kernel: KernelMount | None) -> None:
        """Lend nothing yet.

        Args:
            lender: has the rights on the block cache.
            worker: that is answered.
            kernel: what the kernel may mount of the image, once it is on the node.
        """
        self.has_lent = False
        self._lender = lender
        self._worker = worker
        self._kernel = kernel

    async def answer(
        self, wanted: BorrowBlocks, fds: list[int], events: EventLog, nursery: trio.Nursery
    ) -> None:
        """Give the worker what the node has of an image that its user may read.

        The worker proves that with the image's token, or with the manifest itself; its word alone
        counts for nothing.

        Args:
            wanted: which image, and its token if the worker has it.
            fds: of the manifest in sealed memory; none if the node ought to have it.
            events: take what goes wrong.
            nursery: for the threads that write to the cache.
        """
        send = self._worker.channel.send
        try:
            lent = await self._open_entry(wanted, fds)
        except NotFound:
            await send(BlocksRefused(wants_manifest=True))
            return
        except BootseerError as error:
            events.fall_back("image.cache", f"blocks are not kept on this node: {error}")
            await send(BlocksRefused(wants_manifest=False))
            return
        if lent.strange:
            what = f"{lent.strange} foreign files in the block cache; agent.log lists them"
            events.fall_back("image.cache", what)
        self.has_lent = True
        if self._kernel is not None:
            mounted = [os.dup(fd) for fd in lent.readers]
            nursery.start_soon(self._kernel.make, wanted.digest, mounted, events)
        with ExitStack() as theirs:
            ends, given = [], list(lent.readers)
            theirs.callback(lent.close_readers)
            for _ in range(2):
                end, its = socket.socketpair()
                ends.append(end)
                given.append(theirs.enter_context(its).fileno())
            nursery.start_soon(lent.keep, ends)
            await send(BlocksLent(), given)

    async def _open_entry(self, wanted: BorrowBlocks, fds: list[int]) -> CacheEntryHandle:
        if fds:
            return await create_cache_entry(self._lender, wanted.digest, fds[0])
        if not wanted.token:
            raise NotFound("the worker has no token")
        return await open_cache_entry(self._lender, wanted.digest, bytes.fromhex(wanted.token))

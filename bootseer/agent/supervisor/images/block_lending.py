"""Lend an image's server the node's cached blocks of the image."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass

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
from bootseer.cache.keeper_link import shared_memory
from bootseer.errors import BootseerError, NotFound
from bootseer.ipc.request_client import RequestClient


@dataclass(eq=False)
class BlockLending:
    """Answers one worker's requests for cached blocks.

    Attributes:
        lender: opens the block cache.
        worker: the image's server.
        kernel: the kernel's mount of the image, made once the image is cached.
        has_lent: whether blocks have been lent.
    """

    lender: RequestClient
    worker: Worker
    kernel: KernelMount | None
    has_lent: bool = False

    async def answer(
        self, wanted: BorrowBlocks, fds: list[int], events: EventLog, nursery: trio.Nursery
    ) -> None:
        """Lend the worker the cached blocks of an image that its user may read.

        The worker proves that right with the image's token or the manifest itself.

        Args:
            wanted: the image's digest, and its token if the worker has it.
            fds: descriptor of the manifest in sealed memory; empty if the node should have it.
            events: log for failures.
            nursery: for the threads that write to the cache.
        """
        send = self.worker.channel.send
        try:
            lent = await self._open_entry(wanted, fds)
        except NotFound:
            await send(BlocksRefused(wants_manifest=True))
            return
        except BootseerError as error:
            events.fall_back("image.cache", f"blocks are not kept on this node: {error}")
            await send(BlocksRefused(wants_manifest=False))
            return
        if lent.foreign_files:
            what = f"{lent.foreign_files} foreign files in the block cache; agent.log lists them"
            events.fall_back("image.cache", what)
        self.has_lent = True
        if self.kernel is not None:
            mounted = [os.dup(fd) for fd in lent.readers]
            nursery.start_soon(self.kernel.make, wanted.digest, mounted, events)
        with ExitStack() as theirs:
            ends, given = [], list(lent.readers)
            theirs.callback(lent.close_readers)
            for _ in range(2):
                end, its = socket.socketpair()
                ends.append(end)
                given.append(theirs.enter_context(its).fileno())
            memory = shared_memory()
            given.append(memory)
            nursery.start_soon(lent.keep, ends, memory)
            await send(BlocksLent(), given)

    async def _open_entry(self, wanted: BorrowBlocks, fds: list[int]) -> CacheEntryHandle:
        if fds:
            return await create_cache_entry(self.lender, wanted.digest, fds[0])
        if not wanted.token:
            raise NotFound("the worker has no token")
        return await open_cache_entry(self.lender, wanted.digest, bytes.fromhex(wanted.token))

"""Serve a snapshot's tree on a mount, without pyfuse3: the tree never changes.

The kernel looks up each name once and caches the result; opening a file needs no request.
"""

from __future__ import annotations

import os
from typing import Protocol

import trio

from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.errors import Unavailable
from bootseer.fuse.fastpath import FastPath, ReadRequest, TreeTable


class TreeReader(Protocol):
    """Reads the content of a mounted tree."""

    async def read(self, asked: ReadRequest) -> bytes | memoryview:
        """Return content that is missing or damaged in the node's cache.

        Raises:
            OSError: the content cannot be read.
        """

    def attach(self, fast: FastPath) -> None:
        """Set the fast path that answers all other reads."""


async def serve_tree(
    tree: TreeTable,
    reader: TreeReader,
    connection: int,
    blocks: CachedBlocks,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a tree on the descriptor that `attach` returned, until it is unmounted from outside.

    Needs no rights. Reports started when the mount is usable. Nothing in this process may access
    the mount's files: it would deadlock.

    Args:
        tree: what to show.
        reader: reads content that is not cached.
        connection: the descriptor; closed at the end.
        blocks: cached blocks of the image with the content.
        task_status: notified of the start.

    Raises:
        Unavailable: the kernel does not answer, or the mount was detached before serving.

        Cancellation: ends immediately. The mount stays, and gives errors, until it is detached.
    """
    try:
        try:
            fast = await trio.to_thread.run_sync(FastPath, connection, blocks, tree)
        except OSError as error:
            raise Unavailable(
                f"cannot serve a mount on descriptor {connection}: {error}"
            ) from error
        try:
            reader.attach(fast)
            task_status.started()
            await fast.answer_misses(reader.read)
        finally:
            fast.stop()
    finally:
        os.close(connection)

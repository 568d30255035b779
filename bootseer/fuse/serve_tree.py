"""Serve a snapshot's tree on a mount: without pyfuse3, for nothing in it ever changes.

The kernel asks for each name once and keeps what it is told; to open a file is no request at all.
"""

from __future__ import annotations

import os
from typing import Protocol

import trio

from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.errors import Unavailable
from bootseer.fuse.fastpath import FastPath, ReadRequest, TreeTable


class TreeReader(Protocol):
    """What a mounted tree needs beside its rows."""

    async def read(self, asked: ReadRequest) -> bytes | memoryview:
        """Return content that is not on this node, or damaged there.

        Raises:
            OSError: it cannot be had.
        """

    def attach(self, fast: FastPath) -> None:
        """Learn who answers all other reads."""


async def serve_tree(
    tree: TreeTable,
    reader: TreeReader,
    connection: int,
    blocks: CachedBlocks,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a tree on the descriptor that `attach` returned, until it is unmounted from outside.

    Needs no rights. Reports itself started when the mount can be used. Nothing in this process may
    touch the mount's files, for it would wait for itself.

    Args:
        tree: what to show.
        reader: asked for what is not here.
        connection: the descriptor; closed at the end.
        blocks: of the image that content is in.
        task_status: told of the start.

    Raises:
        Unavailable: the kernel does not answer, or the mount went before it was served.

    Cancellation: ends at once. The mount stays, and gives errors, until it is detached.
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

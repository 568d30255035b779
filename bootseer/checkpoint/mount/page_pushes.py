"""Push fetched content into the kernel's page cache before the kernel asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from bootseer.core.access_log import MARK_BYTES
from bootseer.fuse.view import Kernel

_PAGE_BYTES = 4096


class PagePushes:
    """Pushes content of one file into the page cache.

    The first page of each `MARK_BYTES`, the mark, is not pushed. When the kernel asks for it, that
    shows how far a reader has come.

    Concurrency: the tasks of one trio run.
    """

    def __init__(self) -> None:
        self._marks: dict[int, bytes] = {}
        self._under_way = 0
        self._ended = trio.Event()
        self._truncations = 0

    @property
    def is_truncating(self) -> bool:
        """Tell whether the file is being truncated, so that nothing may be pushed."""
        return self._truncations > 0

    async def push(self, kernel: Kernel, inode: int, offset: int, data: bytes) -> None:
        """Push a piece, without a mark at its beginning; a refusal of the kernel is ignored."""
        start = 0
        if offset % MARK_BYTES < len(data) and len(data) > _PAGE_BYTES:
            start = _PAGE_BYTES
            self._marks[offset] = data[:_PAGE_BYTES]
        self._under_way += 1
        try:
            with suppress(OSError):
                await kernel.store(inode, offset + start, memoryview(data)[start:])
        finally:
            self._under_way -= 1
            self._ended.set()
            self._ended = trio.Event()

    def pop_mark(self, offset: int, size_bytes: int) -> tuple[int, bytes | None]:
        """Return the offset of the last page of a range, and its content if it is a mark."""
        last_page = (offset + size_bytes - 1) // _PAGE_BYTES * _PAGE_BYTES
        return last_page, self._marks.pop(last_page, None)

    def forget_marks(self) -> None:
        """Drop the marks of a version that is replaced."""
        self._marks.clear()

    async def settle(self) -> None:
        """Wait until no push is under way.

        Call it without the file's lock: a push may wait for a read, and that for the lock.
        """
        while self._under_way:
            await self._ended.wait()

    @asynccontextmanager
    async def truncating(self) -> AsyncIterator[None]:
        """Let nothing be pushed within the block, after waiting for pushes under way."""
        self._truncations += 1
        try:
            await self.settle()
            yield
        finally:
            self._truncations -= 1

"""Push what was fetched of a file into the kernel's page cache, before it is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from bootseer.core.access_log import MARK_BYTES
from bootseer.fuse.view import Kernel

_PAGE_BYTES = 4096


class PagePushes:
    """The pushes of one file.

    The first page of each `MARK_BYTES`, a mark, is held back: the kernel asks for that, which shows
    how far a reader has come.

    Concurrency: the tasks of one trio run.
    """

    def __init__(self) -> None:
        """Begin with nothing pushed."""
        self._marks: dict[int, bytes] = {}
        self._under_way = 0
        self._ended = trio.Event()
        self._truncations = 0

    @property
    def is_truncating(self) -> bool:
        """Whether nothing may be pushed, because the file is being truncated."""
        return self._truncations > 0

    async def push(self, kernel: Kernel, inode: int, offset: int, data: bytes) -> None:
        """Push a piece, but for a mark at its beginning; what the kernel refuses is left out."""
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
        """Return where the last page of a range begins, and its content if that is a mark."""
        last_page = (offset + size_bytes - 1) // _PAGE_BYTES * _PAGE_BYTES
        return last_page, self._marks.pop(last_page, None)

    def forget_marks(self) -> None:
        """Drop the marks: they are of another version."""
        self._marks.clear()

    async def settle(self) -> None:
        """Wait until no pages are on their way, in whose place others are to be.

        Not with the file's lock: they may wait for a read in progress, and that for the lock.
        """
        while self._under_way:
            await self._ended.wait()

    @asynccontextmanager
    async def truncating(self) -> AsyncIterator[None]:
        """Push nothing that is of a longer version; waits for what is on its way."""
        self._truncations += 1
        try:
            await self.settle()
            yield
        finally:
            self._truncations -= 1

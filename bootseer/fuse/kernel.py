"""The way from a view to the kernel, by pyfuse3's notifications."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pyfuse3
import trio

from bootseer.errors import Closed
from bootseer.fuse.fastpath import FastPath

# Each copies at the speed of memory. They mostly wait for pages that reads in progress will fill,
# and those are not answered here.
_THREADS = 4


class KernelLink:
    """The `Kernel` of the mount that this process serves.

    Its calls run in threads, for the kernel lets them wait for reads that the trio thread is to
    answer. They do not hold up Python meanwhile.
    """

    def __init__(self, fast: FastPath | None = None) -> None:
        """Prepare; nothing may be said before pyfuse3 has a session.

        Args:
            fast: answers what it can before the view is asked.
        """
        self._fast = fast
        self._threads = trio.CapacityLimiter(_THREADS)
        self._is_closed = False
        self._under_way = 0
        self._all_back = trio.Event()

    async def store(self, inode: int, offset: int, data: bytes | memoryview) -> bool:
        """Put bytes of a file into the page cache."""
        return await self._call(pyfuse3.notify_store, inode, offset, data)

    async def forget_data(self, inode: int) -> None:
        """Drop a file's pages and attributes from the kernel's caches."""
        await self._call(pyfuse3.invalidate_inode, inode)

    def forget_entry(self, parent: int, name: bytes) -> None:
        """Have the kernel ask again for a name; pyfuse3 has a thread for these."""
        self._check()
        pyfuse3.invalidate_entry_async(parent, name, ignore_enoent=True)

    def reads(self, *, go_on: bool) -> list[tuple[int, int, int]]:
        """Tell what was read without the view."""
        return self._fast.touches(go_on=go_on) if self._fast is not None else []

    async def close(self) -> None:
        """Let calls in progress end, and refuse more.

        They end as long as reads are still being answered, so this comes before the end of that.
        """
        self._is_closed = True
        if self._under_way:
            await self._all_back.wait()

    async def _call(self, function: Callable[..., None], *arguments: object) -> bool:
        self._check()
        self._under_way += 1
        try:
            await trio.to_thread.run_sync(function, *arguments, limiter=self._threads)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        finally:
            self._under_way -= 1
            if self._is_closed and not self._under_way:
                self._all_back.set()
        return True

    def _check(self) -> None:
        if self._is_closed:
            raise Closed("the mount is ending; the kernel is told nothing more")

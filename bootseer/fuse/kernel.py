"""Notifications from a view to the kernel, by pyfuse3."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pyfuse3
import trio

from bootseer.errors import Closed
from bootseer.fuse.fastpath import FastPath

# Each copies at the speed of memory. They mostly wait for pages that reads in progress will fill;
# other threads answer those reads.
_THREADS = 4


class KernelLink:
    """The `Kernel` of the mount that this process serves.

    Its calls run in threads, because the kernel may block them until the trio thread has answered
    reads. They release the GIL.
    """

    def __init__(self, fast: FastPath | None = None) -> None:
        """Create a link; its calls may be used once pyfuse3 has a session.

        Args:
            fast: the mount's fast path, if any.
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
        await self._call(pyfuse3.invalidate_inode, inode)

    def forget_entry(self, parent: int, name: bytes) -> None:
        """Drop a name from the kernel's cache, in pyfuse3's thread for that."""
        self._check()
        pyfuse3.invalidate_entry_async(parent, name, ignore_enoent=True)

    def reads(self, *, go_on: bool) -> list[tuple[int, int, int]]:
        return self._fast.touches(go_on=go_on) if self._fast is not None else []

    async def close(self) -> None:
        """Wait for calls in progress, and refuse new ones.

        The calls only end while reads are still answered, so call this before serving stops.
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
            raise Closed("the mount is ending: the kernel can no longer be notified")

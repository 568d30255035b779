"""Keep folders of a mount from being renamed while names below them are in use.

The store's name of a file depends on all folders above it. So each operation that uses such a name
is counted as a user of the inode. A folder is renamed when nothing below it is in use; operations
that begin meanwhile wait until it is renamed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import trio


@dataclass(eq=False)
class FolderLocks:
    """Locks folders of a mount while names below them are used, or while they are renamed.

    Concurrency: the tasks of one trio run. No block of `moving` runs while one of `using` runs for
    an inode below the folder.

    Attributes:
        is_below: tells whether an inode is below a folder.
        on_unused: called with each inode that is not in use any more.
    """

    is_below: Callable[[int, int], bool]
    on_unused: Callable[[int], None]
    _used: dict[int, int] = field(default_factory=dict)
    _moving: set[int] = field(default_factory=set)
    _changed: trio.Event = field(default_factory=trio.Event)

    @asynccontextmanager
    async def using(self, *inodes: int) -> AsyncIterator[None]:
        """Use the names of inodes, and the names in those folders, within the block."""
        while self._moving and any(self._is_moved(i, f) for f in self._moving for i in inodes):
            await self._changed.wait()
        with self.holding(*inodes):
            yield

    @contextmanager
    def holding(self, *inodes: int) -> Iterator[None]:
        """Use more inodes within the block, of folders that are in use already."""
        for inode in inodes:
            self._used[inode] = self._used.get(inode, 0) + 1
        try:
            yield
        finally:
            for inode in inodes:
                self._used[inode] -= 1
                if not self._used[inode]:
                    del self._used[inode]
                    self.on_unused(inode)
            if self._moving:
                self._notify()

    def uses(self, inode: int) -> bool:
        return inode in self._used

    @asynccontextmanager
    async def moving(self, folder: int) -> AsyncIterator[None]:
        """Rename a folder within the block, after waiting until nothing in it is in use."""
        self._moving.add(folder)
        try:
            while any(self._is_moved(inode, folder) for inode in self._used):
                await self._changed.wait()
            yield
        finally:
            self._moving.discard(folder)
            self._notify()

    def _is_moved(self, inode: int, folder: int) -> bool:
        return inode == folder or self.is_below(inode, folder)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

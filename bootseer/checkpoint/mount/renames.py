"""Folders of a mount that move, and who uses what is in them meanwhile.

What a file or folder is called in the store depends on all folders above it. So whoever asks the
store for something by its name is counted as a user of its number, and a folder moves when nobody
uses what is below it; who comes then waits until it has moved.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio


class FolderRenames:
    """The moves of a mount's folders.

    Concurrency: the tasks of one trio run. Within a block of `using`, none of `moving` a folder
    above.
    """

    def __init__(
        self, is_below: Callable[[int, int], bool], on_unused: Callable[[int], None]
    ) -> None:
        """Begin with nothing under way.

        Args:
            is_below: tells whether a number is of something below a folder.
            on_unused: told of each number that nobody uses any more.
        """
        self._is_below = is_below
        self._on_unused = on_unused
        self._used: dict[int, int] = {}
        self._moving: set[int] = set()
        self._changed = trio.Event()

    @asynccontextmanager
    async def using(self, *inodes: int) -> AsyncIterator[None]:
        """Use the names of files or folders, and of what is directly in those folders."""
        while self._moving and any(self._is_moved(i, f) for f in self._moving for i in inodes):
            await self._changed.wait()
        with self.holding(*inodes):
            yield

    @contextmanager
    def holding(self, *inodes: int) -> Iterator[None]:
        """Use more, of what is in a folder that is used already."""
        for inode in inodes:
            self._used[inode] = self._used.get(inode, 0) + 1
        try:
            yield
        finally:
            for inode in inodes:
                self._used[inode] -= 1
                if not self._used[inode]:
                    del self._used[inode]
                    self._on_unused(inode)
            if self._moving:
                self._notify()

    def uses(self, inode: int) -> bool:
        """Tell whether anybody uses a number."""
        return inode in self._used

    @asynccontextmanager
    async def moving(self, folder: int) -> AsyncIterator[None]:
        """Move a folder, when nobody uses what is in it any more."""
        self._moving.add(folder)
        try:
            while any(self._is_moved(inode, folder) for inode in self._used):
                await self._changed.wait()
            yield
        finally:
            self._moving.discard(folder)
            self._notify()

    def _is_moved(self, inode: int, folder: int) -> bool:
        return inode == folder or self._is_below(inode, folder)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

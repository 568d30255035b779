"""Objects that together are one thing, each opened when it is first read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack

import trio

from bootseer.errors import Conflict, Unavailable
from bootseer.store.api.base import Reader, Store


class OpenParts:
    """Numbered objects of a store, open for reading until all are closed.

    Concurrency: any number of tasks; each object is opened once.
    """

    def __init__(self, store: Store, name_of: Callable[[int], str]) -> None:
        """Say how they are called; nothing is opened yet."""
        self._store = store
        self._name_of = name_of
        self._parts: dict[int, Reader] = {}
        self._open = AsyncExitStack()
        self._is_closed = False
        self._opening: defaultdict[int, trio.Lock] = defaultdict(trio.Lock)  # of a part each

    async def part(self, index: int) -> Reader:
        """Return one of them, opened by now.

        Raises:
            Unavailable: all have been closed meanwhile.
            BootseerError: the store does not give it.
        """
        reader = self._parts.get(index)
        if reader is None:
            async with self._opening[index]:
                reader = self._parts.get(index)
                if reader is None:
                    opening = self._store.open(self._name_of(index))
                    reader = await self._open.enter_async_context(opening)
                    if self._is_closed:
                        await self._open.aclose()
                        raise Unavailable(f"{self._name_of(index)!r} is not read any more")
                    self._parts[index] = reader
        return reader

    async def read(self, index: int, offset: int, size: int) -> bytes:
        """Read bytes of one of them, for who can tell that they are the right ones.

        One that was replaced since it was opened is opened again: who puts an image into a store
        again sends the same bytes, and a reader is of one version.

        Raises:
            BootseerError: the store does not give them.
        """
        reader = await self.part(index)
        try:
            return await reader.pread(offset, size)
        except Conflict:
            if self._parts.get(index) is reader:  # closed with the others: some may read it still
                del self._parts[index]
        return await (await self.part(index)).pread(offset, size)

    async def close(self) -> None:
        """Close what is open, and what is being opened as soon as it is."""
        self._is_closed = True
        await self._open.aclose()

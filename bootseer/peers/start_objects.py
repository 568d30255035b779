"""The small objects that this node has read for the starts of its job's nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf

import trio

from bootseer.errors import BootseerError

FRESH_S = 5.0
"""How long an answer is given: objects may be replaced. With rows, it passes two nodes."""


@dataclass(eq=False, slots=True)
class _Entry:
    answer: bytes | None = None
    read_s: float = -inf
    lock: trio.Lock = field(default_factory=trio.Lock)


class StartObjects:
    """Answers by object, each read once while it is fresh.

    Concurrency: the tasks of one trio run; those that ask for an object while it is read wait for
    that, and get what it brings.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], _Entry] = {}

    async def get(self, key: tuple[int, str], read: Callable[[], Awaitable[bytes]]) -> bytes | None:
        """Return an answer that is not older than `FRESH_S`.

        Args:
            key: store and name of the object.
            read: reads it.

        Returns:
            None if the store does not give it. That is not asked again meanwhile, either: the nodes
            that want it ask the store themselves.
        """
        asked_s = trio.current_time()
        self._forget(asked_s - FRESH_S)
        entry = self._entries.setdefault(key, _Entry())
        async with entry.lock:
            if entry.read_s < asked_s - FRESH_S:
                entry.answer, began_s = None, trio.current_time()
                try:
                    entry.answer = await read()
                except BootseerError:
                    entry.answer = None
                entry.read_s = began_s
            return entry.answer

    def _forget(self, before_s: float) -> None:
        """Drop what nobody would be given."""
        for key, entry in list(self._entries.items()):
            if entry.read_s < before_s and not entry.lock.locked():
                del self._entries[key]

"""Let the checkpoint's prefetch wait for those of images and environments.

A start needs its image and environment first. Fetched at the same time, the checkpoint would take
most of a link that all share, and the program that is to read it would start later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class ImagesFirst:
    """Counts what a start needs before its checkpoint, and is still being fetched."""

    def __init__(self) -> None:
        """Count nothing."""
        self._holds = 0
        self._none = trio.Event()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let the checkpoint wait until the end of the block."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._none.set()
                self._none = trio.Event()

    async def wait(self) -> None:
        """Wait until nothing holds the checkpoint."""
        while self._holds:
            await self._none.wait()

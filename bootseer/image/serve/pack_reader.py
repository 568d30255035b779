"""Read ahead from an image's hot pack instead of the image, as long as the pack can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bootseer.errors import BootseerError
from bootseer.image.hot.pack_store import PackSource


class PackReader:
    """Reads blocks of a pack until one read fails.

    Attributes:
        is_lost: a read has failed; the image is read instead.
    """

    def __init__(self, pack: PackSource, on_lost: Callable[[BootseerError], None]) -> None:
        """Read a pack.

        Args:
            pack: of the image; the caller closes it.
            on_lost: called once, with the error of the first read that fails.
        """
        self.is_lost = False
        self._pack = pack
        self._on_lost = on_lost

    def select(self, wanted: Iterable[int]) -> list[int]:
        """List the blocks to read now that these are wanted; see `PackSource.draw`."""
        return [] if self.is_lost else self._pack.draw(wanted)

    def runs(self, blocks: Iterable[int]) -> list[list[int]]:
        """Cut blocks of the pack into runs; `read` takes one."""
        return self._pack.runs(blocks)

    async def read(self, run: Sequence[int], *, checks: bool = True) -> memoryview | None:
        """Read a run of blocks, one behind the other; None if the pack cannot be read any more.

        Args:
            run: of blocks.
            checks: whether to compare them with the manifest; else the caller does.
        """
        if self.is_lost:
            return None
        try:
            return await self._pack.read(run, checks=checks)
        except BootseerError as error:
            if not self.is_lost:  # another read may have failed meanwhile
                self.is_lost = True
                self._on_lost(error)
            return None

"""Keep units of a file that are written out of order on the node's disk until they are final."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from bootseer.errors import NoSpace, Unavailable
from bootseer.posix import pwrite_fully
from bootseer.units import format_size

T = TypeVar("T")


class FileTooLarge(NoSpace):
    """The file is longer than a manifest can describe, or too much was written out of order."""


@dataclass(eq=False)
class Spill:
    """Keeps whole units of one file, in a file without a name that ends with this process.

    Concurrency: one call at a time.

    Attributes:
        folder: on a disk of the node.
        limit_bytes: the most to keep.
    """

    folder: str
    limit_bytes: int
    _fd: int = -1
    _units: dict[int, int] = field(default_factory=dict)

    def __contains__(self, unit: int) -> bool:
        return unit in self._units

    def units(self) -> list[int]:
        """Return the numbers of the units that are kept, in order."""
        return sorted(self._units)

    async def put(self, unit: int, data: bytes | bytearray | memoryview, unit_bytes: int) -> None:
        """Keep a whole unit, replacing the one before.

        Raises:
            FileTooLarge: the limit is reached.
            NoSpace: the disk is full.
            Unavailable: the folder is missing, or its disk has failed.
        """
        if unit not in self._units and (len(self._units) + 1) * unit_bytes > self.limit_bytes:
            raise FileTooLarge(
                f"more than {format_size(self.limit_bytes)} of a file were written out of "
                "order: write it from beginning to end, or raise checkpoint.spill_gib"
            )
        await self._run(partial(self._write, unit * unit_bytes, data))
        self._units[unit] = len(data)

    async def get(self, unit: int, unit_bytes: int) -> bytearray:
        return bytearray(await self._run(partial(self._read, unit * unit_bytes, self._units[unit])))

    def drop(self, unit: int) -> None:
        """Drop a unit; only the same unit uses its space again."""
        self._units.pop(unit, None)

    async def close(self) -> None:
        self._units.clear()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            await self._run(partial(os.close, fd))

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(call)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(
                    f"{self.folder} is full: there is no room for what is written out of order"
                ) from error
            raise Unavailable(
                f"{self.folder} does not keep what is written out of order: {error.strerror}"
            ) from error

    def _open(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        return self._fd

    def _write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        pwrite_fully(self._open(), data, offset)

    def _read(self, offset: int, size_bytes: int) -> bytes:
        data = os.pread(self._open(), size_bytes, offset)
        if len(data) != size_bytes:
            raise OSError(errno.EIO, f"{self.folder}: the spill file is too short")
        return data

"""Reading an object in HDFS: what was opened, or a Conflict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio
from hdfs_native import FileReader

from bootseer.errors import BootseerError, Closed, Conflict, NotFound
from bootseer.store.api.base import ObjectInfo, Reader, readable_bytes
from bootseer.store.hdfs.client import HdfsCalls


@dataclass(eq=False)
class HdfsReader(Reader):
    """Reads one version, for as long as its blocks are there.

    Attributes:
        calls: by which it is read.
        info: of the version that was opened.
        file: of the library.
        describe: says what has the object's name by now.
        knows_version: `info` is of the version, and not only of its length.
    """

    calls: HdfsCalls
    info: ObjectInfo
    file: FileReader
    describe: Callable[[], Awaitable[ObjectInfo]]
    knows_version: bool = field(kw_only=True)
    closed: bool = False

    async def pread(self, offset: int, size: int) -> bytes:
        if self.closed:
            raise Closed(f"{self.info.name!r} was closed, and cannot be read any more")
        # Past the end the library panics.
        size = readable_bytes(offset, size, self.size_bytes)
        if not size:
            await trio.lowlevel.checkpoint()
            return b""
        name = self.info.name
        try:
            return await self.calls.run("read", name, partial(self.file.read_range, offset, size))
        except BootseerError as error:
            if await self._is_replaced():
                raise Conflict(f"{name!r} in {self.calls.url} was replaced or deleted") from error
            raise

    async def _is_replaced(self) -> bool:
        try:
            found = await self.describe()
        except NotFound:
            return True
        except BootseerError:
            return False
        return self.knows_version and not self.info.is_version(found)

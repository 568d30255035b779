"""Reading an object of an object store: what was opened, or a Conflict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bootseer.errors import Conflict
from bootseer.store.api.base import ObjectInfo, Reader, readable_bytes
from bootseer.store.api.descriptor_lease import Lease
from bootseer.store.arrow import filesystem as arrowfs
from bootseer.store.arrow.bucket_calls import Bucket
from bootseer.store.arrow.errors import translated

if TYPE_CHECKING:
    from pyarrow import NativeFile


@dataclass(eq=False)
class ArrowReader(Reader):
    """Reads one version, and sees afterwards whether it still was that one."""

    bucket: Bucket
    info: ObjectInfo
    parts: Sequence[str]
    file: NativeFile
    lease: Lease

    async def pread(self, offset: int, size: int) -> bytes:
        size = readable_bytes(offset, size, self.size_bytes)
        with translated("read", self.info.name, self.bucket.url):
            return await self.lease.run(partial(self._read, offset, size))

    def _read(self, offset: int, size: int) -> bytes:
        data = b""
        problem: OSError | None = None
        try:
            data = self.file.read_at(size, offset) if size else b""
        except OSError as error:  # of an object that is gone, it may be any
            problem = error
        # A range is asked for by name: of an object replaced meanwhile it is the new one's.
        if not self._is_same():
            name = self.info.name
            raise Conflict(
                f"{name!r} in {self.bucket.url} was replaced or deleted; open it again"
            ) from problem
        if problem is not None:
            raise problem
        if len(data) != size:
            raise OSError(f"{len(data)} bytes came where {size} were asked for")
        return data

    def _is_same(self) -> bool:
        try:
            with self.bucket.open(self.parts) as now:
                return arrowfs.version(now) == self.info.version
        except FileNotFoundError:
            return False

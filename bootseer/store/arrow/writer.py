"""Writing an object of an object store: an upload under a temporary name, then a copy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bootseer.store.api.base import Data
from bootseer.store.api.descriptor_lease import Lease
from bootseer.store.api.name import check_name
from bootseer.store.api.write_sequence import WriteSequence
from bootseer.store.arrow.bucket_calls import Bucket
from bootseer.store.arrow.errors import translated

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem


@dataclass(slots=True)
class TemporaryObject:
    """An object that is uploaded under a temporary name."""

    filesystem: FileSystem
    path: str
    stream: NativeFile

    def discard(self) -> None:
        """End it, which completes it, and delete what came of it."""
        with suppress(OSError, ValueError):
            self.stream.close()
        self.filesystem.delete_file(self.path)


@dataclass(eq=False)
class ArrowWriter:
    """Writes one temporary object and copies it to its name."""

    bucket: Bucket
    name: str
    overwrite: bool
    upload: TemporaryObject
    lease: Lease
    gate: WriteSequence

    async def write(self, data: Data) -> None:
        # pyarrow uploads in the background, from memory of its own or from this.
        copy = bytes(data)
        with self.gate.step(), translated("write", self.name, self.bucket.url):
            await self.lease.run(partial(self.upload.stream.write, copy))

    async def commit(self) -> None:
        with self.gate.step(last=True), translated("commit", self.name, self.bucket.url):
            await self.lease.run(self._publish)

    def _publish(self) -> None:
        self.upload.stream.close()
        if self.lease.ended:  # Abandoned meanwhile: don't replace what others wrote since.
            return
        parts = check_name(self.name)
        self.bucket.check_free(parts, overwrite=self.overwrite)
        self.upload.filesystem.copy_file(self.upload.path, self.bucket.path(parts))

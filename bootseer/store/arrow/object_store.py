"""A store in an object store (S3, GCS, Azure), by pyarrow's file systems.

Object stores have no folders and no rename. Folders are pyarrow's: empty objects that mark them. A
rename copies and deletes. pyarrow completes an upload whenever its stream goes, be it by an error
or at the end of the process: what is not committed yet is uploaded under a temporary name.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import trio

from bootseer.errors import Conflict, Unavailable
from bootseer.store.api.base import (
    Appender,
    Capabilities,
    FolderListing,
    ObjectInfo,
    Reader,
    StoreSpace,
    Writer,
    check_mode,
    check_version,
)
from bootseer.store.api.descriptor_lease import Lease
from bootseer.store.api.name import (
    TEMPORARY_PREFIX,
    check_folder,
    check_name,
    check_rename,
    temporary_name,
)
from bootseer.store.api.write_sequence import WriteSequence
from bootseer.store.arrow import filesystem as arrowfs
from bootseer.store.arrow.aws_profile import AwsOptions
from bootseer.store.arrow.bucket_calls import Bucket, describe, mtime_ns
from bootseer.store.arrow.errors import translated
from bootseer.store.arrow.reader import ArrowReader
from bootseer.store.arrow.writer import ArrowWriter, TemporaryObject
from bootseer.units import NS_PER_S

T = TypeVar("T")

THREADS = 32
"""Calls under way at once in one store."""


class ArrowStore:
    """Objects are those of a bucket or container, below a prefix if there is one.

    Concurrency: any number of processes on any number of nodes, within `capabilities`: of two that
    create a name without `overwrite` at the same moment both succeed and the last one stays, and a
    folder is deleted with what is put into it at that moment.

    Durability: an object is uploaded under a temporary name, copied by the servers to its own, and
    the temporary one deleted. S3 copies up to 5 GB; what is larger cannot be committed.

    Cancellation: a call that hangs is left to its thread, and counts against `threads`.
    """

    capabilities = Capabilities(
        atomic_rename=False,
        replication=False,
        attributes=False,
        append=False,
        exclusive=False,
        snapshots=False,
    )

    def __init__(
        self,
        url: str,
        aws: AwsOptions | None = None,
        *,
        threads: trio.CapacityLimiter | None = None,
    ) -> None:
        """Use what the URL names, which must exist; nothing is asked yet.

        Args:
            url: as `pyarrow.fs.FileSystem.from_uri` takes it.
            aws: whose credentials for S3, if the URL has none; this process' user's if None.
            threads: how many calls may be under way at once; `THREADS` of this store's own if None.
        """
        self._bucket = Bucket(url, aws)
        self.url = self._bucket.url
        self._threads = threads or trio.CapacityLimiter(THREADS)

    async def stat(self, name: str) -> ObjectInfo:
        parts = check_name(name)
        return await self._run("stat", name, lambda: describe(name, self._bucket.find(parts)))

    async def list(self, folder: str = "") -> FolderListing:
        parts = check_folder(folder)

        def work() -> FolderListing:
            listing = FolderListing()
            for info in sorted(self._bucket.list(parts), key=lambda info: info.base_name):
                whole = "/".join((*parts, info.base_name))
                if listing.admits(whole):
                    listing.append(describe(whole, info))
            return listing

        return await self._run("list", folder, work)

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        parts = check_name(name)
        lease = Lease(self._threads)

        def work() -> ArrowReader:
            with translated("open", name, self.url):
                info = self._bucket.find(parts)
                if not info.is_file:
                    raise Conflict(f"cannot open {name!r} in {self.url}: it is a folder")
                file = self._bucket.open(parts)
                lease.resources.callback(file.close)
                tag = arrowfs.version(file)
                if version is not None:
                    # Asked for before, it could be of one that was replaced until then.
                    info = self._bucket.find(parts)
                described = ObjectInfo(name, file.size(), mtime_ns(info), version=tag)
                check_version(described, version, self.url)
                return ArrowReader(self._bucket, described, parts, file, lease)

        try:
            yield await lease.run(work)
        finally:
            await lease.end()

    @asynccontextmanager
    async def create(
        self,
        name: str,
        *,
        overwrite: bool = True,
        mode: int | None = None,
        replication: int | None = None,
        block_bytes: int | None = None,
    ) -> AsyncIterator[Writer]:
        parts = check_name(name)
        check_mode(mode)
        lease = Lease(self._threads)

        def work() -> TemporaryObject:
            with translated("create", name, self.url):
                self._bucket.make_folder(parts[:-1])
                # In the root: to delete it elsewhere would bring back a folder deleted meanwhile.
                path = self._bucket.path((temporary_name(),))
                filesystem = self._bucket.filesystem()
                upload = TemporaryObject(filesystem, path, filesystem.open_output_stream(path))
                lease.resources.callback(upload.discard)
                return upload

        gate = WriteSequence(name)
        try:
            yield ArrowWriter(self._bucket, name, overwrite, await lease.run(work), lease, gate)
        finally:
            gate.shut()
            await lease.end()

    @asynccontextmanager
    async def append(self, name: str, **options: object) -> AsyncIterator[Appender]:
        check_name(name)
        await trio.lowlevel.checkpoint()
        raise Unavailable(f"cannot append to {name!r}: objects of {self.url} are written whole")
        yield

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Copy and delete.

        Cancellation: an object may be under both names, and a folder under both in parts.
        """
        old, new = check_rename(source, target)
        work = partial(self._bucket.move, old, new, overwrite=overwrite)
        await self._run(f"rename to {target!r}", source, work)

    async def delete(self, name: str) -> None:
        parts = check_name(name)

        def work() -> None:
            if self._bucket.find(parts).is_file:
                self._bucket.filesystem().delete_file(self._bucket.path(parts))
                return
            if self._bucket.list(parts):
                raise Conflict(f"cannot delete {name!r} in {self.url}: the folder is not empty")
            self._bucket.filesystem().delete_dir(self._bucket.path(parts))

        await self._run("delete", name, work)

    async def delete_tree(self, name: str) -> None:
        parts = check_name(name)

        def work() -> None:
            if self._bucket.find(parts).is_file:
                self._bucket.filesystem().delete_file(self._bucket.path(parts))
            else:
                self._bucket.filesystem().delete_dir(self._bucket.path(parts))

        await self._run("delete all of", name, work)

    async def mkdir(self, name: str, *, mode: int | None = None) -> None:
        parts = check_name(name)
        check_mode(mode)
        await self._run("make folder", name, partial(self._bucket.make_folder, parts))

    async def set_mode(self, name: str, mode: int) -> None:
        check_mode(mode)
        await self._refuse("change the mode of", name)

    async def set_mtime(self, name: str, mtime_ns: int) -> None:
        await self._refuse("change the time of", name)

    async def set_replication(self, name: str, copies: int) -> None:
        await self._refuse("replicate", name)

    async def space(self) -> StoreSpace:
        """Return that neither is known: a bucket has no limit."""
        await trio.lowlevel.checkpoint()
        return StoreSpace()

    async def reap_temporaries(self, older_than_s: float, folder: str = "") -> int:
        """Remove those of all folders: every object is uploaded to the root.

        Uploads that never ended are left to the bucket's rules.
        """
        check_folder(folder)

        def work() -> int:
            before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
            stale = [
                info.path
                for info in self._bucket.list(())
                if info.base_name.startswith(TEMPORARY_PREFIX) and (info.mtime_ns or 0) <= before_ns
            ]
            for path in stale:
                with suppress(FileNotFoundError):
                    self._bucket.filesystem().delete_file(path)
            return len(stale)

        return await self._run("reap", "", work)

    async def _refuse(self, operation: str, name: str) -> None:
        check_name(name)
        await trio.lowlevel.checkpoint()
        raise Unavailable(f"cannot {operation} {name!r}: {self.url} has no such thing")

    async def _run(self, operation: str, name: str, work: Callable[[], T]) -> T:
        with translated(operation, name, self.url):
            return await trio.to_thread.run_sync(
                work, abandon_on_cancel=True, limiter=self._threads
            )

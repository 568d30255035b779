"""A store in an object store (S3, GCS, Azure), by pyarrow's file systems.

Object stores have no folders and no rename. Folders are pyarrow's: empty objects that mark them. A
rename copies and deletes. pyarrow completes an upload whenever its stream goes, be it by an error
or at the end of the process: what is not committed yet is uploaded under a temporary name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from bootseer.errors import Conflict, NotFound, Unavailable
from bootseer.store.api.base import (
    Appender,
    Capabilities,
    Data,
    FolderListing,
    ObjectInfo,
    Reader,
    StoreSpace,
    Writer,
    check_mode,
    check_version,
    readable_bytes,
)
from bootseer.store.api.gate import WriteSequence
from bootseer.store.api.lease import Lease
from bootseer.store.api.name import (
    TEMPORARY_PREFIX,
    check_folder,
    check_name,
    check_rename,
    temporary_name,
)
from bootseer.store.arrow import filesystem as arrowfs
from bootseer.store.arrow.aws_profile import AwsOptions
from bootseer.store.arrow.errors import translated
from bootseer.units import NS_PER_S

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem

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
        self.url = arrowfs.redacted(url)
        self._whole_url = url
        self._aws = aws
        self._threads = threads or trio.CapacityLimiter(THREADS)
        self._lock = threading.Lock()
        self._made: tuple[FileSystem, str] | None = None

    async def stat(self, name: str) -> ObjectInfo:
        """See `Store.stat`."""
        parts = check_name(name)
        return await self._run("stat", name, lambda: _described(name, self._need(name, parts)))

    async def list(self, folder: str = "") -> FolderListing:
        """See `Store.list`."""
        parts = check_folder(folder)

        def work() -> FolderListing:
            listing = FolderListing()
            for info in sorted(self._below(parts), key=lambda info: info.base_name):
                whole = "/".join((*parts, info.base_name))
                if listing.admits(whole):
                    listing.append(_described(whole, info))
            return listing

        return await self._run("list", folder, work)

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        """See `Store.open`."""
        parts = check_name(name)
        lease = Lease(self._threads)

        def work() -> _ArrowReader:
            with translated("open", name, self.url):
                info = self._need(name, parts)
                if not info.is_file:
                    raise Conflict(f"cannot open {name!r} in {self.url}: it is a folder")
                file = self._opened(parts)
                lease.resources.callback(file.close)
                tag = arrowfs.version(file)
                if version is not None:
                    # Asked for before, it could be of one that was replaced until then.
                    info = self._need(name, parts)
                described = ObjectInfo(name, file.size(), _mtime_ns(info), version=tag)
                check_version(described, version, self.url)
                return _ArrowReader(self, described, parts, file, lease)

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
        """See `Store.create`."""
        parts = check_name(name)
        if mode is not None:
            check_mode(mode)
        lease = Lease(self._threads)

        def work() -> _Upload:
            with translated("create", name, self.url):
                self._make_folder(parts[:-1])
                # In the root: to delete it elsewhere would bring back a folder deleted meanwhile.
                path = self._path((temporary_name(),))
                upload = _Upload(
                    self._filesystem(), path, self._filesystem().open_output_stream(path)
                )
                lease.resources.callback(upload.discard)
                return upload

        gate = WriteSequence(name)
        try:
            yield _ArrowWriter(self, name, overwrite, await lease.run(work), lease, gate)
        finally:
            gate.shut()
            await lease.end()

    @asynccontextmanager
    async def append(
        self,
        name: str,
        *,
        mode: int | None = None,
        replication: int | None = None,
        block_bytes: int | None = None,
    ) -> AsyncIterator[Appender]:
        """See `Store.append`: not here."""
        check_name(name)
        await trio.lowlevel.checkpoint()
        raise Unavailable(f"cannot append to {name!r}: objects of {self.url} are written whole")
        yield

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """See `Store.rename`.

        Cancellation: what it was about may be under both names, and a folder in parts.
        """
        old, new = check_rename(source, target)

        def work() -> None:
            info = self._need(source, old)
            if old == new and overwrite:
                return
            self._check_free(target, new, overwrite=overwrite and info.is_file)
            self._make_folder(new[:-1])
            if info.is_file:
                self._filesystem().copy_file(self._path(old), self._path(new))
                self._filesystem().delete_file(self._path(old))
            else:
                self._copy_folder(old, new)
                self._filesystem().delete_dir(self._path(old))

        await self._run(f"rename to {target!r}", source, work)

    async def delete(self, name: str) -> None:
        """See `Store.delete`."""
        parts = check_name(name)

        def work() -> None:
            if self._need(name, parts).is_file:
                self._filesystem().delete_file(self._path(parts))
                return
            if self._below(parts):
                raise Conflict(f"cannot delete {name!r} in {self.url}: the folder is not empty")
            self._filesystem().delete_dir(self._path(parts))

        await self._run("delete", name, work)

    async def delete_tree(self, name: str) -> None:
        """See `Store.delete_tree`."""
        parts = check_name(name)

        def work() -> None:
            if self._need(name, parts).is_file:
                self._filesystem().delete_file(self._path(parts))
            else:
                self._filesystem().delete_dir(self._path(parts))

        await self._run("delete all of", name, work)

    async def mkdir(self, name: str, *, mode: int | None = None) -> None:
        """See `Store.mkdir`."""
        parts = check_name(name)
        if mode is not None:
            check_mode(mode)
        await self._run("make folder", name, partial(self._make_folder, parts))

    async def set_mode(self, name: str, mode: int) -> None:
        """See `Store.set_mode`: not here."""
        check_mode(mode)
        await self._refuse("change the mode of", name)

    async def set_mtime(self, name: str, mtime_ns: int) -> None:
        """See `Store.set_mtime`: not here."""
        await self._refuse("change the time of", name)

    async def set_replication(self, name: str, copies: int) -> None:
        """See `Store.set_replication`: not here."""
        await self._refuse("replicate", name)

    async def space(self) -> StoreSpace:
        """See `Store.space`: there is no end of it."""
        await trio.lowlevel.checkpoint()
        return StoreSpace()

    async def reap_temporaries(self, older_than_s: float, folder: str = "") -> int:
        """See `Store.reap_temporaries`: of all objects, for all are uploaded to the root.

        Uploads that never ended are left to the bucket's rules.
        """
        check_folder(folder)

        def work() -> int:
            before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
            stale = [
                info.path
                for info in self._below(())
                if info.base_name.startswith(TEMPORARY_PREFIX) and (info.mtime_ns or 0) <= before_ns
            ]
            for path in stale:
                with suppress(FileNotFoundError):
                    self._filesystem().delete_file(path)
            return len(stale)

        return await self._run("reap", "", work)

    # In threads

    def _connected(self) -> tuple[FileSystem, str]:
        with self._lock:
            if self._made is None:
                self._made = arrowfs.connect(self._whole_url, self._aws)
            return self._made

    def _filesystem(self) -> FileSystem:
        return self._connected()[0]

    def _path(self, parts: Sequence[str]) -> str:
        return "/".join((self._connected()[1].strip("/"), *parts))

    def _need(self, name: str, parts: Sequence[str]) -> FileInfo:
        info = self._filesystem().get_file_info(self._path(parts))
        if not info.is_file and not _is_folder(info):
            raise NotFound(f"there is no {name!r} in {self.url}")
        return info

    def _below(self, parts: Sequence[str], *, recursive: bool = False) -> Sequence[FileInfo]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._path(parts), allow_not_found=True, recursive=recursive)
        found: Sequence[FileInfo] = self._filesystem().get_file_info(selector)
        return found

    def _opened(self, parts: Sequence[str]) -> NativeFile:
        return self._filesystem().open_input_file(self._path(parts))

    def _check_free(self, name: str, parts: Sequence[str], *, overwrite: bool) -> None:
        info = self._filesystem().get_file_info(self._path(parts))
        if _is_folder(info) or (info.is_file and not overwrite):
            raise Conflict(f"{name!r} in {self.url} exists already")

    def _make_folder(self, parts: Sequence[str]) -> None:
        """Mark a folder and those above it, unless an object is in the way."""
        if not parts:
            return
        names = [parts[:depth] for depth in range(1, len(parts) + 1)]
        found = self._filesystem().get_file_info([self._path(name) for name in names])
        for name, info in zip(names, found, strict=True):
            if info.is_file:
                raise Conflict(f"{'/'.join(name)!r} in {self.url} is an object, not a folder")
        if not _is_folder(found[-1]):
            self._filesystem().create_dir(self._path(parts))

    def _copy_folder(self, old: Sequence[str], new: Sequence[str]) -> None:
        filesystem = self._filesystem()
        filesystem.create_dir(self._path(new))
        for info in self._below(old, recursive=True):
            target = self._path(new) + info.path.removeprefix(self._path(old))
            if info.is_file:
                filesystem.copy_file(info.path, target)
            else:
                filesystem.create_dir(target)

    async def _refuse(self, operation: str, name: str) -> None:
        check_name(name)
        await trio.lowlevel.checkpoint()
        raise Unavailable(f"cannot {operation} {name!r}: {self.url} has no such thing")

    async def _run(self, operation: str, name: str, work: Callable[[], T]) -> T:
        with translated(operation, name, self.url):
            return await trio.to_thread.run_sync(
                work, abandon_on_cancel=True, limiter=self._threads
            )


class _ArrowReader(Reader):
    """Reads one version, and sees afterwards whether it still was that one."""

    def __init__(
        self,
        store: ArrowStore,
        info: ObjectInfo,
        parts: Sequence[str],
        file: NativeFile,
        lease: Lease,
    ) -> None:
        self.info = info
        self._store = store
        self._parts = parts
        self._file = file
        self._lease = lease

    async def pread(self, offset: int, size: int) -> bytes:
        size = readable_bytes(offset, size, self.size_bytes)
        with translated("read", self.info.name, self._store.url):
            return await self._lease.run(partial(self._read, offset, size))

    def _read(self, offset: int, size: int) -> bytes:
        data = b""
        problem: OSError | None = None
        try:
            data = self._file.read_at(size, offset) if size else b""
        except OSError as error:  # of an object that is gone, it may be any
            problem = error
        # A range is asked for by name: of an object replaced meanwhile it is the new one's.
        if not self._is_same():
            name = self.info.name
            raise Conflict(
                f"{name!r} in {self._store.url} was replaced or deleted; open it again"
            ) from problem
        if problem is not None:
            raise problem
        if len(data) != size:
            raise OSError(f"{len(data)} bytes came where {size} were asked for")
        return data

    def _is_same(self) -> bool:
        try:
            with self._store._opened(self._parts) as now:
                return arrowfs.version(now) == self.info.version
        except FileNotFoundError:
            return False


@dataclass(slots=True)
class _Upload:
    """An upload under a temporary name."""

    filesystem: FileSystem
    path: str
    stream: NativeFile

    def discard(self) -> None:
        """End it, which completes it, and delete what came of it."""
        with suppress(OSError, ValueError):
            self.stream.close()
        self.filesystem.delete_file(self.path)


class _ArrowWriter:
    """Writes one temporary object and copies it to its name."""

    def __init__(
        self,
        store: ArrowStore,
        name: str,
        overwrite: bool,
        upload: _Upload,
        lease: Lease,
        gate: WriteSequence,
    ) -> None:
        self._store = store
        self._name = name
        self._overwrite = overwrite
        self._upload = upload
        self._lease = lease
        self._gate = gate

    async def write(self, data: Data) -> None:
        # pyarrow uploads in the background, from memory of its own or from this.
        copy = bytes(data)
        with self._gate.step(), translated("write", self._name, self._store.url):
            await self._lease.run(partial(self._upload.stream.write, copy))

    async def commit(self) -> None:
        with self._gate.step(last=True), translated("commit", self._name, self._store.url):
            await self._lease.run(self._publish)

    def _publish(self) -> None:
        self._upload.stream.close()
        if self._lease.ended:  # Abandoned meanwhile: don't replace what others wrote since.
            return
        parts = check_name(self._name)
        self._store._check_free(self._name, parts, overwrite=self._overwrite)
        self._upload.filesystem.copy_file(self._upload.path, self._store._path(parts))


def _is_folder(info: FileInfo) -> bool:
    from pyarrow.fs import FileType

    return bool(info.type == FileType.Directory)


def _described(name: str, info: FileInfo) -> ObjectInfo:
    return ObjectInfo(name, info.size or 0, _mtime_ns(info), _is_folder(info))


def _mtime_ns(info: FileInfo) -> int:
    """Return a time to the second: some servers list more of it than they tell of an object."""
    mtime_ns: Any = info.mtime_ns
    return (mtime_ns or 0) // NS_PER_S * NS_PER_S

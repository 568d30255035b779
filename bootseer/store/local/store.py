"""A store in a directory: a local disk, or a POSIX file system that the nodes share.

Data path: `dirfd_tree` walks and publishes with system calls, `errors` says what their errors mean,
and this module runs them in threads that can be abandoned when a file system hangs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import trio

from bootseer import posix
from bootseer.errors import Conflict, Corrupt, Unavailable
from bootseer.store.api.base import (
    Appender,
    Capabilities,
    Data,
    FolderListing,
    ObjectInfo,
    Reader,
    StoreSpace,
    Unlisted,
    Writer,
    check_mode,
    check_version,
    readable_bytes,
)
from bootseer.store.api.descriptor_lease import Lease
from bootseer.store.api.name import check_folder, check_name, check_rename
from bootseer.store.api.write_sequence import WriteSequence
from bootseer.store.local.access import TreeAccess
from bootseer.store.local.dirfd_tree import DirfdTree, TemporaryFile, TreeFile
from bootseer.store.local.errors import translated
from bootseer.store.local.owner_rules import TrustedOwners

T = TypeVar("T")

THREADS = 16
"""Calls under way at once in one store: enough to keep a parallel file system busy, few enough to
be left behind in a hung one."""


class LocalStore:
    """Objects are the regular files below a directory.

    Used by a process that runs as the owner of the data: with root squash, nobody else can.

    Concurrency: any number of processes on any number of nodes; see `Store`.

    Durability: an object is written under a temporary name in its own folder, synced, renamed, and
    the folder synced. What a killed writer leaves has no name that a caller can use, and goes with
    `reap_temporaries`.

    Cancellation: a call that hangs is left to its thread, which closes what it opened when it
    returns. Threads left behind count against `threads` until then, so that a dead file system
    costs a bounded number of them; further operations wait for a free one, and can be cancelled.
    """

    capabilities = Capabilities(atomic_rename=True, replication=False, attributes=True, append=True)

    def __init__(
        self,
        root: Path,
        owner_uid: int | None = None,
        *,
        trusted: TrustedOwners | None = None,
        threads: trio.CapacityLimiter | None = None,
    ) -> None:
        """Use the directory `root`, which is made by the first write that finds it missing.

        Args:
            root: an absolute path.
            owner_uid: the user who must own `root` and the folders in it, with no write permission
                for others; an operation is Denied where that does not hold. What is made without
                a mode is then private (0700 and 0600). None: any owner, and the umask decides.
            trusted: of a store that many users run things from, who may own and write its folders
                and objects; an operation is Denied where others can. None: anybody.
            threads: how many calls may be under way at once; `THREADS` of this store's own if None.

        Raises:
            ValueError: `root` is relative.
        """
        self.url = root.as_uri()
        self._tree = DirfdTree(root, TreeAccess(owner_uid, trusted))
        self._threads = threads or trio.CapacityLimiter(THREADS)

    async def stat(self, name: str) -> ObjectInfo:
        parts = check_name(name)
        return _info(name, await self._run("stat", name, partial(self._tree.stat, parts)))

    async def list(self, folder: str = "") -> FolderListing:
        """Describe objects and folders; links and special files are unlisted."""
        parts = check_folder(folder)

        def work() -> FolderListing:
            listing = FolderListing()
            with suppress(FileNotFoundError):
                for name, file in sorted(self._tree.entries(parts), key=itemgetter(0)):
                    whole = "/".join((*parts, name))
                    if file is None:
                        listing.unlisted.append(Unlisted(whole, ""))
                    elif listing.admits(whole):
                        listing.append(_info(whole, file))
            return listing

        return await self._run("list", folder, work)

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        parts = check_name(name)
        lease = Lease(self._threads)

        def work() -> tuple[int, TreeFile]:
            fd, file = self._tree.open_object(parts)
            lease.resources.callback(os.close, fd)
            return fd, file

        try:
            with translated("open", name, self.url):
                fd, file = await lease.run(work)
            info = _info(name, file)
            check_version(info, version, self.url)
            yield _LocalReader(self.url, info, fd, lease, stays=version is not None)
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

        def work() -> TemporaryFile:
            folder = lease.resources.enter_context(self._tree.folder(parts[:-1], make=True))
            temporary = self._tree.create_temporary(folder)
            # Last in, first out: closed before it is discarded, or NFS would keep the file under
            # yet another name until it is closed.
            lease.resources.callback(temporary.discard)
            lease.resources.callback(os.close, temporary.fd)
            if mode is not None:
                os.fchmod(temporary.fd, mode)
            return temporary

        gate = WriteSequence(name)
        try:
            with translated("create", name, self.url):
                temporary = await lease.run(work)
            yield _LocalWriter(self.url, name, overwrite, temporary, lease, gate)
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
        parts = check_name(name)
        check_mode(mode)
        lease = Lease(self._threads)

        def work() -> int:
            with self._tree.folder(parts[:-1], make=True) as folder:
                fd = self._tree.create_object(folder, parts[-1])
                lease.resources.callback(os.close, fd)
                if mode is not None:
                    os.fchmod(fd, mode)
                posix.sync_folder(folder)
            return fd

        gate = WriteSequence(name)
        try:
            with translated("append to", name, self.url):
                fd = await lease.run(work)
            yield _LocalAppender(self.url, name, fd, lease, gate)
        finally:
            gate.shut()
            await lease.end()

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename, or link and unlink where nothing may be overwritten.

        Durability: without `overwrite`, a crash may leave an object under both names.
        """
        paths = check_rename(source, target)
        work = partial(self._tree.rename, *paths, overwrite=overwrite)
        await self._run(f"rename to {target!r}", source, work)

    async def delete(self, name: str) -> None:
        """Remove an object or an empty folder, and also a link or a special file."""
        await self._run("delete", name, partial(self._tree.delete, check_name(name)))

    async def delete_tree(self, name: str) -> None:
        """Remove a tree; of a link, the link alone."""
        await self._run("delete all of", name, partial(self._tree.delete_tree, check_name(name)))

    async def mkdir(self, name: str, *, mode: int | None = None) -> None:
        parts = check_name(name)
        check_mode(mode)
        await self._run("make folder", name, partial(self._tree.make_folder, parts, mode))

    async def set_mode(self, name: str, mode: int) -> None:
        work = partial(self._tree.set_mode, check_name(name), check_mode(mode))
        await self._run("change the mode of", name, work)

    async def set_mtime(self, name: str, mtime_ns: int) -> None:
        work = partial(self._tree.set_mtime, check_name(name), mtime_ns)
        await self._run("change the time of", name, work)

    async def set_replication(self, name: str, copies: int) -> None:
        check_name(name)
        await trio.lowlevel.checkpoint()
        raise Unavailable(
            f"cannot replicate {name!r}: {self.url} is a directory and keeps one copy"
        )

    async def space(self) -> StoreSpace:
        """Return the space of the file system that users other than root can use."""

        def work() -> StoreSpace:
            with suppress(FileNotFoundError):
                status = self._tree.space()
                unit = status.f_frsize
                return StoreSpace(status.f_blocks * unit, status.f_bavail * unit)
            return StoreSpace()

        return await self._run("ask for the space of", "", work)

    async def reap_temporaries(self, older_than_s: float, folder: str = "") -> int:
        """Remove them by age: this node's clock less the file system's time."""
        work = partial(self._tree.reap, check_folder(folder), older_than_s)
        return await self._run("reap", folder, work)

    async def _run(self, operation: str, name: str, work: Callable[[], T]) -> T:
        with translated(operation, name, self.url):
            return await trio.to_thread.run_sync(
                work, abandon_on_cancel=True, limiter=self._threads
            )


@dataclass(eq=False)
class _LocalReader(Reader):
    """Reads one open file, whatever its name means by now.

    One that `stays` may not be written to in place either, which is seen after each read.
    """

    url: str
    info: ObjectInfo
    fd: int
    lease: Lease
    stays: bool = field(kw_only=True)

    async def pread(self, offset: int, size: int) -> bytes:
        size = readable_bytes(offset, size, self.size_bytes)
        with translated("read", self.info.name, self.url):
            data, status = await self.lease.run(partial(self._read, offset, size))
        now = (status.st_size, status.st_mtime_ns)
        if self.stays and now != (self.size_bytes, self.info.mtime_ns):
            raise Conflict(
                f"{self.info.name!r} in {self.url} was written to in place while it was being "
                "read; open it again"
            )
        if len(data) < size:
            raise Corrupt(
                f"{self.info.name!r} in {self.url} became shorter than the {self.size_bytes} "
                "bytes it had when opened: something writes to it in place"
            )
        return data

    def _read(self, offset: int, size: int) -> tuple[bytes, os.stat_result]:
        return posix.read_fully(self.fd, offset, size), os.fstat(self.fd)


@dataclass(eq=False)
class _LocalWriter:
    """Writes one temporary file and gives it its name."""

    url: str
    name: str
    overwrite: bool
    file: TemporaryFile
    lease: Lease
    gate: WriteSequence

    async def write(self, data: Data) -> None:
        view = memoryview(data).cast("B")
        with self.gate.step(), translated("write", self.name, self.url):
            await self.lease.run(partial(posix.write_fully, self.file.fd, view))

    async def commit(self) -> None:
        with self.gate.step(last=True), translated("commit", self.name, self.url):
            await self.lease.run(self._publish)

    def _publish(self) -> None:
        os.fsync(self.file.fd)
        if self.lease.ended:  # Abandoned in the sync: don't replace what others wrote since.
            return
        self.file.publish(self.name.rpartition("/")[2], overwrite=self.overwrite)


@dataclass(eq=False)
class _LocalAppender:
    """Adds to a file under its own name."""

    url: str
    name: str
    fd: int
    lease: Lease
    gate: WriteSequence

    async def write(self, data: Data) -> None:
        view = memoryview(data).cast("B")
        with self.gate.step(), translated("write", self.name, self.url):
            await self.lease.run(partial(posix.write_fully, self.fd, view))

    async def sync(self) -> None:
        with self.gate.step(), translated("sync", self.name, self.url):
            await self.lease.run(partial(os.fsync, self.fd))

    async def finish(self) -> None:
        with self.gate.step(last=True), translated("finish", self.name, self.url):
            await self.lease.run(partial(os.fsync, self.fd))


def _info(name: str, file: TreeFile) -> ObjectInfo:
    status = file.status
    is_folder = stat.S_ISDIR(status.st_mode)
    return ObjectInfo(
        name,
        0 if is_folder else status.st_size,
        status.st_mtime_ns,
        is_folder,
        mode=stat.S_IMODE(status.st_mode),
        owner=str(status.st_uid),
        group=str(status.st_gid),
        version=file.version,
    )

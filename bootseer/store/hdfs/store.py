"""A store in HDFS, by hdfs-native: no Java on the nodes.

The library blocks, so everything runs in threads that can be abandoned when a server hangs; and a
client of its must not be older than a fork, so that it is made at the first use.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from urllib.parse import quote

import trio
from hdfs_native import FileStatus, FileWriter, WriteOptions

from bootseer.errors import BootseerError, Conflict, NotFound, Transient
from bootseer.store.api.base import (
    Appender,
    BlockLocation,
    Capabilities,
    FolderListing,
    ObjectInfo,
    Reader,
    StoreSpace,
    Writer,
    check_mode,
    check_version,
)
from bootseer.store.api.name import (
    TEMPORARY_PREFIX,
    check_folder,
    check_name,
    check_rename,
    temporary_name,
)
from bootseer.store.api.write_sequence import WriteSequence
from bootseer.store.hdfs import webhdfs
from bootseer.store.hdfs.client import HdfsCalls
from bootseer.store.hdfs.errors import translated
from bootseer.store.hdfs.options import HdfsOptions
from bootseer.store.hdfs.reader import HdfsReader
from bootseer.store.hdfs.writer import HdfsAppender, HdfsFile, HdfsWriter
from bootseer.units import NS_PER_MS, NS_PER_S

THREADS = 32
"""Calls under way at once in one store, without the steps of files that are written."""

_SETTLE_S = 5.0
_PAUSE_S = 0.01
_DISCARD_S = 2.0
_END_S = 5.0
_KEEP_TIME = 2**64 - 1  # -1 in Java, which leaves a time as it is


class HdfsStore:
    """Objects are the files below a folder of an HDFS.

    Concurrency: any number of processes on any number of nodes; see `Store`.

    Durability: an object is written under a temporary name, synced to the disks of all DataNodes of
    its pipeline, closed and renamed.

    Cancellation: a call that hangs is left to its thread. Threads left behind count against
    `threads`, so that a dead NameNode costs a bounded number of them; but each file that is
    written has one of its own for its steps, for those may hang while the NameNode is well.
    """

    capabilities = Capabilities(atomic_rename=True, replication=True, attributes=True, append=True)

    def __init__(
        self,
        authority: str,
        root: PurePath,
        options: HdfsOptions | None = None,
        *,
        private: bool = False,
        threads: trio.CapacityLimiter | None = None,
    ) -> None:
        """Use the folder `root`, which is made by the first write; nothing is asked yet.

        Args:
            authority: ``HOST:PORT`` of the NameNode, or a nameservice of the configuration.
            root: an absolute path.
            options: how to reach it.
            private: what is made without a mode is its owner's alone (0700 and 0600), folders made
                on the way too. If not, it is as HDFS has it.
            threads: how many calls may be under way at once, without the steps of files that are
                written; `THREADS` of this store's own if None.
        """
        self._authority = f"hdfs://{authority}"
        self._root = str(root).rstrip("/")
        self.url = self._authority + quote(self._root)
        self._options = options or HdfsOptions()
        self._private = private
        threads = threads or trio.CapacityLimiter(THREADS)
        self._calls = HdfsCalls(self._authority, self.url, self._options, threads)
        # Left by their writers while the NameNode was away, who must be told before they are read.
        self._unended: set[str] = set()
        self._client = self._calls.client
        self._run = self._calls.run

    async def stat(self, name: str) -> ObjectInfo:
        path = self._path(check_name(name))

        def work() -> ObjectInfo:
            return _info(name, self._client().get_file_info(path))

        return await self._run("stat", name, work)

    async def stat_root(self) -> ObjectInfo:
        """Describe the folder that the store is in, under the name "".

        Raises:
            NotFound: it has not been made yet.
        """
        path = self._root or "/"
        return await self._run("stat", "", lambda: _info("", self._client().get_file_info(path)))

    async def list(self, folder: str = "") -> FolderListing:
        path = self._path(check_folder(folder))

        def work() -> FolderListing:
            listing = FolderListing()
            try:
                with translated("list", folder, self.url):
                    found = list(self._client().list_status(path or "/"))
            except (NotFound, Conflict):
                return listing
            for status in sorted(found, key=lambda status: status.path):
                name = status.path.rpartition("/")[2]
                whole = f"{folder}/{name}" if folder else name
                # The listing of an object is the object itself.
                if status.path != path and listing.admits(whole):
                    listing.append(_info(whole, status))
            return listing

        return await self._run("list", folder, work)

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        """Ask the NameNode three times, mostly; once with `known`, twice with `version`."""
        path = self._path(check_name(name))
        find = partial(self.stat, name)

        def work() -> HdfsReader:
            if path in self._unended:
                self._end(path)
            if version is None and known is not None:
                reader = self._client().read(path)
                if len(reader) >= known.size_bytes:
                    info = replace(known, size_bytes=len(reader))
                    return HdfsReader(self._calls, info, reader, find, knows_version=False)
            until = time.monotonic() + _SETTLE_S
            while time.monotonic() < until:
                before = version or _info(name, self._client().get_file_info(path))
                if before.is_folder:
                    raise Conflict(f"cannot open {name!r} in {self.url}: it is a folder")
                reader = self._client().read(path)
                # Replaced in between, the one could tell of another version than the other; and a
                # NameNode may show a file before its last block has been reported to it.
                after = _info(name, self._client().get_file_info(path))
                check_version(after, version, self.url)
                if after.is_version(before):
                    if len(reader) == before.size_bytes:
                        return HdfsReader(self._calls, after, reader, find, knows_version=True)
                    time.sleep(_PAUSE_S)
            raise Transient(f"cannot open {name!r} in {self.url}: it changes all the time")

        reader = await self._run("open", name, work)
        try:
            yield reader
        finally:
            reader.closed = True

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
        options = self._write_options(mode, replication, block_bytes)
        gate = WriteSequence(name)
        file = self._file(name, self._path((*parts[:-1], temporary_name())), options)
        writer = HdfsWriter(self._calls, file, self._path(parts), gate, overwrite=overwrite)
        try:
            await file.make()
            yield writer
        finally:
            gate.shut()
            file.is_left = True
            if not writer.is_published:
                with trio.move_on_after(_DISCARD_S, shield=True), suppress(BootseerError):
                    await file.discard()

    @asynccontextmanager
    async def append(
        self,
        name: str,
        *,
        mode: int | None = None,
        replication: int | None = None,
        block_bytes: int | None = None,
    ) -> AsyncIterator[Appender]:
        """Write under the object's name; without `finish`, have the NameNode end the file.

        A pipeline that has lost a DataNode is not mended by the library, and it takes a quarter of
        a minute to close the file. The NameNode ends it at once, with what was synced.
        """
        path = self._path(check_name(name))
        gate = WriteSequence(name)
        file = self._file(name, path, self._write_options(mode, replication, block_bytes))
        appender = HdfsAppender(file, gate)
        try:
            await file.make()
        except BaseException:
            file.is_left = True  # it may be made all the same
            raise
        self._unended.discard(path)
        try:
            yield appender
        finally:
            gate.shut()
            file.is_left = True
            if not appender.is_finished:
                self._unended.add(path)
                with trio.move_on_after(_END_S, shield=True), suppress(BootseerError):
                    while not await self._run("end", name, partial(self._end, path)):
                        await trio.sleep(_PAUSE_S)

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        old, new = (self._path(parts) for parts in check_rename(source, target))

        def work() -> None:
            client = self._client()
            is_folder = client.get_file_info(old).isdir
            if old == new:
                if overwrite:
                    return
                raise Conflict(f"cannot rename {source!r} in {self.url}: it is its own target")
            # HDFS would put a folder in the place of an empty one.
            replace = overwrite and not is_folder
            try:
                client.rename(old, new, replace)
            except FileNotFoundError:
                self._make_folder(new.rpartition("/")[0])
                client.rename(old, new, replace)

        await self._run(f"rename to {target!r}", source, work)

    async def delete(self, name: str) -> None:
        path = self._path(check_name(name))

        def work() -> None:
            # To delete below an object is an error of another kind.
            self._client().get_file_info(path)
            if not self._client().delete(path, False):
                raise NotFound(f"cannot delete {name!r} in {self.url}: there is no such object")

        await self._run("delete", name, work)

    async def delete_tree(self, name: str) -> None:
        """Remove the tree in one step; the NameNode frees the blocks later."""
        path = self._path(check_name(name))

        def work() -> None:
            self._client().get_file_info(path)
            if not self._client().delete(path, True):
                raise NotFound(f"cannot delete all of {name!r} in {self.url}: it does not exist")

        await self._run("delete all of", name, work)

    async def mkdir(self, name: str, *, mode: int | None = None) -> None:
        path = self._path(check_name(name))
        check_mode(mode)

        def work() -> None:
            if mode is None:
                self._make_folder(path)
            else:
                # Folders made on the way would get the mode, too.
                self._make_folder(path.rpartition("/")[0])
                self._client().mkdirs(path, mode)

        await self._run("make folder", name, work)

    async def set_mode(self, name: str, mode: int) -> None:
        path = self._path(check_name(name))
        check_mode(mode)

        def work() -> None:
            self._client().get_file_info(path)
            self._client().set_permission(path, mode)

        await self._run("change the mode of", name, work)

    async def set_mtime(self, name: str, mtime_ns: int) -> None:
        """Set a time in milliseconds, 1970 for anything earlier: HDFS keeps no others."""
        path = self._path(check_name(name))

        def work() -> None:
            self._client().get_file_info(path)
            self._client().set_times(path, max(0, mtime_ns // NS_PER_MS), _KEEP_TIME)

        await self._run("change the time of", name, work)

    async def set_replication(self, name: str, copies: int) -> None:
        """Set the number of copies, which the NameNode makes or removes later."""
        path = self._path(check_name(name))

        def work() -> None:
            if self._client().get_file_info(path).isdir:
                raise Conflict(f"cannot replicate {name!r} in {self.url}: it is a folder")
            self._client().set_replication(path, copies)

        await self._run("replicate", name, work)

    async def space(self) -> StoreSpace:
        """Return the space of the whole file system, whatever quotas there are.

        To ask for a quota where none is set makes the NameNode count the whole tree.
        """

        def work() -> StoreSpace:
            with suppress(BootseerError):
                return webhdfs.space(self._http_addresses())
            return StoreSpace()

        return await self._run("ask for the space of", "", work)

    async def block_locations(self, name: str) -> Sequence[BlockLocation]:
        path = self._path(check_name(name))

        def work() -> Sequence[BlockLocation]:
            return webhdfs.block_locations(self._http_addresses(), path)

        return await self._run("locate", name, work)

    async def reap_temporaries(self, older_than_s: float, folder: str = "") -> int:
        """Remove them by age, which counts from when a file was made."""
        path = self._path(check_folder(folder))

        def work() -> int:
            client = self._client()
            before_ms = (time.time_ns() - int(older_than_s * NS_PER_S)) // NS_PER_MS
            try:
                stale = [
                    status.path
                    for status in client.list_status(path or "/", recursive=True)
                    if status.path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
                    and status.modification_time <= before_ms
                ]
            except FileNotFoundError:
                return 0
            return sum(client.delete(path, False) for path in stale)

        return await self._run("reap", folder, work)

    def _http_addresses(self) -> Sequence[tuple[str, int]]:
        settings = webhdfs.read_settings(self._options.conf_dir)
        return webhdfs.http_addresses(self._authority.removeprefix("hdfs://"), settings)

    def _path(self, parts: Sequence[str]) -> str:
        return "/".join((self._root, *parts))

    def _write_options(
        self, mode: int | None, replication: int | None, block_bytes: int | None
    ) -> WriteOptions:
        if check_mode(mode) is None and self._private:
            mode = 0o600
        return WriteOptions(
            replication=replication,
            block_size=block_bytes,
            permission=mode,
            # HDFS would give them the mode of the folder they are in.
            create_parent=not self._private,
            overwrite=False,
        )

    def _file(self, name: str, path: str, options: WriteOptions) -> HdfsFile:
        def make() -> FileWriter:
            try:
                return self._client().create(path, options)
            except FileNotFoundError:
                self._make_folder(path.rpartition("/")[0])
                return self._client().create(path, options)

        return HdfsFile(self._calls, name, path, make)

    def _end(self, path: str) -> bool:
        """End a file that nobody writes to any more; True if it has, with what was synced."""
        has_ended = self._client().recover_lease(path)
        if has_ended:
            self._unended.discard(path)
        return has_ended

    def _make_folder(self, path: str) -> None:
        mode = 0o700 if self._private else 0o755
        self._client().mkdirs(path or "/", mode, create_parent=True)


def _info(name: str, status: FileStatus) -> ObjectInfo:
    return ObjectInfo(
        name,
        status.length,
        status.modification_time * NS_PER_MS,
        status.isdir,
        mode=status.permission & 0o1777,
        owner=status.owner,
        group=status.group,
    )

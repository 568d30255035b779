"""A store in this process's memory, for tests and as the plainest statement of what stores do."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from bootseer.errors import Closed, Conflict, NotFound, Unavailable
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
from bootseer.store.api.name import check_folder, check_name, check_rename
from bootseer.store.api.write_sequence import WriteSequence

_OBJECT_MODE = 0o644
_FOLDER_MODE = 0o755


def _now_ns() -> int:
    return time.time_ns()


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object's content, or None for a folder."""

    content: bytes | None
    mode: int
    mtime_ns: int = field(default_factory=_now_ns)
    version: int = field(default_factory=itertools.count(1).__next__)

    def info(self, name: str) -> ObjectInfo:
        return ObjectInfo(
            name,
            len(self.content or b""),
            self.mtime_ns,
            is_folder=self.content is None,
            mode=self.mode,
            version=str(self.version),
        )


class MemoryStore:
    """A store that ends with the process.

    Concurrency: the tasks of one trio run. A change happens between two checkpoints, at once.

    Durability: none.
    """

    url = "memory:"
    capabilities = Capabilities(atomic_rename=True, replication=False, attributes=True, append=True)

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    async def stat(self, name: str) -> ObjectInfo:
        check_name(name)
        await trio.lowlevel.checkpoint()
        return self._entry(name).info(name)

    async def list(self, folder: str = "") -> FolderListing:
        depth = len(check_folder(folder))
        await trio.lowlevel.checkpoint()
        return FolderListing(
            entry.info(name)
            for name, entry in sorted(self._entries.items())
            if name.count("/") == depth and (not folder or name.startswith(f"{folder}/"))
        )

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        check_name(name)
        await trio.lowlevel.checkpoint()
        entry = self._entry(name)
        if entry.content is None:
            raise Conflict(f"cannot open {name!r} in {self.url}: it is a folder")
        info = entry.info(name)
        check_version(info, version, self.url)
        reader = _MemoryReader(info, entry.content)
        try:
            yield reader
        finally:
            reader.content = None

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
        check_name(name)
        mode = _OBJECT_MODE if mode is None else check_mode(mode)
        await trio.lowlevel.checkpoint()
        self._make_folders(_above(name))
        writer = _MemoryWriter(self, name, overwrite, mode)
        try:
            yield writer
        finally:
            writer.gate.shut()

    @asynccontextmanager
    async def append(
        self,
        name: str,
        *,
        mode: int | None = None,
        replication: int | None = None,
        block_bytes: int | None = None,
    ) -> AsyncIterator[Appender]:
        check_name(name)
        mode = _OBJECT_MODE if mode is None else check_mode(mode)
        await trio.lowlevel.checkpoint()
        self.put(name, b"", mode, overwrite=False)
        appender = _MemoryAppender(self, name, True, mode)
        try:
            yield appender
        finally:
            appender.gate.shut()

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        check_rename(source, target)
        await trio.lowlevel.checkpoint()
        entry = self._entry(source)
        if source == target and overwrite:
            return
        self._check_free(target, overwrite=overwrite and entry.content is not None)
        self._make_folders(_above(target))
        self._entries[target] = self._entries.pop(source)
        self._note_change(source, target)
        for name in [name for name in self._entries if name.startswith(f"{source}/")]:
            self._entries[target + name.removeprefix(source)] = self._entries.pop(name)

    async def delete(self, name: str) -> None:
        check_name(name)
        await trio.lowlevel.checkpoint()
        self._entry(name)
        if any(other.startswith(f"{name}/") for other in self._entries):
            raise Conflict(f"cannot delete {name!r} in {self.url}: the folder is not empty")
        del self._entries[name]
        self._note_change(name)

    async def delete_tree(self, name: str) -> None:
        check_name(name)
        await trio.lowlevel.checkpoint()
        self._entry(name)
        for gone in [other for other in self._entries if f"{other}/".startswith(f"{name}/")]:
            del self._entries[gone]
        self._note_change(name)

    async def mkdir(self, name: str, *, mode: int | None = None) -> None:
        check_name(name)
        mode = _FOLDER_MODE if mode is None else check_mode(mode)
        await trio.lowlevel.checkpoint()
        self._make_folders(_above(name))
        self._make_folders([name], mode)

    async def set_mode(self, name: str, mode: int) -> None:
        check_name(name)
        check_mode(mode)
        await trio.lowlevel.checkpoint()
        self._entries[name] = replace(self._entry(name), mode=mode)

    async def set_mtime(self, name: str, mtime_ns: int) -> None:
        check_name(name)
        await trio.lowlevel.checkpoint()
        self._entries[name] = replace(self._entry(name), mtime_ns=mtime_ns)

    async def set_replication(self, name: str, copies: int) -> None:
        check_name(name)
        await trio.lowlevel.checkpoint()
        raise Unavailable(f"cannot replicate {name!r}: {self.url} keeps one copy")

    async def space(self) -> StoreSpace:
        await trio.lowlevel.checkpoint()
        return StoreSpace()

    async def reap_temporaries(self, older_than_s: float, folder: str = "") -> int:
        """Return 0: writers that end leave nothing here."""
        check_folder(folder)
        await trio.lowlevel.checkpoint()
        return 0

    def put(self, name: str, content: bytes, mode: int, *, overwrite: bool) -> None:
        """Make an object visible, without a checkpoint.

        Raises:
            Conflict: as for `Writer.commit`.
        """
        self._check_free(name, overwrite=overwrite)
        self._make_folders(_above(name))
        if name not in self._entries:
            self._note_change(name)
        self._entries[name] = _Entry(content, mode)

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise NotFound(f"there is no {name!r} in {self.url}") from None

    def _check_free(self, name: str, *, overwrite: bool) -> None:
        taken = self._entries.get(name)
        if taken is not None and (taken.content is None or not overwrite):
            raise Conflict(f"{name!r} in {self.url} exists already")

    def _make_folders(self, names: Sequence[str], mode: int = _FOLDER_MODE) -> None:
        for name in names:
            if name not in self._entries:
                self._entries[name] = _Entry(None, mode)
                self._note_change(name)
            if self._entries[name].content is not None:
                raise Conflict(f"{name!r} in {self.url} is an object, not a folder")

    def _note_change(self, *names: str) -> None:
        """Set the times of the folders that some names are, or were, in."""
        for name in names:
            folder = name.rpartition("/")[0]
            if folder in self._entries:
                self._entries[folder] = replace(self._entries[folder], mtime_ns=_now_ns())


class _MemoryReader(Reader):
    """Reads the version that was there when it was opened."""

    def __init__(self, info: ObjectInfo, content: bytes) -> None:
        self.info = info
        self.content: bytes | None = content

    async def pread(self, offset: int, size: int) -> bytes:
        size = readable_bytes(offset, size, self.size_bytes)
        await trio.lowlevel.checkpoint()
        if self.content is None:
            raise Closed(f"{self.info.name!r} was closed")
        return self.content[offset : offset + size]


class _MemoryWriter:
    """Collects the data and hands it over at the commit."""

    def __init__(self, store: MemoryStore, name: str, overwrite: bool, mode: int) -> None:
        self.gate = WriteSequence(name)
        self._store = store
        self._name = name
        self._overwrite = overwrite
        self._mode = mode
        self._content = bytearray()

    async def write(self, data: Data) -> None:
        with self.gate.step():
            await trio.lowlevel.checkpoint()
            self._content += data

    async def commit(self) -> None:
        with self.gate.step(last=True):
            await trio.lowlevel.checkpoint()
            self._show()

    def _show(self) -> None:
        self._store.put(self._name, bytes(self._content), self._mode, overwrite=self._overwrite)


class _MemoryAppender(_MemoryWriter):
    """Shows what was synced."""

    async def sync(self) -> None:
        with self.gate.step():
            await trio.lowlevel.checkpoint()
            self._show()

    async def finish(self) -> None:
        await self.commit()


def _above(name: str) -> Sequence[str]:
    """Return the folders a name lies in, outermost first."""
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]

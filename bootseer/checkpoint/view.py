"""A checkpoint tree as a mount shows it: numbered files, open handles, what the kernel may keep."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import trio

from bootseer.checkpoint.fetch import Fetcher, FileFetch, Sink
from bootseer.checkpoint.identity import Owners
from bootseer.checkpoint.source import PlainSource
from bootseer.checkpoint.tree import CheckpointTree, Entry
from bootseer.checkpoint.write import Draft, Drafts
from bootseer.core.ranges import ByteRange
from bootseer.core.window import Window
from bootseer.errors import BootseerError, Conflict
from bootseer.fuse.view import RENAME_NOREPLACE, ROOT_INODE, Attributes, Kernel, Opened, Space
from bootseer.store.base import ObjectInfo
from bootseer.store.name import is_component
from bootseer.units import MIB

_log = logging.getLogger(__name__)

_PAGE = 4096
_MARK_BYTES = 64 * MIB
"""Of a file that is read ahead, one page in so many bytes is kept back: asking for it tells how far
its readers are, who find everything else in the page cache."""
_FIRST_WINDOW = 8 * MIB
_STATS_BEFORE_LISTING = 8
_FILE_MODE = 0o644
_FOLDER_MODE = 0o755
_NO_SPACE_KNOWN = 2**50


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How a tree is shown.

    Attributes:
        valid_s: how long names and attributes are believed, in seconds.
        window_bytes: how far a file is read ahead at most; that much of it may lie in the page
            cache before it is asked for.
        read_only: nothing may be changed.
    """

    valid_s: float = 1.0
    window_bytes: int = 2048 * MIB
    read_only: bool = False


@dataclass(slots=True, eq=False)
class _Node:
    """A file or folder that the kernel knows, in one version."""

    inode: int
    parent: int
    name: str
    entry: Entry | None
    draft: Draft | None = None
    failed: BootseerError | None = None
    fetch: FileFetch | None = None
    window: Window | None = None
    marks: dict[int, bytes] = field(default_factory=dict)
    handles: int = 0
    writers: int = 0
    has_name: bool = True
    aside: Entry | None = None
    outlived: Entry | None = None
    mtime_ns: int = 0
    changes: int = 0
    pushes: int = 0
    pushed: trio.Event = field(default_factory=trio.Event)
    lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_folder(self) -> bool:
        return self.entry is not None and self.entry.is_folder


@dataclass(frozen=True, slots=True)
class _Handle:
    node: _Node
    flags: int

    @property
    def writes(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY


@dataclass(slots=True)
class _Listing:
    """What was last seen in a folder, and how often a single name was asked for since."""

    at: float
    entries: dict[str, Entry]
    asked: int = 0


class CheckpointView:
    """See `bootseer.fuse.view.WritableView`.

    A file that is written shows here at once, and to others when its last writer has closed it. One
    that was replaced by somebody else is another file with another number.
    """

    def __init__(
        self,
        tree: CheckpointTree,
        fetcher: Fetcher,
        drafts: Drafts,
        owners: Owners,
        options: ViewOptions | None = None,
    ) -> None:
        """Show `tree`."""
        self._tree = tree
        self._fetcher = fetcher
        self._drafts = drafts
        self._owners = owners
        self._options = options or ViewOptions()
        self.valid_s = self._options.valid_s
        self._kernel: Kernel | None = None
        root = _Node(ROOT_INODE, ROOT_INODE, "", Entry(ObjectInfo("", 0, 0, is_folder=True)))
        self._nodes: dict[int, _Node] = {ROOT_INODE: root}
        self._by_name: dict[tuple[int, str], _Node] = {}
        self._handles: dict[int, _Handle] = {}
        self._listings: dict[int, _Listing] = {}
        self._inodes = itertools.count(ROOT_INODE + 1)
        self._numbers = itertools.count(1)
        self._closed = trio.Event()

    def attach(self, kernel: Kernel) -> None:
        """See `View.attach`."""
        self._kernel = kernel

    # Names

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """See `View.lookup`."""
        text = _text(name)
        node = self._by_name.get((parent, text))
        if node is None or node.draft is None:
            entry = await self._entry(self._nodes[parent], text)
            node = self._by_name.get((parent, text))
            if node is None or node.draft is None:
                if entry is None:
                    self._unname(parent, text)
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                node = self._node(parent, text, entry)
        return self._attributes(node)

    async def attributes(self, inode: int) -> Attributes:
        """See `View.attributes`."""
        await trio.lowlevel.checkpoint()
        return self._attributes(self._nodes[inode])

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        """See `View.entries`."""
        # One that is published while the store is asked may be in neither answer.
        being_written = self._being_written(inode)
        listing = await self._list(self._nodes[inode])
        nodes = {name: self._node(inode, name, entry) for name, entry in listing.entries.items()}
        for node in (*being_written, *self._being_written(inode)):
            if node.has_name and node.parent == inode:
                nodes[node.name] = node
        return [(name.encode(), self._attributes(node)) for name, node in sorted(nodes.items())]

    async def link_target(self, inode: int) -> bytes:
        """See `View.link_target`: there are none."""
        await trio.lowlevel.checkpoint()
        raise _os_error(errno.EINVAL)

    def forget(self, inode: int) -> None:
        """See `View.forget`."""
        node = self._nodes.get(inode)
        if node is None or inode == ROOT_INODE or node.handles or node.draft is not None:
            return
        del self._nodes[inode]
        self._listings.pop(inode, None)
        if self._by_name.get((node.parent, node.name)) is node:
            del self._by_name[node.parent, node.name]

    async def make_folder(self, parent: int, name: bytes, mode: int) -> Attributes:
        """See `WritableView.make_folder`."""
        text = self._changes(parent, name)
        path = self._path_in(parent, text)
        if await self._current(parent, text) is not None:
            raise _os_error(errno.EEXIST)
        await self._tree.mkdir(path, mode & 0o1777)
        entry = await self._tree.stat(path)
        self._touch(parent)
        return self._attributes(self._node(parent, text, entry))

    async def remove(self, parent: int, name: bytes) -> None:
        """See `WritableView.remove`."""
        text = self._changes(parent, name)
        node = await self._named(parent, text)
        if node.is_folder:
            raise _os_error(errno.EISDIR)
        async with node.lock:
            if node.entry is not None:
                await self._remove_entry(node)
            self._unname(parent, text)
            self._touch(parent)
            if node.draft is not None and not node.handles:
                await node.draft.discard()
                node.draft = None

    async def remove_folder(self, parent: int, name: bytes) -> None:
        """See `WritableView.remove_folder`."""
        text = self._changes(parent, name)
        node = await self._named(parent, text)
        if not node.is_folder:
            raise _os_error(errno.ENOTDIR)
        await self._remove_folder(node)
        self._unname(parent, text)
        self._touch(parent)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """See `WritableView.rename`."""
        old, new = self._changes(parent, name), self._changes(new_parent, new_name)
        node = await self._named(parent, old)
        over = await self._named_or_none(new_parent, new)
        if over is node:
            return
        if over is not None and flags & RENAME_NOREPLACE:
            raise _os_error(errno.EEXIST)
        if over is not None and over.is_folder != node.is_folder:
            raise _os_error(errno.EISDIR if over.is_folder else errno.ENOTDIR)
        await self._settle(node)
        assert node.entry is not None
        target = self._path_in(new_parent, new)
        replaced: Entry | None = None
        if over is not None and over.is_folder:
            await self._remove_folder(over)
        elif over is not None:
            replaced = over.entry and replace(over.entry, info=self._info(over))
        keeps_parts = over is not None and over.handles > 0 and replaced is not None
        if keeps_parts and replaced is not None and replaced.layout is not None:
            assert over is not None
            over.outlived, replaced = replaced, Entry(replaced.info)
        entry = replace(node.entry, info=self._info(node))
        node.entry = await self._tree.rename(entry, target, over=replaced)
        if over is not None:
            self._unname(new_parent, new)
            if over.draft is not None and not over.handles:
                await over.draft.discard()
                over.draft = None
        del self._by_name[parent, old]
        node.parent, node.name = new_parent, new
        self._by_name[new_parent, new] = node
        self._touch(parent)
        self._touch(new_parent)
        for other in self._nodes.values():
            if other.fetch is not None and other.has_name:
                other.fetch.source.move(self._path(other))

    # Files

    async def open(self, inode: int, flags: int) -> Opened:
        """See `View.open`."""
        node = self._nodes[inode]
        handle = _Handle(node, flags)
        if handle.writes or flags & os.O_TRUNC:
            self._check_writable()
        if node.failed is not None:
            raise type(node.failed)(str(node.failed))
        async with node.lock:
            if flags & os.O_TRUNC:
                await self._begin(node, is_empty=True)
            elif node.draft is None and not handle.writes:
                await self._open_to_read(node)
            node.handles += 1
            node.writers += handle.writes
            while handle.writes and node.pushes:
                await node.pushed.wait()
        return self._opened(handle)

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Attributes, Opened]:
        """See `WritableView.create`."""
        text = self._changes(parent, name)
        node = await self._named_or_none(parent, text)
        if node is not None:
            if flags & os.O_EXCL:
                raise _os_error(errno.EEXIST)
            if node.is_folder:
                raise _os_error(errno.EISDIR)
            opened = await self.open(node.inode, flags & ~(os.O_CREAT | os.O_EXCL))
            return self._attributes(node), opened
        node = _Node(next(self._inodes), parent, text, None)
        node.draft = self._drafts.begin(self._path_in(parent, text), mode & 0o1777)
        node.mtime_ns = time.time_ns()
        node.handles = node.writers = 1
        self._nodes[node.inode] = node
        self._by_name[parent, text] = node
        self._touch(parent)
        # Opened only to read, it is there all the same.
        handle = _Handle(node, flags if flags & os.O_ACCMODE else flags | os.O_RDWR)
        return self._attributes(node), self._opened(handle)

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """See `View.read`."""
        node = self._handles[handle].node
        if node.failed is not None:
            raise type(node.failed)(str(node.failed))
        if node.draft is not None:
            async with node.lock:
                if node.draft is not None:
                    return await node.draft.read(offset, size_bytes)
        if node.fetch is None:
            async with node.lock:
                await self._open_to_read(node)
        fetch, window = node.fetch, node.window
        assert fetch is not None and window is not None
        ahead = window.read(offset, size_bytes)
        if ahead.size_bytes:
            self._fetcher.nursery.start_soon(self._read_ahead, fetch, ahead)
        mark = node.marks.get(offset)
        if mark is not None and size_bytes <= len(mark):
            await trio.lowlevel.checkpoint()
            return mark[:size_bytes]
        return await fetch.read(offset, size_bytes)

    async def write(self, handle: int, offset: int, data: bytes) -> int:
        """See `WritableView.write`."""
        opened = self._handles[handle]
        node = opened.node
        async with node.lock:
            draft = await self._begin(node)
            if opened.flags & os.O_APPEND:
                offset = draft.size_bytes
            await draft.write(offset, data)
            node.mtime_ns = time.time_ns()
            draft.mtime_ns = None
        return len(data)

    async def flush(self, handle: int) -> None:
        """See `WritableView.flush`."""
        opened = self._handles[handle]
        if opened.writes:
            async with opened.node.lock:
                if opened.node.draft is not None:
                    await opened.node.draft.flush()

    async def sync(self, handle: int) -> None:
        """See `WritableView.sync`: what was written survives, if it is closed some day."""
        await self.flush(handle)

    async def close(self, handle: int) -> None:
        """See `View.close`; the last writer's makes the file visible to others."""
        opened = self._handles.pop(handle)
        node = opened.node
        # A file must not be left half published because the mount ends.
        with trio.CancelScope(shield=True):
            async with node.lock:
                node.handles -= 1
                node.writers -= opened.writes
                if node.draft is not None and not node.writers:
                    await self._end_draft(node)
                if not node.handles:
                    await self._close_unused(node)
        self._closed.set()
        self._closed = trio.Event()

    async def truncate(self, inode: int, handle: int | None, size_bytes: int) -> Attributes:
        """See `WritableView.truncate`."""
        self._check_writable()
        node = self._nodes[inode]
        async with node.lock:
            draft = await self._begin(node, is_empty=size_bytes == 0)
            await draft.truncate(size_bytes)
            node.mtime_ns = time.time_ns()
            if not node.writers:
                await self._publish(node)
        return self._attributes(node)

    async def change(
        self,
        inode: int,
        mode: int | None = None,
        mtime_ns: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> Attributes:
        """See `WritableView.change`; owners stay who they are."""
        self._check_writable()
        node = self._nodes[inode]
        now = self._attributes(node)
        if uid not in (None, now.uid) or gid not in (None, now.gid):
            raise _os_error(errno.EPERM)
        async with node.lock:
            if node.draft is not None:
                if mode is not None:
                    node.draft.mode = mode & 0o1777
                if mtime_ns is not None:
                    node.draft.mtime_ns = node.mtime_ns = mtime_ns
            elif node.entry is not None and node.has_name and inode != ROOT_INODE:
                entry = replace(node.entry, info=self._info(node))
                if mode is not None:
                    await self._tree.set_mode(entry, mode & 0o1777)
                if mtime_ns is not None:
                    await self._tree.store.set_mtime(entry.name, mtime_ns)
                    node.mtime_ns = 0
                node.entry = await self._tree.stat(entry.name)
                self._touch(node.parent)
        return self._attributes(node)

    async def space(self) -> Space:
        """See `WritableView.space`."""
        with suppress(BootseerError):
            found = await self._tree.store.space()
            if found.total_bytes is not None and found.free_bytes is not None:
                return Space(found.total_bytes, found.free_bytes)
        return Space(_NO_SPACE_KNOWN, _NO_SPACE_KNOWN)

    async def extended(self, inode: int, name: bytes) -> bytes:
        """See `WritableView.extended`."""
        await trio.lowlevel.checkpoint()
        found = self._extended(self._nodes[inode]).get(name)
        if found is None:
            raise _os_error(errno.ENODATA)
        return found

    async def extended_names(self, inode: int) -> Sequence[bytes]:
        """See `WritableView.extended_names`."""
        await trio.lowlevel.checkpoint()
        return sorted(self._extended(self._nodes[inode]))

    async def settled(self) -> None:
        """Wait until all files that have been written and closed are published."""
        while any(n.draft is not None and not n.draft.changed for n in self._nodes.values()):
            await self._closed.wait()

    async def end(self) -> list[str]:
        """Publish what is complete, give up the rest; returns the names that are lost."""
        lost = []
        for node in list(self._nodes.values()):
            if node.draft is None or not node.has_name:
                continue
            async with node.lock:
                if node.writers or node.failed is not None:
                    lost.append(self._path(node))
                    await node.draft.discard()
                else:
                    await self._end_draft(node)
                    if node.failed is not None:
                        lost.append(self._path(node))
        return lost

    # What is known of names

    def _path(self, node: _Node) -> str:
        parts: list[str] = []
        while node.inode != ROOT_INODE:
            parts.append(node.name)
            node = self._nodes[node.parent]
        return "/".join(reversed(parts))

    def _path_in(self, parent: int, name: str) -> str:
        above = self._path(self._nodes[parent])
        return f"{above}/{name}" if above else name

    def _info(self, node: _Node) -> ObjectInfo:
        """What is known of a published file, under the name that it has now."""
        assert node.entry is not None
        return replace(node.entry.info, name=self._path(node))

    def _node(self, parent: int, name: str, entry: Entry) -> _Node:
        """Return the file of a name: the one that is known, if it is still that version."""
        node = self._by_name.get((parent, name))
        if node is not None and node.draft is not None:
            return node
        if node is not None and node.entry is not None:
            same_kind = node.is_folder == entry.is_folder
            if same_kind and (entry.is_folder or _version(node.entry) == _version(entry)):
                node.entry = entry
                return node
            self._unname(parent, name)
        node = _Node(next(self._inodes), parent, name, entry)
        self._nodes[node.inode] = node
        self._by_name[parent, name] = node
        return node

    def _unname(self, parent: int, name: str) -> None:
        node = self._by_name.pop((parent, name), None)
        if node is not None:
            node.has_name = False

    async def _entry(self, parent: _Node, name: str) -> Entry | None:
        """Find out what a name is, if what is known is too old."""
        listing = self._listings.get(parent.inode)
        if listing is not None:
            listing.asked += 1
            if trio.current_time() - listing.at <= self.valid_s:
                return listing.entries.get(name)
            if listing.asked >= _STATS_BEFORE_LISTING:
                return (await self._list(parent)).entries.get(name)
        if not is_component(name):
            await trio.lowlevel.checkpoint()
            return None
        return await self._tree.find(self._path_in(parent.inode, name))

    async def _list(self, folder: _Node) -> _Listing:
        async with folder.lock:
            known = self._listings.get(folder.inode)
            now = trio.current_time()
            if known is not None and known.asked and now - known.at <= self.valid_s:
                return known
            changes = folder.changes
            entries = await self._tree.list(self._path(folder))
            listing = _Listing(now, {e.name.rpartition("/")[2]: e for e in entries})
            if changes == folder.changes:
                self._listings[folder.inode] = listing
            return listing

    def _touch(self, inode: int) -> None:
        """Note that what was seen in a folder is no longer all."""
        self._listings.pop(inode, None)
        folder = self._nodes[inode]
        folder.changes += 1
        folder.mtime_ns = time.time_ns()

    async def _current(self, parent: int, name: str) -> Entry | None:
        return await self._tree.find(self._path_in(parent, name))

    async def _named_or_none(self, parent: int, name: str) -> _Node | None:
        node = self._by_name.get((parent, name))
        if node is not None and node.draft is not None:
            return node
        entry = await self._current(parent, name)
        node = self._by_name.get((parent, name))
        if node is not None and node.draft is not None:
            return node
        if entry is None:
            self._unname(parent, name)
            return None
        return self._node(parent, name, entry)

    async def _named(self, parent: int, name: str) -> _Node:
        node = await self._named_or_none(parent, name)
        if node is None:
            raise _os_error(errno.ENOENT)
        return node

    def _being_written(self, folder: int) -> list[_Node]:
        return [
            node
            for (parent, _), node in self._by_name.items()
            if parent == folder and node.draft is not None
        ]

    def _changes(self, parent: int, name: bytes) -> str:
        """Check that a name may be changed, and return it as the store has it."""
        self._check_writable()
        if not self._nodes[parent].has_name:
            raise _os_error(errno.ENOENT)
        text = _text(name)
        if not is_component(text):
            raise _os_error(errno.EINVAL)
        return text

    def _check_writable(self) -> None:
        if self._options.read_only:
            raise _os_error(errno.EROFS)

    async def _remove_folder(self, node: _Node) -> None:
        if self._being_written(node.inode):
            raise _os_error(errno.ENOTEMPTY)
        try:
            await self._tree.remove_folder(self._path(node))
        except Conflict as error:
            raise _os_error(errno.ENOTEMPTY) from error

    async def _remove_entry(self, node: _Node) -> None:
        """Remove a published file; what is open of it is kept until it is closed."""
        assert node.entry is not None
        entry = replace(node.entry, info=self._info(node))
        if not node.handles:
            await self._tree.remove(entry)
            return
        node.aside = await self._tree.set_aside(entry)
        if node.fetch is not None:
            node.fetch.source.move(node.aside.name)

    # Reading

    async def _open_to_read(self, node: _Node) -> None:
        if node.fetch is not None:
            return
        assert node.entry is not None
        entry = replace(node.entry, info=self._info(node)) if node.has_name else node.aside
        if entry is None:
            raise _os_error(errno.ESTALE)
        source = self._tree.source(entry)
        if isinstance(source, PlainSource):
            await source.open()
        node.window = Window(source.size_bytes, _FIRST_WINDOW, self._options.window_bytes)
        node.fetch = self._fetcher.open(source, self._sink(node), hold=True)

    def _sink(self, node: _Node) -> Sink:
        async def sink(offset: int, data: bytes) -> None:
            # Pages that somebody may have changed through a mapping would be written over.
            if self._kernel is None or node.writers:
                return
            start = 0
            if offset % _MARK_BYTES == 0 and len(data) > _PAGE:
                start = _PAGE
                node.marks[offset] = data[:_PAGE]
            node.pushes += 1
            try:
                with suppress(OSError):
                    await self._kernel.store(node.inode, offset + start, memoryview(data)[start:])
            finally:
                node.pushes -= 1
                node.pushed.set()
                node.pushed = trio.Event()

        return sink

    async def _read_ahead(self, fetch: FileFetch, ahead: ByteRange) -> None:
        await fetch.source.plan()
        fetch.read_ahead(ahead)

    async def _close_unused(self, node: _Node) -> None:
        if node.fetch is not None:
            fetch, node.fetch, node.window = node.fetch, None, None
            node.marks.clear()
            await fetch.close()
        if node.aside is not None and not node.has_name:
            aside, node.aside = node.aside, None
            with suppress(BootseerError):
                await self._tree.drop_aside(aside)
        if node.outlived is not None:
            outlived, node.outlived = node.outlived, None
            await self._tree.drop_parts(outlived)

    # Writing

    async def _begin(self, node: _Node, *, is_empty: bool = False) -> Draft:
        """Return the version that is being written, and begin one if there is none."""
        if node.failed is not None:
            raise type(node.failed)(str(node.failed))
        if node.draft is not None:
            if is_empty:
                await node.draft.truncate(0)
            return node.draft
        if node.entry is None or not node.has_name:
            raise _os_error(errno.ESTALE)
        entry = replace(node.entry, info=self._info(node))
        base = None if is_empty else self._tree.source(entry)
        node.draft = self._drafts.begin(entry.name, entry.info.mode, base)
        node.mtime_ns = time.time_ns()
        return node.draft

    async def _end_draft(self, node: _Node) -> None:
        """Publish what its last writer has closed."""
        assert node.draft is not None
        if not node.has_name:
            await node.draft.discard()
            node.draft = None
            return
        try:
            await self._publish(node)
        except BootseerError as error:
            # Nobody waits for this answer: who opens the file next learns of it.
            _log.error("%s is lost: %s", self._path(node), error)
            node.failed = error

    async def _publish(self, node: _Node) -> None:
        draft = node.draft
        assert draft is not None
        draft.name = self._path(node)
        node.entry = await draft.publish()
        node.draft = None
        self._touch(node.parent)
        if node.fetch is not None:
            fetch, node.fetch, node.window = node.fetch, None, None
            node.marks.clear()
            await fetch.close()

    async def _settle(self, node: _Node) -> None:
        """Publish what is being written of a file, or in a folder, before it is moved."""
        if node.is_folder:
            for other in list(self._nodes.values()):
                if other.draft is not None and other.has_name and self._is_below(other, node):
                    await self._settle(other)
            return
        async with node.lock:
            if node.draft is not None:
                await self._publish(node)

    def _is_below(self, node: _Node, folder: _Node) -> bool:
        while node.inode != ROOT_INODE:
            node = self._nodes[node.parent]
            if node is folder:
                return True
        return False

    # Answers

    def _opened(self, handle: _Handle) -> Opened:
        number = next(self._numbers)
        self._handles[number] = handle
        return Opened(number, keep_cache=handle.node.draft is None)

    def _attributes(self, node: _Node) -> Attributes:
        if node.entry is None:
            assert node.draft is not None
            mode = _FILE_MODE if node.draft.mode is None else node.draft.mode
            uid, gid = self._owners.own
        else:
            info = node.entry.info
            default = _FOLDER_MODE if node.is_folder else _FILE_MODE
            mode = default if info.mode is None else info.mode
            uid, gid = self._owners.of(info)
        if node.is_folder:
            assert node.entry is not None
            mtime_ns = max(node.entry.info.mtime_ns, node.mtime_ns)
            return Attributes(
                node.inode, stat.S_IFDIR | mode, 0, mtime_ns, mtime_ns, uid, gid, links=2
            )
        if node.draft is not None:
            size_bytes, mtime_ns = node.draft.size_bytes, node.mtime_ns
        else:
            assert node.entry is not None
            size_bytes, mtime_ns = node.entry.size_bytes, node.entry.info.mtime_ns
        links = 1 if node.has_name else 0
        return Attributes(
            node.inode, stat.S_IFREG | mode, size_bytes, mtime_ns, mtime_ns, uid, gid, links
        )

    def _extended(self, node: _Node) -> dict[bytes, bytes]:
        if node.is_folder:
            return {}
        if node.draft is not None:
            state = f"failed: {node.failed}" if node.failed else "being written"
            return {b"user.bootseer.state": state.encode()}
        assert node.entry is not None
        found = {b"user.bootseer.state": b"complete", b"user.bootseer.layout": b"plain"}
        if node.entry.problem is not None:
            found[b"user.bootseer.state"] = f"damaged: {node.entry.problem}".encode()
        if (layout := node.entry.layout) is not None:
            text = f"striped unit={layout.unit_bytes} parts={layout.parts}"
            found[b"user.bootseer.layout"] = text.encode()
            found[b"user.bootseer.digest"] = f"sha256:{layout.digest}".encode()
        return found


def _version(entry: Entry) -> tuple[int, int, str]:
    return (entry.info.size_bytes, entry.info.mtime_ns, str(entry.problem or ""))


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise _os_error(errno.EILSEQ) from error


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))

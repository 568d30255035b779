"""Answer the kernel's requests for a mount of a checkpoint tree."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import trio

from bootseer.checkpoint.files.namespace import Namespace
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.file_reader import FileReader
from bootseer.checkpoint.mount.inodes import CheckpointInode, InodeTable
from bootseer.checkpoint.mount.name_changes import NameChanges
from bootseer.checkpoint.mount.open_writers import SCANS_AT_ONCE, OpenWriters
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.publisher import LostFile, Publisher
from bootseer.checkpoint.read.fetcher import Fetcher
from bootseer.checkpoint.read.recorder import ReadRecorder
from bootseer.checkpoint.write.draft import Drafts
from bootseer.errors import BootseerError, Conflict, NotFound
from bootseer.fuse.view import (
    RENAME_NOREPLACE,
    ROOT_INODE,
    Attributes,
    FilesystemSpace,
    Kernel,
    OpenedFile,
)
from bootseer.posix import os_error
from bootseer.store.api.name import is_component
from bootseer.units import MIB

_FILE_MODE = 0o644
_FOLDER_MODE = 0o755
_NO_SPACE_KNOWN = 2**50


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Options of showing a tree.

    Attributes:
        valid_s: seconds for which names and attributes are valid.
        window_bytes: most bytes that a file is read ahead; so much may be in the page cache before
            it is read.
        read_only: refuse all changes.
    """

    valid_s: float = 1.0
    window_bytes: int = 2048 * MIB
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class _Handle:
    """An open handle of a file.

    Attributes:
        node: the file.
        open_writers: processes that have the handle, if it may write.
    """

    node: CheckpointInode
    open_writers: OpenWriters | None = None


class CheckpointView:
    """See `bootseer.fuse.view.WritableView`.

    This mount shows at once what is written; others see it when `Publisher` publishes it. A file
    that another node has replaced gets a new inode.
    """

    def __init__(
        self,
        tree: CheckpointTree,
        fetcher: Fetcher,
        drafts: Drafts,
        owners: OwnerNames,
        options: ViewOptions | None = None,
        reads: ReadRecorder | None = None,
        on_lost: Callable[[LostFile], None] = lambda _: None,
    ) -> None:
        """Show `tree`, and record in `reads` what is read; see `Publisher` for `on_lost`."""
        self._tree = tree
        self._namespace = Namespace(tree)
        self._owners = owners
        self._options = options or ViewOptions()
        self._reads = reads or ReadRecorder(tree.store)
        self.valid_s = self._options.valid_s
        self._inodes = InodeTable(tree, self.valid_s)
        self._reader = FileReader(self._inodes, tree, fetcher, self._options.window_bytes)
        self.publisher = Publisher(
            self._inodes, tree, drafts, self._reader, fetcher.nursery, on_lost
        )
        self._names = NameChanges(self._inodes, tree, self._namespace, self._reader, self.publisher)
        self._using = self._inodes.locks.using
        self._handles: dict[int, _Handle] = {}
        self._numbers = itertools.count(1)
        self._scan_limit = trio.CapacityLimiter(SCANS_AT_ONCE)

    def attach(self, kernel: Kernel) -> None:
        self._reader.kernel = kernel

    # Names

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        text = _decode(name)
        async with self._using(parent):
            node = self._inodes.by_name.get((parent, text))
            if node is None or node.pending is None:
                entry = await self._inodes.lookup_entry(self._inodes.by_inode[parent], text)
                node = self._inodes.by_name.get((parent, text))
                if node is None or node.pending is None:
                    if entry is None:
                        self._inodes.remove_name(parent, text)
                        raise os_error(errno.ENOENT)
                    node = self._inodes.inode_for(parent, text, entry)
            return self._attributes(node)

    async def attributes(self, inode: int) -> Attributes:
        """See `View.attributes`; at once, for a listing asks for each of its entries."""
        return self._attributes(self._inodes.by_inode[inode])

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        async with self._using(inode):
            # A file that is published meanwhile may be missing in the listing and in the second
            # list of pending files; the kernel would forget it.
            pending_files = self._inodes.pending_files(inode)
            with self._inodes.locks.holding(*(node.inode for node in pending_files)):
                listing = await self._inodes.listing(self._inodes.by_inode[inode])
                nodes = {
                    name: self._inodes.inode_for(inode, name, entry)
                    for name, entry in listing.entries.items()
                }
                for node in (*pending_files, *self._inodes.pending_files(inode)):
                    if node.has_name and node.parent == inode:
                        nodes[node.name] = node
                return [
                    (name.encode(), self._attributes(node)) for name, node in sorted(nodes.items())
                ]

    async def link_target(self, inode: int) -> bytes:
        """See `View.link_target`: there are none."""
        await trio.lowlevel.checkpoint()
        raise os_error(errno.EINVAL)

    def forget(self, inode: int) -> None:
        self._inodes.forget(inode)

    async def make_folder(self, parent: int, name: bytes, mode: int) -> Attributes:
        text = self._check_change(parent, name)
        async with self._using(parent):
            path = self._inodes.path_in(parent, text)
            if await self._inodes.lookup(parent, text) is not None:
                raise os_error(errno.EEXIST)
            await self._namespace.mkdir(path, mode & 0o1777)
            entry = await self._tree.stat(path)
        self._inodes.touch(parent)
        return self._attributes(self._inodes.inode_for(parent, text, entry))

    async def remove(self, parent: int, name: bytes) -> None:
        text = self._check_change(parent, name)
        async with self._using(parent):
            node = await self._named(parent, text)
            if node.is_folder:
                raise os_error(errno.EISDIR)
            async with node.lock:
                if node.entry is not None:
                    await self._names.remove(node)
                self._inodes.remove_name(parent, text)
                self._inodes.touch(parent)
                if not node.opened.handles:
                    await self.publisher.abandon(node)

    async def remove_folder(self, parent: int, name: bytes) -> None:
        text = self._check_change(parent, name)
        async with self._using(parent):
            node = await self._named(parent, text)
            if not node.is_folder:
                raise os_error(errno.ENOTDIR)
            await self._names.remove_folder(node)
            self._inodes.remove_name(parent, text)
            self._inodes.touch(parent)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        old, new = self._check_change(parent, name), self._check_change(new_parent, new_name)
        async with self._using(parent, new_parent):
            node = await self._named(parent, old)
            over = await self._inodes.lookup(new_parent, new)
            if over is node:
                return
            if over is not None and flags & RENAME_NOREPLACE:
                raise os_error(errno.EEXIST)
            if over is not None and over.is_folder != node.is_folder:
                raise os_error(errno.EISDIR if over.is_folder else errno.ENOTDIR)
            if node.is_folder:
                await self._names.rename_folder(node, new_parent, new, over)
            else:
                # A version that is published meanwhile could get the old name or the new one.
                async with node.lock, over.lock if over is not None else nullcontext():
                    if node.pending is not None:
                        await self.publisher.publish(node)
                    await self._names.rename(node, new_parent, new, over)
            self._inodes.touch(parent)
            self._inodes.touch(new_parent)

    # Files

    async def open(self, inode: int, flags: int, thread: int = 0) -> OpenedFile:
        async with self._using(inode):
            handle = await self._open(self._inodes.by_inode[inode], flags, thread)
        return await self._register(handle)

    async def _open(self, node: CheckpointInode, flags: int, thread: int) -> _Handle:
        empties = bool(flags & os.O_TRUNC)
        if flags & os.O_ACCMODE != os.O_RDONLY or empties:
            self._check_writable()
            handle = _Handle(node, OpenWriters(thread, self._scan_limit))
        else:
            handle = _Handle(node)
            if node.pending is None and node.opened.is_recordable:
                node.opened.record(self._reads.opened(self._inodes.path(node)))
        self._check_mode(node, flags)
        async with node.lock:
            if empties:
                await self.publisher.begin(node, is_empty=True)
            elif node.pending is not None:
                if node.pending.is_lost:
                    assert node.pending.failed is not None
                    # A killed writer's: the kernel looks again for what has the name now.
                    raise node.pending.failed.again() if node.has_name else os_error(errno.ESTALE)
            elif handle.open_writers is not None:
                await self._reader.load(node)  # raises if it is gone
            else:
                try:
                    await self._reader.open(node)
                except (Conflict, NotFound):
                    # Another node has replaced it: the kernel looks it up again, and must see that.
                    self._inodes.invalidate(node.parent)
                    raise
            node.opened.add_handle(handle.open_writers)
        return handle

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, thread: int = 0
    ) -> tuple[Attributes, OpenedFile]:
        text = self._check_change(parent, name)
        async with self._using(parent):
            node = await self._inodes.lookup(parent, text)
            if node is None:
                self._check_mode(self._inodes.by_inode[parent], os.O_WRONLY)
                node = self.publisher.create(parent, text, mode & 0o1777)
                # Even if it is opened only to read, the new file is published at the close.
                open_writers = OpenWriters(thread, self._scan_limit)
                node.opened.add_handle(open_writers)
                handle = _Handle(node, open_writers)
            else:
                if flags & os.O_EXCL:
                    raise os_error(errno.EEXIST)
                if node.is_folder:
                    raise os_error(errno.EISDIR)
                with self._inodes.locks.holding(node.inode):
                    handle = await self._open(node, flags, thread)
        opened = await self._register(handle)
        return self._attributes(node), opened

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | memoryview:
        opened = self._handles[handle]
        node = opened.node
        if node.pending is not None:
            async with self._using(node.inode), node.lock:
                if node.pending is not None:
                    return await node.pending.draft.read(offset, size_bytes)
        return await self._reader.read(node, offset, size_bytes)

    async def write(self, handle: int, offset: int, data: bytes) -> int:
        opened = self._handles[handle]
        node = opened.node
        async with self._using(node.inode), node.lock:
            pending = await self.publisher.begin(node)
            if opened.open_writers is not None:
                opened.open_writers.closing = None
            # The offset counts for O_APPEND, too: the kernel knows the end, and writes mapped pages
            # back through any descriptor.
            await pending.write(offset, data)
        return len(data)

    async def flush(self, handle: int) -> None:
        opened = self._handles[handle]
        if opened.open_writers is not None:
            await self.publisher.flush(opened.node, opened.open_writers)

    async def sync(self, handle: int) -> None:
        """See `WritableView.sync`: written content survives, if the file is closed later."""
        node = self._handles[handle].node
        async with self._using(node.inode), node.lock:
            if node.pending is not None:
                await node.pending.draft.flush()

    async def close(self, handle: int) -> None:
        opened = self._handles.pop(handle)
        await self.publisher.release(opened.node, opened.open_writers)

    async def truncate(self, inode: int, handle: int | None, size_bytes: int) -> Attributes:
        self._check_writable()
        node = self._inodes.by_inode[inode]
        if handle is None:
            self._check_mode(node, os.O_WRONLY)
        async with node.opened.pushes.truncating(), self._using(inode), node.lock:
            writers = node.opened.writers
            if not node.has_name and not writers:
                # It would be published under a name that may be another file's.
                raise os_error(errno.ESTALE)
            pending = await self.publisher.begin(node, is_empty=size_bytes == 0)
            try:
                await pending.truncate(size_bytes)
                if not writers:
                    await self.publisher.publish(node)
            except BootseerError:
                if not writers and node.entry is not None:
                    await self.publisher.abandon(node)
                raise
        return self._attributes(node)

    async def change(
        self,
        inode: int,
        mode: int | None = None,
        mtime_ns: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> Attributes:
        """See `WritableView.change`; owners cannot be changed."""
        self._check_writable()
        node = self._inodes.by_inode[inode]
        now = self._attributes(node)
        if uid not in (None, now.uid) or gid not in (None, now.gid):
            raise os_error(errno.EPERM)
        async with self._using(inode), node.lock:
            if node.pending is not None:
                node.pending.set_attributes(None if mode is None else mode & 0o1777, mtime_ns)
            elif node.entry is not None and node.has_name and inode != ROOT_INODE:
                entry = await self._reader.load(node)
                if mode is not None:
                    await self._namespace.set_mode(entry, mode & 0o1777)
                if mtime_ns is not None:
                    found = await self._namespace.set_mtime(entry, mtime_ns)
                    node.changed_ns = 0
                    # The store calls it another version: readers have to open that.
                    await node.opened.end_version()
                else:
                    found = await self._tree.stat(entry.name)
                self._inodes.update(node, found)
                self._inodes.touch(node.parent)
        return self._attributes(node)

    async def space(self) -> FilesystemSpace:
        with suppress(BootseerError):
            found = await self._tree.store.space()
            if found.total_bytes is not None and found.free_bytes is not None:
                return FilesystemSpace(found.total_bytes, found.free_bytes)
        return FilesystemSpace(_NO_SPACE_KNOWN, _NO_SPACE_KNOWN)

    async def extended(self, inode: int, name: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        node = self._inodes.by_inode[inode]
        if name not in node.extended_names():  # of others, a listing asks for each entry
            raise os_error(errno.ENODATA)
        entry = None
        if node.pending is None and node.has_name:  # else it may be published for long
            async with self._using(inode), node.lock:
                if node.pending is None and node.has_name:
                    entry = await self._reader.usable(node)
        found = node.extended(entry).get(name)
        if found is None:
            raise os_error(errno.ENODATA)
        return found

    async def extended_names(self, inode: int) -> Sequence[bytes]:
        await trio.lowlevel.checkpoint()
        return self._inodes.by_inode[inode].extended_names()

    async def _named(self, parent: int, name: str) -> CheckpointInode:
        node = await self._inodes.lookup(parent, name)
        if node is None:
            raise os_error(errno.ENOENT)
        return node

    def _check_change(self, parent: int, name: bytes) -> str:
        """Return a name as text, after checking that it may be changed."""
        self._check_writable()
        if not self._inodes.by_inode[parent].has_name:
            raise os_error(errno.ENOENT)
        text = _decode(name)
        if not is_component(text):
            raise os_error(errno.EINVAL)
        return text

    def _check_writable(self) -> None:
        if self._options.read_only:
            raise os_error(errno.EROFS)

    def _check_mode(self, node: CheckpointInode, flags: int) -> None:
        """Refuse an open(2) that the mode forbids the owner; the store checks all others.

        The store checks the owner, too, but for new content it checks only the folder.
        """
        if node.entry is None or node.pending is not None:
            return
        shown = self._attributes(node)
        wanted = {os.O_RDONLY: 4, os.O_WRONLY: 2, os.O_RDWR: 6}[flags & os.O_ACCMODE]
        wanted |= 2 if flags & os.O_TRUNC else 0
        if shown.uid == self._owners.own[0] and wanted & ~(shown.mode >> 6):
            raise os_error(errno.EACCES)

    # Answers

    async def _register(self, handle: _Handle) -> OpenedFile:
        """Give a handle its number, for a writer after waiting for pushes under way."""
        if handle.open_writers is not None:
            await handle.node.opened.pushes.settle()
        number = next(self._numbers)
        self._handles[number] = handle
        return OpenedFile(number, keep_cache=handle.node.pending is None)

    def _attributes(self, node: CheckpointInode) -> Attributes:
        self._inodes.remember(node)
        pending = node.pending
        if node.entry is None:
            if pending is None:
                raise os_error(errno.ESTALE)
            mode = pending.draft.mode
            uid, gid = self._owners.own
        else:
            mode = node.entry.info.mode if pending is None else pending.draft.mode
            uid, gid = self._owners.of(node.entry.info)
        if mode is None:
            mode = _FOLDER_MODE if node.is_folder else _FILE_MODE
        if node.is_folder:
            assert node.entry is not None
            mtime_ns = max(node.entry.info.mtime_ns, node.changed_ns)
            return Attributes(
                node.inode, stat.S_IFDIR | mode, 0, mtime_ns, mtime_ns, uid, gid, links=2
            )
        if pending is not None:
            size_bytes, mtime_ns = pending.draft.size_bytes, pending.mtime_ns
        else:
            assert node.entry is not None
            size_bytes, mtime_ns = node.entry.size_bytes, node.entry.info.mtime_ns
        links = 1 if node.has_name else 0
        return Attributes(
            node.inode, stat.S_IFREG | mode, size_bytes, mtime_ns, mtime_ns, uid, gid, links
        )


def _decode(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise os_error(errno.EILSEQ) from error

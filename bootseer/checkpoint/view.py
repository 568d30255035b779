"""A checkpoint tree as a mount shows it: numbered files, open handles, what the kernel may keep."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace

import trio

from bootseer.checkpoint.fetch import Fetcher, FileFetch, Sink
from bootseer.checkpoint.identity import Owners
from bootseer.checkpoint.nodes import Node, Nodes
from bootseer.checkpoint.reads import Reads
from bootseer.checkpoint.source import PlainSource
from bootseer.checkpoint.tree import CheckpointTree, Entry
from bootseer.checkpoint.write import Draft, Drafts
from bootseer.core.ranges import ByteRange
from bootseer.core.reads import Recording
from bootseer.core.window import Window
from bootseer.errors import BootseerError, Conflict
from bootseer.fuse.view import RENAME_NOREPLACE, ROOT_INODE, Attributes, Kernel, Opened, Space
from bootseer.store.name import is_component
from bootseer.units import MIB

_log = logging.getLogger(__name__)

_PAGE = 4096
_MARK_BYTES = 64 * MIB
"""Of a file that is read ahead, one page in so many bytes is kept back: asking for it tells how far
its readers are, who find everything else in the page cache."""
_FIRST_WINDOW = 8 * MIB
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


@dataclass(frozen=True, slots=True)
class _Handle:
    node: Node
    flags: int
    recording: Recording | None = None

    @property
    def writes(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY


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
        reads: Reads | None = None,
    ) -> None:
        """Show `tree`, and note in `reads` what is read of it."""
        self._tree = tree
        self._fetcher = fetcher
        self._drafts = drafts
        self._owners = owners
        self._options = options or ViewOptions()
        self._reads = reads or Reads(tree.store)
        self.valid_s = self._options.valid_s
        self._kernel: Kernel | None = None
        self._nodes = Nodes(tree, self.valid_s)
        self._handles: dict[int, _Handle] = {}
        self._numbers = itertools.count(1)
        self._closed = trio.Event()

    def attach(self, kernel: Kernel) -> None:
        """See `View.attach`."""
        self._kernel = kernel

    # Names

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """See `View.lookup`."""
        text = _text(name)
        node = self._nodes.by_name.get((parent, text))
        if node is None or node.draft is None:
            entry = await self._nodes.entry(self._nodes.by_inode[parent], text)
            node = self._nodes.by_name.get((parent, text))
            if node is None or node.draft is None:
                if entry is None:
                    self._nodes.unname(parent, text)
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                node = self._nodes.node(parent, text, entry)
        return self._attributes(node)

    async def attributes(self, inode: int) -> Attributes:
        """See `View.attributes`."""
        await trio.lowlevel.checkpoint()
        return self._attributes(self._nodes.by_inode[inode])

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        """See `View.entries`."""
        # One that is published while the store is asked may be in neither answer.
        being_written = self._nodes.being_written(inode)
        listing = await self._nodes.listing(self._nodes.by_inode[inode])
        nodes = {
            name: self._nodes.node(inode, name, entry) for name, entry in listing.entries.items()
        }
        for node in (*being_written, *self._nodes.being_written(inode)):
            if node.has_name and node.parent == inode:
                nodes[node.name] = node
        return [(name.encode(), self._attributes(node)) for name, node in sorted(nodes.items())]

    async def link_target(self, inode: int) -> bytes:
        """See `View.link_target`: there are none."""
        await trio.lowlevel.checkpoint()
        raise _os_error(errno.EINVAL)

    def forget(self, inode: int) -> None:
        """See `View.forget`."""
        self._nodes.forget(inode)

    async def make_folder(self, parent: int, name: bytes, mode: int) -> Attributes:
        """See `WritableView.make_folder`."""
        text = self._changes(parent, name)
        path = self._nodes.path_in(parent, text)
        if await self._nodes.named(parent, text) is not None:
            raise _os_error(errno.EEXIST)
        await self._tree.mkdir(path, mode & 0o1777)
        entry = await self._tree.stat(path)
        self._nodes.touch(parent)
        return self._attributes(self._nodes.node(parent, text, entry))

    async def remove(self, parent: int, name: bytes) -> None:
        """See `WritableView.remove`."""
        text = self._changes(parent, name)
        node = await self._named(parent, text)
        if node.is_folder:
            raise _os_error(errno.EISDIR)
        async with node.lock:
            if node.entry is not None:
                await self._remove_entry(node)
            self._nodes.unname(parent, text)
            self._nodes.touch(parent)
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
        self._nodes.unname(parent, text)
        self._nodes.touch(parent)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """See `WritableView.rename`."""
        old, new = self._changes(parent, name), self._changes(new_parent, new_name)
        node = await self._named(parent, old)
        over = await self._nodes.named(new_parent, new)
        if over is node:
            return
        if over is not None and flags & RENAME_NOREPLACE:
            raise _os_error(errno.EEXIST)
        if over is not None and over.is_folder != node.is_folder:
            raise _os_error(errno.EISDIR if over.is_folder else errno.ENOTDIR)
        if node.is_folder:
            await self._settle(node)
            if over is not None:
                await self._remove_folder(over)
                self._nodes.unname(new_parent, new)
            await self._move(node, new_parent, new, None)
        else:
            # What is being published meanwhile would be under the old name, or over the new one.
            async with node.lock, over.lock if over is not None else nullcontext():
                if node.draft is not None:
                    await self._publish(node)
                await self._move(node, new_parent, new, over)
        self._nodes.touch(parent)
        self._nodes.touch(new_parent)
        for other in self._nodes.by_inode.values():
            if other.fetch is not None and other.has_name:
                other.fetch.source.move(self._nodes.path(other))

    async def _move(self, node: Node, parent: int, name: str, over: Node | None) -> None:
        """Give a file or folder another name, perhaps a file's."""
        assert node.entry is not None
        replaced = kept = None
        if over is not None and over.entry is not None:
            replaced = self._version(over)
            if over.handles and replaced.layout is not None:
                kept, replaced = replaced, Entry(replaced.info)
        entry = replace(node.entry, info=self._nodes.info(node))
        node.entry = await self._tree.rename(
            entry, self._nodes.path_in(parent, name), over=replaced
        )
        if over is not None:
            if kept is not None:
                self._put_aside(over, await self._tree.keep_parts(kept))
            self._nodes.unname(parent, name)
            if over.draft is not None and not over.handles:
                await over.draft.discard()
                over.draft = None
        self._nodes.move(node, parent, name)

    # Files

    async def open(self, inode: int, flags: int) -> Opened:
        """See `View.open`."""
        node = self._nodes.by_inode[inode]
        handle = _Handle(node, flags)
        if handle.writes or flags & os.O_TRUNC:
            self._check_writable()
        elif node.draft is None:
            handle = _Handle(node, flags, self._reads.opened(self._nodes.path(node)))
        if node.failed is not None:
            raise node.failed.again()
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
        node = await self._nodes.named(parent, text)
        if node is not None:
            if flags & os.O_EXCL:
                raise _os_error(errno.EEXIST)
            if node.is_folder:
                raise _os_error(errno.EISDIR)
            opened = await self.open(node.inode, flags & ~(os.O_CREAT | os.O_EXCL))
            return self._attributes(node), opened
        node = self._nodes.new(parent, text, None)
        node.draft = self._drafts.begin(self._nodes.path_in(parent, text), mode & 0o1777)
        node.mtime_ns = time.time_ns()
        node.handles = node.writers = 1
        self._nodes.touch(parent)
        # Opened only to read, it is there all the same.
        handle = _Handle(node, flags if flags & os.O_ACCMODE else flags | os.O_RDWR)
        return self._attributes(node), self._opened(handle)

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """See `View.read`."""
        opened = self._handles[handle]
        node = opened.node
        if opened.recording is not None and node.entry is not None:
            opened.recording.add(offset, min(size_bytes, node.entry.size_bytes - offset))
        if node.failed is not None:
            raise node.failed.again()
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
        node = self._handles[handle].node
        async with node.lock:
            draft = await self._begin(node)
            # Also of one who appends: the kernel knows the end, and writes mapped pages back by
            # any descriptor that there is.
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
                is_used = node.writers if node.has_name else node.handles
                if node.draft is not None and not is_used:
                    await self._end_draft(node)
                if not node.handles:
                    await self._close_unused(node)
        self._closed.set()
        self._closed = trio.Event()

    async def truncate(self, inode: int, handle: int | None, size_bytes: int) -> Attributes:
        """See `WritableView.truncate`."""
        self._check_writable()
        node = self._nodes.by_inode[inode]
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
        node = self._nodes.by_inode[inode]
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
                entry = replace(node.entry, info=self._nodes.info(node))
                if mode is not None:
                    await self._tree.set_mode(entry, mode & 0o1777)
                if mtime_ns is not None:
                    await self._tree.store.set_mtime(entry.name, mtime_ns)
                    node.mtime_ns = 0
                node.entry = await self._tree.stat(entry.name)
                self._nodes.touch(node.parent)
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
        found = self._extended(self._nodes.by_inode[inode]).get(name)
        if found is None:
            raise _os_error(errno.ENODATA)
        return found

    async def extended_names(self, inode: int) -> Sequence[bytes]:
        """See `WritableView.extended_names`."""
        await trio.lowlevel.checkpoint()
        return sorted(self._extended(self._nodes.by_inode[inode]))

    async def settled(self) -> None:
        """Wait until all files that have been written and closed are published."""
        while any(
            n.draft is not None and not n.draft.changed and n.has_name
            for n in self._nodes.by_inode.values()
        ):
            await self._closed.wait()

    async def end(self) -> list[str]:
        """Publish what is complete, give up the rest; returns the names that are lost."""
        lost = []
        for node in list(self._nodes.by_inode.values()):
            if node.draft is None or not node.has_name:
                continue
            async with node.lock:
                if node.writers or node.failed is not None:
                    lost.append(self._nodes.path(node))
                    await node.draft.discard()
                else:
                    await self._end_draft(node)
                    if node.failed is not None:
                        lost.append(self._nodes.path(node))
        return lost

    async def _named(self, parent: int, name: str) -> Node:
        node = await self._nodes.named(parent, name)
        if node is None:
            raise _os_error(errno.ENOENT)
        return node

    def _changes(self, parent: int, name: bytes) -> str:
        """Check that a name may be changed, and return it as the store has it."""
        self._check_writable()
        if not self._nodes.by_inode[parent].has_name:
            raise _os_error(errno.ENOENT)
        text = _text(name)
        if not is_component(text):
            raise _os_error(errno.EINVAL)
        return text

    def _check_writable(self) -> None:
        if self._options.read_only:
            raise _os_error(errno.EROFS)

    async def _remove_folder(self, node: Node) -> None:
        if self._nodes.being_written(node.inode):
            raise _os_error(errno.ENOTEMPTY)
        try:
            await self._tree.remove_folder(self._nodes.path(node))
        except Conflict as error:
            raise _os_error(errno.ENOTEMPTY) from error

    async def _remove_entry(self, node: Node) -> None:
        """Remove a published file; what is open of it is kept until it is closed."""
        assert node.entry is not None
        entry = replace(node.entry, info=self._nodes.info(node))
        if not node.handles:
            await self._tree.remove(entry)
            return
        self._put_aside(node, await self._tree.set_aside(entry))

    def _put_aside(self, node: Node, aside: Entry) -> None:
        """Learn where what is open of a file is kept."""
        node.aside = aside
        if node.fetch is not None:
            node.fetch.source.move(aside.name)
        if node.draft is not None:
            node.draft.move_base(aside.name)

    def _version(self, node: Node) -> Entry:
        """Return what is to be read of a file, where it is by now."""
        if node.has_name and node.entry is not None:
            return replace(node.entry, info=self._nodes.info(node))
        if node.aside is None:
            raise _os_error(errno.ESTALE)
        return node.aside

    # Reading

    async def _open_to_read(self, node: Node) -> None:
        if node.fetch is not None:
            return
        source = self._tree.source(self._version(node))
        if isinstance(source, PlainSource):
            await source.open()
        node.window = Window(source.size_bytes, _FIRST_WINDOW, self._options.window_bytes)
        node.fetch = self._fetcher.open(source, self._sink(node), hold=True)

    def _sink(self, node: Node) -> Sink:
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

    async def _close_unused(self, node: Node) -> None:
        if node.fetch is not None:
            fetch, node.fetch, node.window = node.fetch, None, None
            node.marks.clear()
            await fetch.close()
        if node.aside is not None and not node.has_name:
            aside, node.aside = node.aside, None
            with suppress(BootseerError):
                await self._tree.drop_aside(aside)

    # Writing

    async def _begin(self, node: Node, *, is_empty: bool = False) -> Draft:
        """Return the version that is being written, and begin one if there is none."""
        if node.failed is not None:
            raise node.failed.again()
        if node.draft is not None:
            if is_empty:
                await node.draft.truncate(0)
            return node.draft
        entry = self._version(node)
        base = None if is_empty else self._tree.source(entry)
        node.draft = self._drafts.begin(entry.name, entry.info.mode, base)
        node.mtime_ns = time.time_ns()
        return node.draft

    async def _end_draft(self, node: Node) -> None:
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
            _log.error("%s is lost: %s", self._nodes.path(node), error)
            node.failed = error

    async def _publish(self, node: Node) -> None:
        draft = node.draft
        assert draft is not None
        draft.name = self._nodes.path(node)
        node.entry = await draft.publish()
        node.draft = None
        self._nodes.touch(node.parent)
        if node.fetch is not None:
            fetch, node.fetch, node.window = node.fetch, None, None
            node.marks.clear()
            await fetch.close()

    async def _settle(self, folder: Node) -> None:
        """Publish what is being written in a folder, before it is moved."""
        for node in list(self._nodes.by_inode.values()):
            if node.draft is not None and node.has_name and self._nodes.is_below(node, folder):
                async with node.lock:
                    if node.draft is not None:
                        await self._publish(node)

    # Answers

    def _opened(self, handle: _Handle) -> Opened:
        number = next(self._numbers)
        self._handles[number] = handle
        return Opened(number, keep_cache=handle.node.draft is None)

    def _attributes(self, node: Node) -> Attributes:
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

    def _extended(self, node: Node) -> dict[bytes, bytes]:
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


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise _os_error(errno.EILSEQ) from error


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))

"""How the files of a checkpoint mount are read: ahead, and into the page cache."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace

import trio

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.source import PlainSource
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.inodes import Inode, InodeTable
from bootseer.checkpoint.mount.page_cache import CachedPieces, ReadKind
from bootseer.checkpoint.read.fetcher import Fetcher, FileFetch, Sink
from bootseer.checkpoint.read.readahead_window import ReadaheadWindow
from bootseer.core.access_log import MARK_BYTES
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, Closed, Conflict, NotFound
from bootseer.fuse.view import Kernel
from bootseer.units import MIB

_PAGE = 4096
_FIRST_WINDOW = 8 * MIB


class OpenFiles:
    """What is open of published files.

    Concurrency: the tasks of one trio run; but for `read`, the caller holds the file's lock.

    Attributes:
        kernel: the way back, once there is one.
    """

    def __init__(
        self, nodes: InodeTable, tree: CheckpointTree, fetcher: Fetcher, window_bytes: int
    ) -> None:
        """Read files of `tree`, ahead by `window_bytes` at most."""
        self.kernel: Kernel | None = None
        self._nodes = nodes
        self._tree = tree
        self._retired = RetiredParts(tree)
        self._fetcher = fetcher
        self._window_bytes = window_bytes

    def version(self, node: Inode) -> FileEntry:
        """Return what is to be read of a file, where it is by now.

        Raises:
            OSError: ESTALE, it is gone.
        """
        if node.has_name and node.entry is not None:
            return replace(node.entry, info=self._nodes.info(node))
        if node.aside is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node.aside

    async def open(self, node: Inode) -> None:
        """Find out how a file is to be read, unless it is open already.

        Raises:
            OSError: ESTALE, it is gone.
        """
        if node.fetch is not None:
            return
        source = self._tree.source(self.version(node))
        if isinstance(source, PlainSource):
            await source.open()
        node.window = ReadaheadWindow(source.size_bytes, _FIRST_WINDOW, self._window_bytes)
        if node.cached is None:
            node.cached = CachedPieces(source.piece_bytes, source.size_bytes)
        sunk = node.cached.numbers
        node.fetch = self._fetcher.open(source, self._sink(node), sunk=sunk, hold=True)

    async def read(self, node: Inode, offset: int, size_bytes: int) -> bytes | memoryview:
        """Return bytes of a published file."""
        if node.recording is not None and node.entry is not None:
            node.recording.add(offset, min(size_bytes, node.entry.size_bytes - offset))
        if node.fetch is None:
            async with self._nodes.moves.using(node.inode), node.lock:
                await self.open(node)
        fetch, window, cached = node.fetch, node.window, node.cached
        assert fetch is not None and window is not None and cached is not None
        # What is asked for ends with a mark's page, if that is in it: the next is in the cache.
        last_page = (offset + size_bytes - 1) // _PAGE * _PAGE
        mark = node.marks.pop(last_page, None)
        fetch_bytes = size_bytes if mark is None else max(0, last_page - offset)
        asked = cached.ask(offset, fetch_bytes)
        if asked is ReadKind.DROPPED:
            window.restart(offset)
        if asked is not ReadKind.HOLE:
            ahead = window.read(offset, size_bytes)
            if ahead.size_bytes:
                self._fetcher.nursery.start_soon(self._read_ahead, fetch, ahead)
        try:
            content = await self._fetch(node, fetch, offset, fetch_bytes)
        except Closed:
            if node.fetch is fetch:
                raise
            # Another version was published meanwhile, and that is the file now.
            return await self.read(node, offset, size_bytes)
        if mark is None:
            return content
        in_mark = slice(max(0, offset - last_page), offset + size_bytes - last_page)
        return b"".join([content, mark[in_mark]])

    async def _fetch(
        self, node: Inode, fetch: FileFetch, offset: int, size_bytes: int
    ) -> bytes | memoryview:
        name = fetch.source.name
        try:
            return await fetch.read(offset, size_bytes)
        except (Conflict, NotFound):
            # What is being moved can be under neither name for a moment.
            async with self._nodes.moves.using(node.inode), node.lock:
                if node.fetch is fetch and fetch.source.name == name:
                    raise
        return await fetch.read(offset, size_bytes)

    def put_aside(self, node: Inode, aside: FileEntry | None) -> None:
        """Learn where what is open of a file is kept, if it is."""
        node.aside = aside
        if aside is None:
            return
        if node.fetch is not None:
            node.fetch.source.move(aside.name)
        if node.draft is not None:
            node.draft.move_base(aside.name)

    async def end(self, node: Inode) -> None:
        """Read a version no longer."""
        await self._close(node)
        node.cached = None
        node.marks.clear()

    async def close_unused(self, node: Inode) -> None:
        """Let go of what was kept for those who had it open, of whom there are none any more."""
        await self._close(node)
        if node.aside is not None and not node.has_name:
            aside, node.aside = node.aside, None
            with suppress(BootseerError):
                await self._retired.remove_kept(aside)

    async def _close(self, node: Inode) -> None:
        if node.fetch is not None:
            fetch, node.fetch, node.window = node.fetch, None, None
            await fetch.close()

    def _sink(self, node: Inode) -> Sink:
        async def sink(offset: int, data: bytes) -> None:
            # Pages that somebody may have changed through a mapping would be written over.
            if self.kernel is None or node.writing or node.cuts:
                return
            if node.recording is not None:
                node.recording.push(offset, len(data))
            start = 0
            if offset % MARK_BYTES < len(data) and len(data) > _PAGE:
                start = _PAGE
                node.marks[offset] = data[:_PAGE]
            node.pushes += 1
            try:
                with suppress(OSError):
                    await self.kernel.store(node.inode, offset + start, memoryview(data)[start:])
            finally:
                node.pushes -= 1
                node.pushed.set()
                node.pushed = trio.Event()

        return sink

    async def _read_ahead(self, fetch: FileFetch, ahead: ByteRange) -> None:
        await fetch.source.plan()
        fetch.read_ahead(ahead)

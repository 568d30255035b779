"""Read the published files of a checkpoint mount: ahead, and into the page cache."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.source import PlainSource
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.inodes import CheckpointInode, InodeTable
from bootseer.checkpoint.mount.open_file import ReadState
from bootseer.checkpoint.mount.page_cache import ReadKind
from bootseer.checkpoint.read.fetcher import Fetcher, FileFetch, Sink
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, Closed, Conflict, NotFound
from bootseer.fuse.view import Kernel
from bootseer.posix import os_error
from bootseer.readahead_window import ReadaheadWindow
from bootseer.units import MIB

_FIRST_WINDOW_BYTES = 8 * MIB
_WINDOW_GROWTH = 64


class FileReader:
    """Reads published versions of files.

    Concurrency: the tasks of one trio run; but for `read`, the caller holds the file's lock.

    Attributes:
        kernel: for pushes into the page cache; None before the mount is there.
    """

    def __init__(
        self, inodes: InodeTable, tree: CheckpointTree, fetcher: Fetcher, window_bytes: int
    ) -> None:
        """Read files of `tree`, ahead by `window_bytes` at most."""
        self.kernel: Kernel | None = None
        self._inodes = inodes
        self._tree = tree
        self._retired = RetiredParts(tree)
        self._fetcher = fetcher
        self._window_bytes = window_bytes

    def version(self, node: CheckpointInode) -> FileEntry:
        """Return the entry of a file's published version, with its present name.

        Raises:
            OSError: ESTALE, it is gone.
        """
        if node.has_name and node.entry is not None:
            return replace(node.entry, info=self._inodes.info(node))
        if node.opened.aside is None:
            raise os_error(errno.ESTALE)
        return node.opened.aside

    async def load(self, node: CheckpointInode) -> FileEntry:
        """Return `version` after reading its manifest.

        Raises:
            Conflict: it was replaced.
            OSError: ESTALE, it is gone.
        """
        entry = self.version(node)
        if entry.is_unread:
            try:
                entry = await self._tree.load(entry)
            except (Conflict, NotFound):
                # Another node has replaced it: the kernel looks it up again, and must see that.
                self._inodes.invalidate(node.parent)
                raise
            self._inodes.update(node, entry)
        return entry

    async def usable(self, node: CheckpointInode) -> FileEntry:
        """Return `load` of a file whose content is needed, with a problem if it was truncated."""
        return await self._tree.check(await self.load(node))

    async def open(self, node: CheckpointInode) -> ReadState:
        """Return the state of reading a file, opening it if it is not open.

        Raises:
            OSError: ESTALE, it is gone.
        """
        opened = node.opened
        if opened.reading is not None:
            return opened.reading
        source = self._tree.source(await self.usable(node))
        if isinstance(source, PlainSource):
            await source.open()
        window = ReadaheadWindow(
            source.size_bytes, _FIRST_WINDOW_BYTES, self._window_bytes, _WINDOW_GROWTH
        )
        cached = opened.cached_pieces(source.piece_bytes, source.size_bytes)
        fetch = self._fetcher.open(source, self._sink(node), sunk=cached.numbers, hold=True)
        reading = ReadState(fetch, window, cached)
        opened.start_reading(reading)
        return reading

    async def read(self, node: CheckpointInode, offset: int, size_bytes: int) -> bytes | memoryview:
        opened = node.opened
        if opened.recording is not None and node.entry is not None:
            opened.recording.add(offset, min(size_bytes, node.entry.size_bytes - offset))
        reading = opened.reading
        if reading is None:
            async with self._inodes.locks.using(node.inode), node.lock:
                reading = await self.open(node)
        # A mark is the last page of a request: the kernel has the next one already.
        last_page, mark = opened.pushes.pop_mark(offset, size_bytes)
        fetch_bytes = size_bytes if mark is None else max(0, last_page - offset)
        asked = reading.cached.ask(offset, fetch_bytes)
        if asked is ReadKind.DROPPED:
            reading.window.restart(offset)
        if asked is not ReadKind.HOLE:
            ahead = reading.window.read(offset, size_bytes)
            if ahead.size_bytes:
                self._fetcher.nursery.start_soon(self._read_ahead, reading.fetch, ahead)
        try:
            content = await self._fetch(node, reading, offset, fetch_bytes)
        except Closed:
            if opened.reading is reading:
                raise
            # Another version was published meanwhile: read that.
            return await self.read(node, offset, size_bytes)
        if mark is None:
            return content
        in_mark = slice(max(0, offset - last_page), offset + size_bytes - last_page)
        return b"".join([content, mark[in_mark]])

    async def _fetch(
        self, node: CheckpointInode, reading: ReadState, offset: int, size_bytes: int
    ) -> bytes | memoryview:
        fetch = reading.fetch
        name = fetch.source.name
        try:
            return await fetch.read(offset, size_bytes)
        except (Conflict, NotFound):
            # A file that is being renamed can be under neither name for a moment.
            async with self._inodes.locks.using(node.inode), node.lock:
                if node.opened.reading is reading and fetch.source.name == name:
                    raise
        return await fetch.read(offset, size_bytes)

    async def close_unused(self, node: CheckpointInode) -> None:
        """Close a file that has no handles any more, and remove the version kept for them."""
        await node.opened.stop_reading()
        if not node.has_name and (aside := node.opened.take_aside()) is not None:
            with suppress(BootseerError):
                await self._retired.remove_kept(aside)

    def _sink(self, node: CheckpointInode) -> Sink:
        opened = node.opened

        async def sink(offset: int, data: bytes) -> None:
            # A push would overwrite pages that a writer may have changed through a mapping.
            if self.kernel is None or opened.writers or opened.pushes.is_truncating:
                return
            if opened.recording is not None:
                opened.recording.push(offset, len(data))
            await opened.pushes.push(self.kernel, node.inode, offset, data)

        return sink

    async def _read_ahead(self, fetch: FileFetch, ahead: ByteRange) -> None:
        await fetch.source.plan()
        fetch.read_ahead(ahead)

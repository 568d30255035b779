"""Export files and trees from a store to this machine.

entries ─► fetcher ─► resumable file, piece by piece ─► times and modes of files, then of folders

Files that are there already are skipped, so that a repeated call resumes an interrupted one.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from bootseer.checkpoint.admin.compare import (
    THIS_MACHINE,
    has_content,
    is_same_time,
    open_local,
    same_content,
)
from bootseer.checkpoint.admin.progress import (
    LINK,
    BatchProgress,
    Failure,
    LeftOut,
    for_each,
    limits_for,
    walk,
)
from bootseer.checkpoint.admin.resumable_file import EXPORT_PREFIX, ResumableFile, remove_leftovers
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, ConfigError, Conflict
from bootseer.parallel import background
from bootseer.store.api.base import Unlisted
from bootseer.store.local.errors import translated


async def export_files(
    tree: CheckpointTree, name: str, target: str, progress: BatchProgress, *, checksum: bool = False
) -> None:
    """Export a file, or all of a folder, of a tree.

    Args:
        tree: to export from.
        name: of the file or folder.
        target: local path of the file or folder.
        progress: counts bytes and files, and collects failures.
        checksum: compare the content of existing files, not their times alone.

    Raises:
        NotFound: there is no such file or folder.
        BootseerError: the rest would fail, too; complete files stay.

    Cancellation: incomplete files keep their temporary names; a later export resumes large ones.
    """
    unlisted: list[Unlisted] = []
    entries = await walk(tree, name, unlisted)
    progress.left_out += [LeftOut(one.name, LINK) for one in unlisted if not one.problem]
    progress.failures += [
        Failure(one.name, ConfigError(one.problem)) for one in unlisted if one.problem
    ]
    files = [entry for entry in entries if not entry.is_folder]
    folders = [entry for entry in entries if entry.is_folder]
    progress.total_files = len(files)
    progress.total_bytes = sum(entry.size_bytes for entry in files)

    def path_of(entry: FileEntry) -> str:
        below = entry.name[len(name) :].lstrip("/")
        return os.path.join(target, below) if below else target

    with translated("write", target, THIS_MACHINE):
        is_new = not os.path.lexists(target)
        for folder in folders:
            os.makedirs(path_of(folder), exist_ok=True)
        if not folders:
            os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    async with background() as nursery:
        work = _Export(tree, Fetcher(nursery, limits_for(files)), checksum, progress)
        await for_each(
            files,
            lambda entry: work.export_file(entry, path_of(entry)),
            lambda entry: entry.name,
            progress,
        )
    with translated("write", target, THIS_MACHINE):
        # After failures, folders stay writable for the next export.
        for folder in reversed(folders if not progress.failures else []):
            # An existing top folder keeps its mode and time.
            is_ours = is_new or folder.name != name
            if folder.name and is_ours and tree.store.capabilities.attributes:
                if folder.info.mode is not None:
                    os.chmod(path_of(folder), folder.info.mode)
                os.utime(path_of(folder), ns=(folder.info.mtime_ns, folder.info.mtime_ns))


@dataclass(eq=False)
class _Export:
    """Exports one file after another, from the same tree."""

    tree: CheckpointTree
    fetcher: Fetcher
    checksum: bool
    progress: BatchProgress

    async def export_file(self, entry: FileEntry, path: str) -> None:
        """Export a file, unless it is there already."""
        if os.path.basename(path).startswith(EXPORT_PREFIX):
            raise ConfigError(
                f"{entry.name!r} has a name that exports in the making have; give it another first"
            )
        source = self.tree.source(entry)
        if await self._has(entry, path):
            with suppress(OSError):  # the folder may be read-only
                await trio.to_thread.run_sync(remove_leftovers, path)
            self.progress.skip(entry.size_bytes)
            return
        version = {
            "url": self.tree.store.url,
            "name": entry.name,
            "size_bytes": entry.size_bytes,
            "mtime_ns": entry.info.mtime_ns,
            "version": entry.info.version,
            "digest": entry.layout.digest if entry.layout else "",
        }
        make = partial(ResumableFile, path, entry.size_bytes, source.piece_bytes, version)
        file = await trio.to_thread.run_sync(make)
        try:
            await self._download(entry, file)
        finally:
            # Keep the pieces that have come, even if cancelled.
            with trio.CancelScope(shield=True):
                with suppress(BootseerError):
                    await trio.to_thread.run_sync(file.sync)
                file.close()
        self.progress.done_files += 1

    async def _has(self, entry: FileEntry, path: str) -> bool:
        with translated("read", path, THIS_MACHINE):
            try:
                status = await trio.to_thread.run_sync(os.lstat, path)
            except FileNotFoundError:
                return False
            if stat.S_ISDIR(status.st_mode):
                raise Conflict(f"{path} is a folder")
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size_bytes:
                return False
            if not self.checksum:
                return is_same_time(status.st_mtime_ns, entry.info.mtime_ns)
            fd = await trio.to_thread.run_sync(open_local, path)
            try:
                if entry.layout is not None:
                    return await has_content(fd, entry.layout)
                return await same_content(self.fetcher, self.tree, entry, fd)
            finally:
                os.close(fd)

    async def _download(self, entry: FileEntry, file: ResumableFile) -> None:
        """Fetch the missing pieces, and publish the file."""
        syncing = trio.Lock()

        async def write(offset: int, data: bytes) -> None:
            await trio.to_thread.run_sync(file.put, offset, data)
            self.progress.move(len(data))
            if file.mark_written(offset):
                async with syncing:
                    await trio.to_thread.run_sync(file.sync)

        source = self.tree.source(entry)
        self.progress.done_bytes += sum(source.piece_range(piece).size_bytes for piece in file.done)
        fetch = self.fetcher.open(source, write, sunk=file.done)
        try:
            await source.plan()
            fetch.read_ahead(ByteRange(0, entry.size_bytes))
            await fetch.drained()
        finally:
            await fetch.close()
        if entry.layout is None and not entry.info.is_version(
            await self.tree.store.stat(entry.name)
        ):
            await trio.to_thread.run_sync(file.discard)
            raise Conflict(f"{entry.name!r} was replaced while it was being read; export it again")
        publish = partial(file.publish, entry.info.mode, entry.info.mtime_ns)
        await trio.to_thread.run_sync(publish)

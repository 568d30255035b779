"""Import files and trees of this machine into a store.

local files ─► drafts (or one object) ─► times and modes of files, then of folders

Files that are there already are skipped, so that a repeated call resumes an interrupted one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from bootseer.checkpoint.admin.compare import (
    THIS_MACHINE,
    has_content,
    is_same_time,
    open_local,
    same_content,
)
from bootseer.checkpoint.admin.describe import find_parts, part_problems
from bootseer.checkpoint.admin.progress import (
    LINK,
    BatchProgress,
    Failure,
    LeftOut,
    for_each,
)
from bootseer.checkpoint.admin.resumable_file import EXPORT_PREFIX
from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.namespace import Namespace
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.source import PLAIN_PIECE_BYTES
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.errors import ConfigError, Conflict, Corrupt, Unavailable
from bootseer.parallel import background
from bootseer.posix import read_fully
from bootseer.store.api.name import check_name
from bootseer.store.local.errors import translated

_PUBLISH_S = 60.0


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How files are imported.

    Attributes:
        plain: write every file as one ordinary object.
        checksum: compare the content of existing ordinary objects, not their times alone; and read
            the parts of existing striped files.
    """

    plain: bool = False
    checksum: bool = False


@dataclass(frozen=True, slots=True)
class _LocalFile:
    """A file or folder of this machine, and the name that it gets in the store."""

    path: str
    name: str
    status: os.stat_result

    @property
    def size_bytes(self) -> int:
        return self.status.st_size


async def import_files(
    source: str,
    tree: CheckpointTree,
    target: str,
    write: WriteOptions,
    options: ImportOptions,
    progress: BatchProgress,
) -> None:
    """Import a local file, or all of a folder.

    Args:
        source: path of the file or folder; links and special files are left out.
        tree: to import into.
        target: name of the file or folder there.
        write: options of striping.
        options: how to treat files that are there already.
        progress: counts bytes and files, and collects failures.

    Raises:
        BootseerError: the rest would fail, too; complete files stay.

    Cancellation: incomplete files are invisible, and their parts are removed.
    """
    with translated("read", source, THIS_MACHINE):
        folders, files = await trio.to_thread.run_sync(_scan, source, target, progress)
    progress.total_files = len(files)
    progress.total_bytes = sum(file.size_bytes for file in files)
    made = [folder for folder in folders if await _make_folder(tree, folder, target)]
    async with background() as nursery:
        work = _Import(tree, nursery, write, options, progress)
        await for_each(files, work.import_file, lambda file: file.path, progress)
    for folder in reversed(made):
        await _copy_attributes(tree, await tree.stat(folder.name), folder.status)


class _Import:
    """Imports one file after another, to the same tree with the same options."""

    def __init__(
        self,
        tree: CheckpointTree,
        nursery: trio.Nursery,
        write: WriteOptions,
        options: ImportOptions,
        progress: BatchProgress,
    ) -> None:
        self._tree = tree
        self._retired = RetiredParts(tree)
        self._options = options
        self._progress = progress
        self._drafts = Drafts(tree, nursery, write)
        self._fetcher = Fetcher(nursery)
        self._write_options = write

    async def import_file(self, file: _LocalFile) -> None:
        """Import a file, unless it is there already."""
        over = await self._tree.find(file.name)
        if over is not None and over.is_folder:
            raise Conflict(f"{file.name!r} in {self._tree.store.url} is a folder")
        with translated("read", file.path, THIS_MACHINE):
            fd = await trio.to_thread.run_sync(open_local, file.path)
            try:
                if over is not None and await self._has(fd, file, over):
                    await _copy_attributes(self._tree, over, file.status)
                    self._progress.skip(file.size_bytes)
                    return
                await self._write(fd, file, over)
            finally:
                os.close(fd)
        self._progress.done_files += 1

    async def _has(self, fd: int, file: _LocalFile, there: FileEntry) -> bool:
        if there.problem is not None or there.size_bytes != file.size_bytes:
            return False
        if there.layout is not None:
            return not self._options.plain and await self._has_striped(fd, there, there.layout)
        if self._options.checksum or not self._tree.store.capabilities.attributes:
            return await same_content(self._fetcher, self._tree, there, fd)
        return is_same_time(there.info.mtime_ns, file.status.st_mtime_ns)

    async def _has_striped(self, fd: int, there: FileEntry, layout: StripeManifest) -> bool:
        """Compare the checksums, and check the parts: the local file may be the last copy."""
        if not await has_content(fd, layout):
            return False
        _, parts = await find_parts(self._tree, there, layout)
        if part_problems(there, layout, parts):
            return False
        if not self._options.checksum:
            return True
        try:
            return await same_content(self._fetcher, self._tree, there, fd)
        except Corrupt:
            return False

    async def _write(self, fd: int, file: _LocalFile, over: FileEntry | None) -> None:
        is_plain = self._options.plain or file.size_bytes <= self._write_options.unit_bytes
        if is_plain and stripe_manifest.is_manifest(os.pread(fd, len(stripe_manifest.MAGIC), 0)):
            raise ConfigError(
                f"{file.path} is the manifest of a striped file and not its content; get that with "
                "`bootseer ckpt export` and import it"
            )
        if is_plain:
            await self._write_plain(fd, file, over)
        else:
            await self._write_striped(fd, file)
        await _copy_attributes(self._tree, await self._tree.stat(file.name), file.status)

    async def _write_plain(self, fd: int, file: _LocalFile, over: FileEntry | None) -> None:
        await self._tree.marks.remove(over)
        async with self._tree.store.create(
            file.name,
            mode=_file_mode(file.status),
            replication=self._write_options.replication,
            block_bytes=self._write_options.block_bytes,
        ) as writer:
            for offset in range(0, file.size_bytes, PLAIN_PIECE_BYTES):
                data = await _read(fd, file, offset, PLAIN_PIECE_BYTES)
                await writer.write(data)
                self._progress.move(len(data))
            _check_unchanged(fd, file)
            await writer.commit()
        if over is not None and over.layout is not None:
            await self._retired.remove(over)

    async def _write_striped(self, fd: int, file: _LocalFile) -> None:
        draft = self._drafts.begin(file.name, _file_mode(file.status))
        is_published = False
        try:
            for offset in range(0, file.size_bytes, self._write_options.unit_bytes):
                data = await _read(fd, file, offset, self._write_options.unit_bytes)
                await draft.write(offset, data)
                self._progress.move(len(data))
            await draft.flush()
            _check_unchanged(fd, file)
            # Cancelled in the middle of this, it would leave parts that no manifest names.
            with trio.move_on_after(_PUBLISH_S, shield=True):
                await draft.publish()
                is_published = True
            if not is_published:
                raise Unavailable(f"{file.name!r} could not be published in {_PUBLISH_S:.0f} s")
        finally:
            if not is_published:
                await draft.discard()


def _scan(
    source: str, target: str, progress: BatchProgress
) -> tuple[Sequence[_LocalFile], Sequence[_LocalFile]]:
    """Return the folders, from the top down, and the files to import."""
    source = os.path.realpath(source)
    top = _LocalFile(source, target, os.stat(source))
    if not stat.S_ISDIR(top.status.st_mode):
        if not stat.S_ISREG(top.status.st_mode):
            raise Conflict(f"{source} is neither a file nor a folder")
        return [], [top]
    folders, files = [top], []
    for folder in folders:  # which grows meanwhile
        with os.scandir(folder.path) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if entry.name == PARTS_FOLDER:
                    raise ConfigError(
                        f"{entry.path} holds parts of striped files, whose content cannot be read "
                        "by itself: give the folder above as the URL to `bootseer ckpt export`"
                    )
                status = entry.stat(follow_symlinks=False)
                name = f"{folder.name}/{entry.name}" if folder.name else entry.name
                try:
                    check_name(name)
                except ConfigError as error:
                    progress.failures.append(Failure(entry.path, error))
                    continue
                local = _LocalFile(entry.path, name, status)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(local)
                elif entry.name.startswith(EXPORT_PREFIX):
                    progress.left_out.append(
                        LeftOut(entry.path, "an export that was not completed")
                    )
                elif stat.S_ISREG(status.st_mode):
                    files.append(local)
                else:
                    progress.left_out.append(LeftOut(entry.path, LINK))
    return folders, files


async def _make_folder(tree: CheckpointTree, folder: _LocalFile, target: str) -> bool:
    """Make a folder; returns whether it gets mode and time, as all but an existing top one do."""
    if not folder.name or (folder.name == target and await tree.find(target) is not None):
        return False
    await Namespace(tree).mkdir(folder.name, stat.S_IMODE(folder.status.st_mode) & 0o1777 | 0o700)
    return True


async def _read(fd: int, file: _LocalFile, offset: int, limit_bytes: int) -> bytes:
    size_bytes = min(limit_bytes, file.size_bytes - offset)
    data = await trio.to_thread.run_sync(read_fully, fd, offset, size_bytes)
    if len(data) != size_bytes:
        raise _changed(file)
    return data


def _check_unchanged(fd: int, file: _LocalFile) -> None:
    """Raise `Conflict` if the file has changed: its copy may mix two versions."""
    status = os.fstat(fd)
    was = file.status
    if (status.st_ino, status.st_size, status.st_mtime_ns) != (
        was.st_ino,
        was.st_size,
        was.st_mtime_ns,
    ):
        raise _changed(file)


def _changed(file: _LocalFile) -> Conflict:
    return Conflict(f"{file.path} changed while it was being read; import it again")


def _file_mode(status: os.stat_result) -> int:
    return status.st_mode & 0o777


async def _copy_attributes(tree: CheckpointTree, entry: FileEntry, status: os.stat_result) -> None:
    """Set mode and time of an entry to those of a local file or folder."""
    if not tree.store.capabilities.attributes:
        return
    mode = status.st_mode & (0o1777 if entry.is_folder else 0o777)
    if entry.info.mode != mode:
        await Namespace(tree).set_mode(entry, mode)
    if not is_same_time(entry.info.mtime_ns, status.st_mtime_ns):
        with suppress(Unavailable):
            await Namespace(tree).set_mtime(entry, status.st_mtime_ns)

"""Bring files and trees from this machine into a store, and back.

import: local files ─► drafts (or one object) ─► times and modes of files, then of folders
export: entries ─► fetcher ─► landing, piece by piece ─► times and modes of files, then of folders

What is there already is skipped, so that the same call again goes on where another was ended.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from bootseer.checkpoint.admin.compare import has_content, is_same_time, same_content
from bootseer.checkpoint.admin.describe import find_parts, problems_of_parts
from bootseer.checkpoint.admin.progress import (
    LINK,
    Failure,
    LeftOut,
    Progress,
    background,
    each,
    limits_for,
    walk,
)
from bootseer.checkpoint.admin.resumable_file import EXPORT_PREFIX, ResumableFile, leftovers
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
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, ConfigError, Conflict, Corrupt, Unavailable
from bootseer.posix import read_fully
from bootseer.store.api.base import Unlisted
from bootseer.store.api.name import check_name
from bootseer.store.local.errors import translated

_HERE = "this machine"
_PUBLISH_S = 60.0
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How files are brought into a store.

    Attributes:
        plain: every file as one ordinary object.
        checksum: compare the content of ordinary objects that are there, not their times alone;
            and read the parts of striped files.
    """

    plain: bool = False
    checksum: bool = False


@dataclass(frozen=True, slots=True)
class _Local:
    """A file or folder of this machine, and the name that it is to have."""

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
    progress: Progress,
) -> None:
    """Bring a local file, or all of a folder, into a store.

    Args:
        source: path of the file or folder; links and special files are left out.
        tree: where it is to be.
        target: what the file or folder will be called there.
        write: how files are striped.
        options: what else there is to say.
        progress: learns of the progress, and of files that could not be imported.

    Raises:
        BootseerError: nothing more can be done; what is complete stays.

    Cancellation: a file that was being written is not visible, and what was made of it is removed.
    """
    with translated("read", source, _HERE):
        folders, files = await trio.to_thread.run_sync(_survey, source, target, progress)
    progress.total_files = len(files)
    progress.total_bytes = sum(file.size_bytes for file in files)
    made = [folder for folder in folders if await _make_folder(tree, folder, target)]
    async with background() as nursery:
        work = _Import(tree, nursery, write, options, progress)
        await each(files, work.one, lambda file: file.path, progress)
    for folder in reversed(made):
        await _describe(tree, await tree.stat(folder.name), folder.status)


class _Import:
    """What the files of one import have in common."""

    def __init__(
        self,
        tree: CheckpointTree,
        nursery: trio.Nursery,
        write: WriteOptions,
        options: ImportOptions,
        progress: Progress,
    ) -> None:
        self._tree = tree
        self._retired = RetiredParts(tree)
        self._options = options
        self._progress = progress
        self._drafts = Drafts(tree, nursery, write)
        self._fetcher = Fetcher(nursery)
        self._write = write

    async def one(self, file: _Local) -> None:
        """Import a file, unless it is there."""
        over = await self._tree.find(file.name)
        if over is not None and over.is_folder:
            raise Conflict(f"{file.name!r} in {self._tree.store.url} is a folder")
        with translated("read", file.path, _HERE):
            fd = await trio.to_thread.run_sync(os.open, file.path, _OPEN)
            try:
                if over is not None and await self._is_there(fd, file, over):
                    await _describe(self._tree, over, file.status)
                    self._progress.skip(file.size_bytes)
                    return
                await self._bring(fd, file, over)
            finally:
                os.close(fd)
        self._progress.done_files += 1

    async def _is_there(self, fd: int, file: _Local, there: FileEntry) -> bool:
        if there.problem is not None or there.size_bytes != file.size_bytes:
            return False
        if there.layout is not None:
            return not self._options.plain and await self._is_there_striped(fd, there, there.layout)
        if self._options.checksum or not self._tree.store.capabilities.attributes:
            return await same_content(self._fetcher, self._tree, there, fd)
        return is_same_time(there.info.mtime_ns, file.status.st_mtime_ns)

    async def _is_there_striped(self, fd: int, there: FileEntry, layout: StripeManifest) -> bool:
        """Compare the checksums, and see that the parts are there: this may be the last copy."""
        if not await has_content(fd, layout):
            return False
        _, parts = await find_parts(self._tree, there, layout)
        if problems_of_parts(there, layout, parts):
            return False
        if not self._options.checksum:
            return True
        try:
            return await same_content(self._fetcher, self._tree, there, fd)
        except Corrupt:
            return False

    async def _bring(self, fd: int, file: _Local, over: FileEntry | None) -> None:
        is_plain = self._options.plain or file.size_bytes <= self._write.unit_bytes
        if is_plain and stripe_manifest.is_manifest(os.pread(fd, len(stripe_manifest.MAGIC), 0)):
            raise ConfigError(
                f"{file.path} is the manifest of a striped file and not its content; get that with "
                "`bootseer ckpt export` and import it"
            )
        if is_plain:
            await self._bring_plain(fd, file, over)
        else:
            await self._bring_striped(fd, file)
        await _describe(self._tree, await self._tree.stat(file.name), file.status)

    async def _bring_plain(self, fd: int, file: _Local, over: FileEntry | None) -> None:
        async with self._tree.store.create(
            file.name,
            mode=_file_mode(file.status),
            replication=self._write.replication,
            block_bytes=self._write.block_bytes,
        ) as writer:
            for offset in range(0, file.size_bytes, PLAIN_PIECE_BYTES):
                data = await _read(fd, file, offset, PLAIN_PIECE_BYTES)
                await writer.write(data)
                self._progress.move(len(data))
            _check_unchanged(fd, file)
            await writer.commit()
        if over is not None and over.layout is not None:
            await self._retired.remove(over)

    async def _bring_striped(self, fd: int, file: _Local) -> None:
        draft = self._drafts.begin(file.name, _file_mode(file.status))
        is_published = False
        try:
            for offset in range(0, file.size_bytes, self._write.unit_bytes):
                data = await _read(fd, file, offset, self._write.unit_bytes)
                await draft.write(offset, data)
                self._progress.move(len(data))
            await draft.flush()
            _check_unchanged(fd, file)
            # Ended in the midst of this, it would leave parts that no manifest names.
            with trio.move_on_after(_PUBLISH_S, shield=True):
                await draft.publish()
                is_published = True
            if not is_published:
                raise Unavailable(f"{file.name!r} could not be published in {_PUBLISH_S:.0f} s")
        finally:
            if not is_published:
                await draft.discard()


async def export_files(
    tree: CheckpointTree, name: str, target: str, progress: Progress, *, checksum: bool = False
) -> None:
    """Bring a file, or all of a folder, from a store to this machine.

    Args:
        tree: where it is.
        name: of the file or folder.
        target: path of what it will be.
        progress: learns of the progress, and of files that could not be exported.
        checksum: compare the content of files that are there, not their times alone.

    Raises:
        NotFound: there is no such file or folder.
        BootseerError: nothing more can be done; what is complete stays.

    Cancellation: files that were under way have not got their names, and a later export goes on
    with the large ones.
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

    with translated("write", target, _HERE):
        is_new = not os.path.lexists(target)
        for folder in folders:
            os.makedirs(path_of(folder), exist_ok=True)
        if not folders:
            os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    async with background() as nursery:
        work = _Export(tree, Fetcher(nursery, limits_for(files)), checksum, progress)
        await each(
            files, lambda entry: work.one(entry, path_of(entry)), lambda entry: entry.name, progress
        )
    with translated("write", target, _HERE):
        # What has failed is to come with the next export, into folders that may be written.
        for folder in reversed(folders if not progress.failures else []):
            # A folder that is only put into is left as it is.
            is_ours = is_new or folder.name != name
            if folder.name and is_ours and tree.store.capabilities.attributes:
                if folder.info.mode is not None:
                    os.chmod(path_of(folder), folder.info.mode)
                os.utime(path_of(folder), ns=(folder.info.mtime_ns, folder.info.mtime_ns))


class _Export:
    """What the files of one export have in common."""

    def __init__(
        self, tree: CheckpointTree, fetcher: Fetcher, checksum: bool, progress: Progress
    ) -> None:
        self._tree = tree
        self._fetcher = fetcher
        self._checksum = checksum
        self._progress = progress

    async def one(self, entry: FileEntry, path: str) -> None:
        """Export a file, unless it is there."""
        if os.path.basename(path).startswith(EXPORT_PREFIX):
            raise ConfigError(
                f"{entry.name!r} has a name that exports in the making have; give it another first"
            )
        source = self._tree.source(entry)
        if await self._is_there(entry, path):
            with suppress(OSError):  # nothing can be left where nothing can be written
                await trio.to_thread.run_sync(leftovers, path)
            self._progress.skip(entry.size_bytes)
            return
        version = {
            "url": self._tree.store.url,
            "name": entry.name,
            "size_bytes": entry.size_bytes,
            "mtime_ns": entry.info.mtime_ns,
            "version": entry.info.version,
            "digest": entry.layout.digest if entry.layout else "",
        }
        make = partial(ResumableFile, path, entry.size_bytes, source.piece_bytes, version)
        landing = await trio.to_thread.run_sync(make)
        try:
            await self._fill(entry, landing)
        finally:
            # Interrupted or not, what has come so far is worth keeping.
            with trio.CancelScope(shield=True):
                with suppress(BootseerError):
                    await trio.to_thread.run_sync(landing.sync)
                landing.close()
        self._progress.done_files += 1

    async def _is_there(self, entry: FileEntry, path: str) -> bool:
        with translated("read", path, _HERE):
            try:
                status = await trio.to_thread.run_sync(os.lstat, path)
            except FileNotFoundError:
                return False
            if stat.S_ISDIR(status.st_mode):
                raise Conflict(f"{path} is a folder")
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size_bytes:
                return False
            if not self._checksum:
                return is_same_time(status.st_mtime_ns, entry.info.mtime_ns)
            fd = await trio.to_thread.run_sync(os.open, path, _OPEN)
            try:
                if entry.layout is not None:
                    return await has_content(fd, entry.layout)
                return await same_content(self._fetcher, self._tree, entry, fd)
            finally:
                os.close(fd)

    async def _fill(self, entry: FileEntry, landing: ResumableFile) -> None:
        """Fetch what is missing, and give the file its name."""
        syncing = trio.Lock()

        async def land(offset: int, data: bytes) -> None:
            await trio.to_thread.run_sync(landing.put, offset, data)
            self._progress.move(len(data))
            if landing.note(offset):
                async with syncing:
                    await trio.to_thread.run_sync(landing.sync)

        source = self._tree.source(entry)
        self._progress.done_bytes += sum(
            source.piece_range(piece).size_bytes for piece in landing.done
        )
        fetch = self._fetcher.open(source, land, sunk=landing.done)
        try:
            await source.plan()
            fetch.read_ahead(ByteRange(0, entry.size_bytes))
            await fetch.drained()
        finally:
            await fetch.close()
        if entry.layout is None and not entry.info.is_version(
            await self._tree.store.stat(entry.name)
        ):
            await trio.to_thread.run_sync(landing.discard)
            raise Conflict(f"{entry.name!r} was replaced while it was being read; export it again")
        publish = partial(landing.publish, entry.info.mode, entry.info.mtime_ns)
        await trio.to_thread.run_sync(publish)


def _survey(
    source: str, target: str, progress: Progress
) -> tuple[Sequence[_Local], Sequence[_Local]]:
    """List the folders, from the top down, and the files that are to be imported."""
    source = os.path.realpath(source)
    top = _Local(source, target, os.stat(source))
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
                local = _Local(entry.path, name, status)
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


async def _make_folder(tree: CheckpointTree, folder: _Local, target: str) -> bool:
    """Make a folder; returns whether it is to be like the local one, as all but the top one are."""
    if not folder.name or (folder.name == target and await tree.find(target) is not None):
        return False
    await Namespace(tree).mkdir(folder.name, stat.S_IMODE(folder.status.st_mode) & 0o1777 | 0o700)
    return True


async def _read(fd: int, file: _Local, offset: int, limit_bytes: int) -> bytes:
    size_bytes = min(limit_bytes, file.size_bytes - offset)
    data = await trio.to_thread.run_sync(read_fully, fd, offset, size_bytes)
    if len(data) != size_bytes:
        raise _changed(file)
    return data


def _check_unchanged(fd: int, file: _Local) -> None:
    """Refuse to publish what may be half of one version and half of another."""
    status = os.fstat(fd)
    was = file.status
    if (status.st_ino, status.st_size, status.st_mtime_ns) != (
        was.st_ino,
        was.st_size,
        was.st_mtime_ns,
    ):
        raise _changed(file)


def _changed(file: _Local) -> Conflict:
    return Conflict(f"{file.path} changed while it was being read; import it again")


def _file_mode(status: os.stat_result) -> int:
    return status.st_mode & 0o777


async def _describe(tree: CheckpointTree, entry: FileEntry, status: os.stat_result) -> None:
    """Have mode and time of an entry be those of a local file or folder."""
    if not tree.store.capabilities.attributes:
        return
    mode = status.st_mode & (0o1777 if entry.is_folder else 0o777)
    if entry.info.mode != mode:
        await Namespace(tree).set_mode(entry, mode)
    if not is_same_time(entry.info.mtime_ns, status.st_mtime_ns):
        with suppress(Unavailable):
            await tree.store.set_mtime(entry.name, status.st_mtime_ns)

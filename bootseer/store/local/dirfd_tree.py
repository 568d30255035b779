"""A directory tree used through descriptors: no link is followed, nothing is seen half-written.

Everything here is synchronous and raises OSError; `bootseer.store.local.store` runs it in threads
and says what the errors mean. Paths are walked component by component with ``O_NOFOLLOW``, each
opened relative to the one before, so that nobody who exchanges a folder for a link in the middle of
it leads an operation out of the tree.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bootseer._io import ffi, lib
from bootseer.posix import (
    OPEN_FOLDER,
    check_free,
    check_kind,
    move,
    os_error,
    status_at,
    sync_folder,
)
from bootseer.store.api.name import MAX_COMPONENTS, TEMPORARY_PREFIX, temporary_name
from bootseer.store.local.access import ANYBODY, TreeAccess
from bootseer.store.local.reap_temporaries import reap, remove_tree
from bootseer.units import NS_PER_S

# O_NONBLOCK: opening a FIFO returns at once, to be refused, instead of waiting for a writer.
_OPEN_OBJECT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

# The second is what an NFS client makes of an object that was removed while open, until it closes.
_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}|\.nfs[0-9a-f]{{16,}}$")


class TreeFile(NamedTuple):
    """A regular file or a folder, and its `file_version`."""

    status: os.stat_result
    version: str


@dataclass(frozen=True, slots=True)
class TemporaryFile:
    """A file being written, open as `fd`, called `name` in the folder open as `folder`."""

    folder: int
    name: str
    fd: int

    def publish(self, target: str, *, overwrite: bool) -> None:
        """Give the synced file its name in the same folder.

        Raises:
            FileExistsError: the name is taken and may not be overwritten.
            OSError: EISDIR the name is a folder's; ESTALE the file was removed.
        """
        try:
            move(self.name, self.folder, target, self.folder, overwrite=overwrite)
        except FileNotFoundError:
            text = "its temporary file was removed while it was being written; write it again"
            raise OSError(errno.ESTALE, text) from None
        sync_folder(self.folder)

    def discard(self) -> None:
        """Remove the file if it still has its temporary name."""
        with suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.folder)


@dataclass(frozen=True, slots=True)
class DirfdTree:
    """The tree below `root`.

    Attributes:
        root: an absolute path; links that lead to it are followed, as the administrator meant.
        access: who may own and write it.
    """

    root: Path
    access: TreeAccess = ANYBODY

    @contextmanager
    def folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Open a folder for the length of a block, and `make` what is missing on the way.

        Raises:
            FileNotFoundError: it does not exist, or is a file.
            NotADirectoryError: there is a file where a folder is to be made.
            PermissionError: others can write in it, or in one on the way.
            OSError: ELOOP, a component is a symbolic link.
        """
        with self._walk(parts, make) as (fd, _):
            yield fd

    def open_object(self, parts: Sequence[str]) -> tuple[int, TreeFile]:
        """Open a regular file for reading; the descriptor is the caller's.

        Raises:
            OSError: ELOOP a symbolic link, ENXIO any other kind of file, EISDIR a folder.
        """
        with self._walk(parts[:-1]) as (folder, top):
            fd = os.open(parts[-1], _OPEN_OBJECT, dir_fd=folder)
        try:
            status = os.fstat(fd)
            check_kind(status)
            if stat.S_ISDIR(status.st_mode):
                raise os_error(errno.EISDIR)
            self.access.check_file(status, self.root.joinpath(*parts), top)
        except BaseException:
            os.close(fd)
            raise
        return fd, TreeFile(status, file_version(fd))

    def create_temporary(self, folder: int, mode: int | None = None) -> TemporaryFile:
        """Make an empty file with a name of its own, as `create_object` does."""
        name = temporary_name()
        return TemporaryFile(folder, name, self.create_object(folder, name, mode))

    def create_object(self, folder: int, name: str, mode: int | None = None) -> int:
        """Make an empty file, with permissions that are not the tree's if there is a `mode`.

        Its descriptor is the caller's.

        Raises:
            FileExistsError: the name is taken.
        """
        mode = self.access.file_mode if mode is None else mode
        return os.open(name, _OPEN_NEW, mode, dir_fd=folder)

    def rename(self, source: Sequence[str], target: Sequence[str], *, overwrite: bool) -> None:
        """Give a file or a folder another name.

        Raises:
            FileExistsError: the target exists and is not a file to be overwritten by a file.
            OSError: EISDIR, a folder is where a file is to go.
        """
        with self.folder(source[:-1]) as old:
            status = status_at(source[-1], old)
            check_kind(status)
            is_folder = stat.S_ISDIR(status.st_mode)
            if source == target and overwrite:
                return
            with self.folder(target[:-1], make=True) as new:
                # rename(2) puts a folder in the place of an empty one, which is all that somebody
                # who makes one after this check can lose.
                if is_folder or source == target:
                    check_free(target[-1], new)
                move(source[-1], old, target[-1], new, overwrite=overwrite or is_folder)
                sync_folder(new)
                sync_folder(old)

    def delete(self, parts: Sequence[str]) -> None:
        """Remove an empty folder, or a file of whatever kind: a link, not what it leads to."""
        with self.folder(parts[:-1]) as folder:
            if stat.S_ISDIR(status_at(parts[-1], folder).st_mode):
                os.rmdir(parts[-1], dir_fd=folder)
            else:
                os.unlink(parts[-1], dir_fd=folder)

    def delete_tree(self, parts: Sequence[str]) -> None:
        """Remove a file of whatever kind, or a folder with all that is below.

        Raises:
            OSError: ENOTEMPTY, somebody puts something into it meanwhile.
        """
        with self.folder(parts[:-1]) as folder:
            status_at(parts[-1], folder)
            remove_tree(folder, parts[-1])

    def make_folder(self, parts: Sequence[str], mode: int | None) -> None:
        """Make a folder where there is none, with a mode of its own if one is given."""
        if mode is not None:
            with self.folder(parts[:-1], make=True) as above, suppress(FileExistsError):
                os.mkdir(parts[-1], 0o700, dir_fd=above)
                made = os.open(parts[-1], OPEN_FOLDER, dir_fd=above)
                try:
                    os.fchmod(made, mode)
                finally:
                    os.close(made)
                sync_folder(above)
        with self.folder(parts, make=True):
            pass

    def set_mode(self, parts: Sequence[str], mode: int) -> None:
        """Change the mode of a regular file or a folder."""
        with self._handle(parts) as path:
            os.chmod(path, mode)

    def set_mtime(self, parts: Sequence[str], mtime_ns: int) -> None:
        """Change when a regular file or a folder was last changed."""
        with self._handle(parts) as path:
            os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ns))

    def space(self) -> os.statvfs_result:
        with self.folder(()) as root:
            return os.fstatvfs(root)

    def stat(self, parts: Sequence[str]) -> TreeFile:
        """Describe a regular file or a folder.

        Raises:
            OSError: ELOOP a symbolic link, ENXIO any other kind of file.
        """
        with self.folder(parts[:-1]) as folder:
            status = status_at(parts[-1], folder)
            version = file_version(folder, parts[-1])
        check_kind(status)
        return TreeFile(status, version)

    def entries(self, parts: Sequence[str]) -> Iterator[tuple[str, TreeFile | None]]:
        """Describe what is in a folder, in no order; None is said of what is no file or folder.

        Temporaries and what vanishes meanwhile are left out.
        """
        with self.folder(parts) as folder, os.scandir(folder) as found:
            for entry in found:
                if _TEMPORARY.match(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                    yield entry.name, TreeFile(status, file_version(folder, entry.name))
                else:
                    yield entry.name, None

    def reap(self, parts: Sequence[str], older_than_s: float) -> int:
        """Remove temporaries anywhere below a folder that were last written `older_than_s` ago."""
        written_before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
        with suppress(FileNotFoundError), self.folder(parts) as folder:
            return reap(folder, written_before_ns, MAX_COMPONENTS - len(parts))
        return 0

    @contextmanager
    def _walk(
        self, parts: Sequence[str], make: bool = False
    ) -> Iterator[tuple[int, os.stat_result]]:
        """Open a folder as `folder` does, and describe the tree's top folder."""
        fd = self._open_root(make)
        try:
            path, top = self.root, os.fstat(fd)
            self.access.check_above(fd, self.root)
            self.access.check_folder(top, path, top)
            for part in parts:
                fd, above = self._enter(fd, part, make), fd
                os.close(above)
                path /= part
                self.access.check_folder(os.fstat(fd), path, top)
            yield fd, top
        finally:
            os.close(fd)

    @contextmanager
    def _handle(self, parts: Sequence[str]) -> Iterator[str]:
        """Lend a path of a file or folder that is good whatever becomes of its name.

        A descriptor that was opened without any right to the content will do for it; system calls
        that take such a descriptor itself are not in Python.

        Raises:
            OSError: ELOOP a symbolic link, ENXIO any other kind of file.
        """
        with self.folder(parts[:-1]) as folder:
            fd = os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
        try:
            check_kind(os.fstat(fd))
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)

    def _open_root(self, make: bool) -> int:
        try:
            return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
        self._make_root()
        return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)

    def _make_root(self) -> None:
        self.access.check_may_make(self.root)
        missing = [path for path in [self.root, *self.root.parents] if not path.exists()]
        for path in reversed(missing):
            with suppress(FileExistsError):
                path.mkdir(self.access.folder_mode)
            # A folder that may be written in and not read cannot be synced.
            with suppress(PermissionError):
                parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    sync_folder(parent)
                finally:
                    os.close(parent)

    def _enter(self, fd: int, part: str, make: bool) -> int:
        try:
            return os.open(part, OPEN_FOLDER, dir_fd=fd)
        except FileNotFoundError:
            if not make:
                raise
        except NotADirectoryError:
            if stat.S_ISLNK(status_at(part, fd).st_mode):
                raise os_error(errno.ELOOP) from None
            if make:
                raise
            raise os_error(errno.ENOENT) from None
        is_mine = False
        with suppress(FileExistsError):
            os.mkdir(part, self.access.folder_mode, dir_fd=fd)
            is_mine = True
        # Who made it meanwhile, on another node perhaps, may not have come that far.
        sync_folder(fd)
        made = os.open(part, OPEN_FOLDER, dir_fd=fd)
        if is_mine:
            try:
                self.access.widen(made, fd)
            except BaseException:
                os.close(made)
                raise
        return made


def file_version(folder: int, name: str = "") -> str:
    """Return what no other file has that is, or ever was, on the same file system.

    Args:
        folder: a descriptor of the folder in which the file is, or of the file itself.
        name: of the file in the folder; no link is followed.

    Returns:
        Its handle, which has the inode's generation beside its number; "" where there are none.
    """
    handle = ffi.new("uint8_t[]", lib.BS_HANDLE_BYTES)
    length = lib.bs_file_handle(folder, os.fsencode(name), handle)
    return bytes(ffi.buffer(handle, max(0, length))).hex()

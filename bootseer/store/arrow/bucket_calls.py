"""A bucket, container or folder in one, by calls of pyarrow that block."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bootseer.errors import Conflict, NotFound
from bootseer.store.api.base import ObjectInfo
from bootseer.store.arrow import filesystem as arrowfs
from bootseer.store.arrow.aws_profile import AwsOptions
from bootseer.units import NS_PER_S

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem


class Bucket:
    """Where the objects of a store are; connected at the first use.

    All methods are for threads: they block, and raise pyarrow's errors beside those they name.

    Concurrency: any number of threads.

    Attributes:
        url: without secrets, for messages.
    """

    def __init__(self, url: str, aws: AwsOptions | None) -> None:
        """Take what `bootseer.store.arrow.filesystem.connect` does; nothing is asked yet."""
        self.url = arrowfs.redacted(url)
        self._whole_url = url
        self._aws = aws
        self._lock = threading.Lock()
        self._connection: tuple[FileSystem, str] | None = None

    def filesystem(self) -> FileSystem:
        return self._connect()[0]

    def path(self, parts: Sequence[str]) -> str:
        """Return the path in that file system of an object or a folder."""
        return "/".join((self._connect()[1].strip("/"), *parts))

    def find(self, parts: Sequence[str]) -> FileInfo:
        """Describe an object or a folder.

        Raises:
            NotFound: there is neither.
        """
        info = self.filesystem().get_file_info(self.path(parts))
        if not info.is_file and not is_folder(info):
            raise NotFound(f"there is no {'/'.join(parts)!r} in {self.url}")
        return info

    def list(self, parts: Sequence[str], *, recursive: bool = False) -> Sequence[FileInfo]:
        """Describe what is in a folder, or with `recursive` all that is below it."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(self.path(parts), allow_not_found=True, recursive=recursive)
        found: Sequence[FileInfo] = self.filesystem().get_file_info(selector)
        return found

    def open(self, parts: Sequence[str]) -> NativeFile:
        return self.filesystem().open_input_file(self.path(parts))

    def check_free(self, parts: Sequence[str], *, overwrite: bool) -> None:
        """Check that an object can be put under a name.

        Raises:
            Conflict: a folder has it, or an object that may not be overwritten.
        """
        info = self.filesystem().get_file_info(self.path(parts))
        if is_folder(info) or (info.is_file and not overwrite):
            raise Conflict(f"{'/'.join(parts)!r} in {self.url} exists already")

    def make_folder(self, parts: Sequence[str]) -> None:
        """Mark a folder and those above it.

        Raises:
            Conflict: an object is in the way.
        """
        if not parts:
            return
        names = [parts[:depth] for depth in range(1, len(parts) + 1)]
        found = self.filesystem().get_file_info([self.path(name) for name in names])
        for name, info in zip(names, found, strict=True):
            if info.is_file:
                raise Conflict(f"{'/'.join(name)!r} in {self.url} is an object, not a folder")
        if not is_folder(found[-1]):
            self.filesystem().create_dir(self.path(parts))

    def move(self, old: Sequence[str], new: Sequence[str], *, overwrite: bool) -> None:
        """Copy an object, or a folder with all that is below, and delete what was copied.

        Raises:
            NotFound: there is no such object or folder.
            Conflict: the target exists. With `overwrite`, an object does replace an object.
        """
        info = self.find(old)
        if old == new and overwrite:
            return
        self.check_free(new, overwrite=overwrite and info.is_file)
        self.make_folder(new[:-1])
        filesystem = self.filesystem()
        if info.is_file:
            filesystem.copy_file(self.path(old), self.path(new))
            filesystem.delete_file(self.path(old))
        else:
            self._copy_folder(old, new)
            filesystem.delete_dir(self.path(old))

    def _copy_folder(self, old: Sequence[str], new: Sequence[str]) -> None:
        filesystem = self.filesystem()
        filesystem.create_dir(self.path(new))
        for info in self.list(old, recursive=True):
            target = self.path(new) + info.path.removeprefix(self.path(old))
            if info.is_file:
                filesystem.copy_file(info.path, target)
            else:
                filesystem.create_dir(target)

    def _connect(self) -> tuple[FileSystem, str]:
        with self._lock:
            if self._connection is None:
                self._connection = arrowfs.connect(self._whole_url, self._aws)
            return self._connection


def is_folder(info: FileInfo) -> bool:
    """Tell whether it is a folder."""
    from pyarrow.fs import FileType

    return bool(info.type == FileType.Directory)


def describe(name: str, info: FileInfo) -> ObjectInfo:
    """Describe an object or a folder as a store does."""
    return ObjectInfo(name, info.size or 0, mtime_ns(info), is_folder(info))


def mtime_ns(info: FileInfo) -> int:
    """Return a time to the second: some servers list more of it than they tell of an object."""
    found_ns: int | None = info.mtime_ns
    return (found_ns or 0) // NS_PER_S * NS_PER_S

"""Tell what a file or folder from a container tool is, and open the files in it.

All is found by content, never by suffix, and nothing is unpacked: a blob is a range of a file. What
is in there may come from anyone: names in archives are looked up and never opened as paths, and in
a folder no link is followed.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Protocol

from bootseer import tar
from bootseer.errors import BootseerError, Corrupt, Denied, NotFound, Unavailable
from bootseer.image.identity import is_sif
from bootseer.image.oci.blob import Blob
from bootseer.posix import read_fully
from bootseer.squashfs.superblock import SUPERBLOCK_BYTES, find_tables
from bootseer.store.local.dirfd_tree import DirfdTree

MAX_MEMBERS = 100_000
"""Of an archive of blobs; an old one of Docker has four for each layer."""

_MAX_LINKS = 8
_COMPRESSED = {
    b"\x1f\x8b": "gzip -d",
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"\xfd7zXZ\x00": "xz -d",
    b"BZh": "bzip2 -d",
}


class ArchiveKind(Enum):
    """What an image can be stored as."""

    SQUASHFS = "squashfs image"
    DOCKER_ARCHIVE = "Docker archive"
    OCI_LAYOUT = "OCI layout"
    OCI_ARCHIVE = "OCI archive"


class LayoutFiles(Protocol):
    """The files of a layout, by their names in it."""

    def open(self, name: str) -> Blob:
        """Open a file; the descriptor is the files' own, and good as long as they are.

        Raises:
            Corrupt: there is no such file.
        """


def kind_of(path: Path) -> ArchiveKind:
    """Say what a file or folder holds.

    Raises:
        NotFound, Denied: it cannot be opened.
        Unavailable: it is none of what is understood; the message says what to do.
        Corrupt: it says it is, and is damaged.
    """
    with opened(path) as (kind, _):
        return kind


@contextmanager
def opened(path: Path) -> Iterator[tuple[ArchiveKind, LayoutFiles | None]]:
    """Open a file or folder for the length of a block; None: it is one file, as it is.

    Raises:
        NotFound, Denied, Unavailable, Corrupt: see `kind_of`.
    """
    with ExitStack() as stack:
        try:
            # Not blocking: a FIFO must not hold anyone up.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            stack.callback(os.close, fd)
            info = os.fstat(fd)
            is_folder = stat.S_ISDIR(info.st_mode)
            if not is_folder and not stat.S_ISREG(info.st_mode):
                raise Unavailable(f"{path} is neither a file nor a folder")
            head = b"" if is_folder else read_fully(fd, 0, tar.BLOCK_BYTES)
        except (OSError, ValueError) as error:
            raise _translate(str(path), error) from error
        if is_folder:
            yield ArchiveKind.OCI_LAYOUT, _Folder(path, stack)
            return
        blob = Blob(str(path), fd, 0, info.st_size)
        try:
            tables = find_tables(head[:SUPERBLOCK_BYTES], info.st_size)
        except Corrupt as error:
            raise Corrupt(f"{path}: {error}; copy it again") from error
        if tables is not None:
            yield ArchiveKind.SQUASHFS, None
            return
        _refuse_others(path, head)
        archive = _Archive(blob)
        if archive.has("oci-layout") and archive.has("index.json"):
            yield (
                ArchiveKind.OCI_ARCHIVE,
                archive,
            )  # Docker's newer ones are both: here all has digests
        elif archive.has("manifest.json"):
            yield ArchiveKind.DOCKER_ARCHIVE, archive
        else:
            raise Unavailable(
                f"{path} is a tar archive without an image: there is neither a manifest.json nor "
                "an oci-layout in it; write one with `docker save` or `skopeo copy`"
            )


def _refuse_others(path: Path, head: bytes) -> None:
    for magic, command in _COMPRESSED.items():
        if head.startswith(magic):
            raise Unavailable(f"{path} is compressed as a whole; decompress it with `{command}`")
    if is_sif(head):
        raise Unavailable(
            f"{path} is an image of Apptainer; get its squashfs with `apptainer sif list` and "
            "`apptainer sif dump`, or export the image it was made from"
        )
    if head[257:262] != b"ustar":
        raise Unavailable(
            f"{path} is no image: neither a squashfs nor an archive of `docker save`, `podman save`"
            " or `skopeo copy`, nor the folder of an OCI layout"
        )


class _Folder:
    """The files of a layout that is a folder; no link in it is followed."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self._tree = DirfdTree(path.absolute())
        try:
            self._tree.stat(("oci-layout",))
            self._tree.stat(("index.json",))
        except OSError as error:
            raise Unavailable(
                f"{path} is no image: an OCI layout has an oci-layout and an index.json in it"
            ) from error

    def open(self, name: str) -> Blob:
        what = f"{self._path}/{name}"
        try:
            fd, file = self._tree.open_object(name.split("/"))
        except FileNotFoundError as error:
            raise Corrupt(f"{what} is missing; fetch the image again") from error
        except OSError as error:
            raise _translate(what, error) from error
        self._stack.callback(os.close, fd)
        return Blob(what, fd, 0, file.status.st_size)


class _Archive:
    """The files of a layout in a tar archive that is not compressed."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._files: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        for count, member in enumerate(tar.TarReader(blob.stream(), blob.name)):
            if count == MAX_MEMBERS:
                raise Corrupt(f"{blob.name}: more than {MAX_MEMBERS} files are no image")
            name = posixpath.normpath(member.name).lstrip("/")
            self._files.pop(name, None)
            self._links.pop(name, None)
            if member.kind == tar.FILE and member.extents is None:
                self._files[name] = (member.offset, member.stored_bytes)
            elif member.kind == tar.SYMLINK:  # Docker's, of one layer that is in several images
                self._links[name] = posixpath.join(posixpath.dirname(name), member.link)
            elif member.kind == tar.HARD_LINK:
                self._links[name] = member.link

    def has(self, name: str) -> bool:
        return name in self._files

    def open(self, name: str) -> Blob:
        found = posixpath.normpath(name)
        for _ in range(_MAX_LINKS):
            if found not in self._links:
                break
            found = posixpath.normpath(self._links[found]).lstrip("/")
        what = f"{self._blob.name}: {name}"
        if found not in self._files:
            raise Corrupt(f"{what} is missing; save the image again")
        offset, size = self._files[found]
        return Blob(what, self._blob.fd, offset, size)


def _translate(name: str, error: Exception) -> BootseerError:
    if isinstance(error, ValueError):
        return NotFound(f"{name!a} cannot be the name of a file")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound(f"{name} does not exist")
    if isinstance(error, PermissionError):
        return Denied(f"{name} may not be read by this user")
    return Unavailable(f"{name} cannot be read: {getattr(error, 'strerror', error)}")

"""System calls with their fine print taken care of; all of them raise OSError."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

# What link(2) says where there are no hard links (EPERM is Linux's), or none between folders.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}


def os_error(number: int) -> OSError:
    """Return what a system call raises that fails with this errno: FileNotFoundError for ENOENT."""
    return OSError(number, os.strerror(number))


def check_result(result: int) -> int:
    """Return what a function of ours in C does, which says errno as a negative number.

    Raises:
        OSError: it has failed.
    """
    if result < 0:
        raise os_error(-result)
    return result


def status_at(name: str, folder: int) -> os.stat_result:
    """Describe what is directly in the folder open as `folder`, without following a link."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def check_free(name: str, folder: int) -> None:
    """Refuse a name that is taken.

    Raises:
        FileExistsError: it is.
    """
    with suppress(FileNotFoundError):
        status_at(name, folder)
        raise os_error(errno.EEXIST)


def check_kind(status: os.stat_result) -> None:
    """Refuse what is neither a regular file nor a folder.

    Raises:
        OSError: ELOOP a symbolic link, ENXIO a FIFO, a socket or a device.
    """
    if stat.S_ISLNK(status.st_mode):
        raise os_error(errno.ELOOP)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise os_error(errno.ENXIO)


def write_fully(fd: int, data: memoryview) -> None:
    """Write all of `data`, however the file system portions it."""
    while data:
        data = data[os.write(fd, data) :]


def pwrite_fully(fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of `data` at an offset, however the file system portions it."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def read_fully(fd: int, offset: int, size: int) -> bytes:
    """Read `size` bytes, however the file system portions them; fewer only at the file's end."""
    pieces: list[bytes] = []
    while size:
        piece = os.pread(fd, size, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def sync_folder(fd: int) -> None:
    """Make the names in a folder durable, on file systems that know how."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def move(source: str, old: int, target: str, new: int, *, overwrite: bool) -> None:
    """Rename a file from the folder `old` to the folder `new`.

    With `overwrite` this is rename(2). Without, it is link(2), which never replaces, and then
    unlink(2): a crash between them leaves both names, each of the whole file.

    Raises:
        FileExistsError: the target exists and may not be overwritten.
    """
    if overwrite or not _link(source, old, target, new):
        os.rename(source, target, src_dir_fd=old, dst_dir_fd=new)
    else:
        os.unlink(source, dir_fd=old)


def _link(source: str, old: int, target: str, new: int) -> bool:
    """Link a file to a name that is free; return whether it was done.

    It is not where there are no hard links. Then having looked has to do, and of two writers in
    the same moment the last one wins.
    """
    try:
        os.link(source, target, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)
    except FileExistsError:
        # NFS repeats a call whose answer was lost: the link may be there because we made it.
        if not os.path.samestat(status_at(source, old), status_at(target, new)):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        check_free(target, new)
        return False
    return True

"""What has to go: a folder with all below, and what dead writers leave, by its name and age."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from bootseer.posix import OPEN_FOLDER
from bootseer.store.api.name import MAX_COMPONENTS, TEMPORARY_PREFIX


def reap(folder: int, written_before_ns: int, levels: int) -> int:
    """Remove temporaries in an open folder and below, and return how many there were.

    Args:
        folder: a descriptor; links are not followed from there.
        written_before_ns: those last written then or earlier; nanoseconds since 1970.
        levels: how many of folders to look into; no object's name has more.
    """
    if levels == 0:
        return 0
    reaped = 0
    with os.scandir(folder) as found:
        entries = list(found)  # now: until its end it holds a descriptor, on every level
    for entry in entries:
        # Another process reaps or deletes too, or a folder is not ours: leave it to them.
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if entry.is_dir(follow_symlinks=False):
                child = os.open(entry.name, OPEN_FOLDER, dir_fd=folder)
                try:
                    reaped += reap(child, written_before_ns, levels - 1)
                finally:
                    os.close(child)
            elif _is_stale(entry, written_before_ns):
                os.unlink(entry.name, dir_fd=folder)
                reaped += 1
    return reaped


def remove_tree(folder: int, name: str, levels: int = MAX_COMPONENTS) -> None:
    """Remove what has a name in an open folder: a folder with all below, links not followed.

    Args:
        folder: a descriptor.
        name: in it; no error if it is gone.
        levels: how many of folders to go down.

    Raises:
        OSError: ENOTEMPTY, something is put in meanwhile, or there are more levels.
    """
    if levels == 0:
        raise OSError(errno.ENOTEMPTY, "folders in it are deeper than any name of an object")
    with suppress(FileNotFoundError):
        try:
            child = os.open(name, OPEN_FOLDER, dir_fd=folder)
        except NotADirectoryError:
            os.unlink(name, dir_fd=folder)
            return
        try:
            with os.scandir(child) as found:
                names = [entry.name for entry in found]
            for below in names:
                remove_tree(child, below, levels - 1)
        finally:
            os.close(child)
        os.rmdir(name, dir_fd=folder)


def _is_stale(entry: os.DirEntry[str], written_before_ns: int) -> bool:
    if not entry.name.startswith(TEMPORARY_PREFIX):
        return False
    return entry.stat(follow_symlinks=False).st_mtime_ns <= written_before_ns

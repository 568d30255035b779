"""Remove entries of the block cache: flat folders with known files, a bounded piece at a time.

Nothing here follows what it finds: known names are removed, then the folder if it is empty. Files
are cut before they are unlinked, for a process may have one open, and would keep its room.

Part of the lender's side: imports the standard library only.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from bootseer.units import MIB

FILES = ("data", "map", "manifest", "claims", "user", "account")
"""All that an entry has; the account goes last, for it says what the others take up."""
_PIECE_BYTES = 256 * MIB
_FOLDER_BYTES = 4096


def disk_bytes(path: Path) -> int:
    """Return what the files of an entry take up on the disk; 0 if there are none."""
    found = []
    for name in FILES:
        with suppress(OSError):
            found.append(os.lstat(path / name).st_blocks * 512)
    return sum(found) + _FOLDER_BYTES if found else 0


def is_mounted(path: Path) -> bool:
    """Whether the kernel has an entry's image mounted, through a loop device of its data.

    Such a mount outlives who had it made, as what serves an image does, and has no lock.
    """
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # it is free by now
            if device.read_bytes().endswith(os.fsencode(f"/{path.name}/data\n")):
                return True
    return False


def cut(path: Path, pieces: int) -> int:
    """Remove an entry, or a part of its data.

    Args:
        path: of its folder, under a name that says that it is being removed.
        pieces: of work that may be done.

    Returns:
        How many pieces are left; 0 if there is more to be done here.

    Concurrency: any number of processes.
    """
    try:
        size_bytes = os.lstat(path / "data").st_size
    except OSError:
        size_bytes = 0
    left_bytes = disk_bytes(path)
    while size_bytes and pieces:
        size_bytes = max(0, size_bytes - _PIECE_BYTES)
        _resize(path / "data", size_bytes)
        before_bytes, left_bytes = left_bytes, disk_bytes(path)
        pieces -= left_bytes < before_bytes  # a hole is no work
    if size_bytes:
        _resize(path / "account", disk_bytes(path))
        return 0
    for name in FILES:
        _resize(path / name, 0)
        with suppress(OSError):
            os.unlink(path / name)
    with suppress(OSError):  # gone already, or something unexpected is in it, and stays
        path.rmdir()
    return max(0, pieces - 1)


def _resize(path: Path, size_bytes: int) -> None:
    """Give a regular file a length; what is none stays as it is."""
    with suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.truncate(path, size_bytes)


def unexpected(path: Path) -> list[str]:
    """List what is in an entry's folder and is no part of an entry."""
    try:
        return sorted(set(os.listdir(path)) - set(FILES))
    except FileNotFoundError:
        return []
    except OSError:
        return [path.name]

"""Remove entries of the block cache in bounded pieces.

Only files with known names are removed, then the folder if empty. Files are truncated before
unlinking, because a process with an open descriptor would keep their space in use.

Used by the lender: imports the standard library only.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from bootseer.units import MIB

FILES = ("data", "map", "manifest", "claims", "user", "account")
"""An entry's files; the account is removed last, as it holds the charge for the others."""
_PIECE_BYTES = 256 * MIB
_FOLDER_BYTES = 4096


def disk_bytes(path: Path) -> int:
    """Return the bytes that an entry's files take on the disk; 0 if there are none."""
    found = []
    for name in FILES:
        with suppress(OSError):
            found.append(os.lstat(path / name).st_blocks * 512)
    return sum(found) + _FOLDER_BYTES if found else 0


def is_mounted(path: Path) -> bool:
    """Return whether an entry's image is mounted by the kernel, through a loop device.

    Such a mount outlives the agent, and holds no lock.
    """
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # the loop device has been released
            if device.read_bytes().endswith(os.fsencode(f"/{path.name}/data\n")):
                return True
    return False


def cut(path: Path, pieces: int) -> int:
    """Remove an entry, or part of its data; returns the pieces left.

    Args:
        path: its folder, renamed for removal.
        pieces: limit of pieces of data to free.

    Returns:
        Pieces not used up; 0 if data are left.

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
        pieces -= left_bytes < before_bytes  # holes do not count
    if size_bytes:
        _resize(path / "account", disk_bytes(path))
        return 0
    for name in FILES:
        _resize(path / name, 0)
        with suppress(OSError):
            os.unlink(path / name)
    with suppress(OSError):  # already removed, or it holds foreign files
        path.rmdir()
    return max(0, pieces - 1)


def _resize(path: Path, size_bytes: int) -> None:
    """Set the length of a regular file; others stay unchanged."""
    with suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.truncate(path, size_bytes)


def unexpected(path: Path) -> list[str]:
    """List the foreign files in an entry's folder."""
    try:
        return sorted(set(os.listdir(path)) - set(FILES))
    except FileNotFoundError:
        return []
    except OSError:
        return [path.name]

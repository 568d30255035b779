"""Whose folders are: root's are used only where nobody else can have had a hand in them.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from bootseer.errors import Denied


def check_roots(*folders: str) -> None:
    """Check that folders are root's alone to write in, and no links.

    Raises:
        Denied: one is not.
    """
    for folder in folders:
        if not _is_alone(folder, 0):
            raise Denied(f"{folder} is not a folder that only root can write; nothing is done")


def check_own(*folders: str) -> None:
    """Check that folders are this process's user's alone to write in, and no links.

    Raises:
        Denied: one is not.
    """
    for folder in folders:
        if not _is_alone(folder, os.geteuid()):
            raise Denied(f"{folder} is not a folder that only this user can write; nothing is done")


def make_for(folder: str, uid: int, gid: int) -> None:
    """Make a folder of another user's, as root, where only root makes names, unless it is there.

    Raises:
        OSError: it cannot be made.
    """
    if os.path.lexists(folder):
        return
    partial = f"{folder}.new"
    with suppress(FileExistsError):  # another is at it, or was, and has died
        os.mkdir(partial, 0o700)
    try:
        os.chown(partial, uid, gid)
        os.rename(partial, folder)
    except OSError:
        if not os.path.lexists(folder):
            raise
        with suppress(OSError):  # another was first
            os.rmdir(partial)


def _is_alone(folder: str, uid: int) -> bool:
    info = os.lstat(folder)
    return stat.S_ISDIR(info.st_mode) and info.st_uid == uid and not info.st_mode & 0o022

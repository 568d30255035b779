"""Whose folders are: root's are used only where nobody else can have had a hand in them.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from bootseer.errors import Denied


def check_alone(*folders: str, uid: int = 0) -> None:
    """Check that folders are one user's alone to write in, by default root's, and no links.

    Raises:
        Denied: one is not.
        OSError: one cannot be looked at.
    """
    for folder in folders:
        info = os.lstat(folder)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != uid or info.st_mode & 0o022:
            whose = f"user {uid}" if uid else "root"
            raise Denied(f"{folder} is not a folder that only {whose} can write; nothing is done")


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

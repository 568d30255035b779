"""Whose folders are: root's are used only where nobody else can have had a hand in them.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import stat

from bootseer.errors import Denied


def check_roots(*folders: str) -> None:
    """Check that folders are root's alone to write in, and no links.

    Raises:
        Denied: one is not.
    """
    for folder in folders:
        info = os.lstat(folder)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != 0 or info.st_mode & 0o022:
            raise Denied(f"{folder} is not a folder that only root can write; nothing is done")

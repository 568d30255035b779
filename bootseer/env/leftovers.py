"""Temporary folders beside targets or in them, and what of these the killed leave behind.

Who makes one has a lock on it (flock(2)) for as long as it is in use. One that has none, and can be
locked, is nobody's any more: the next `env run` with that target removes it, before the key is made
of what the target holds. Standard library only: see `bootseer.env.run`.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from contextlib import suppress

_NAME_CHARS = 60
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary_name(name: str) -> str:
    """Return a name for a temporary folder of the target with this name."""
    return f"{_prefix(name)}{secrets.token_hex(8)}"


def note_use(folder: int) -> None:
    """Have an open temporary folder count as in use, until it is closed or its process has died."""
    with suppress(OSError):  # files of this file system cannot be locked: it is never removed
        fcntl.flock(folder, fcntl.LOCK_SH)


def remove_leftovers(target: str) -> None:
    """Remove temporary folders of a target that nobody uses, as far as that can be told.

    Args:
        target: absolute path, without links.
    """
    above, name = os.path.split(target)
    pattern = re.compile(re.escape(_prefix(name)) + "[0-9a-f]{16}")
    for folder in (above, target):
        with suppress(OSError):
            for found in os.listdir(folder):
                if pattern.fullmatch(found):
                    _remove(os.path.join(folder, found))


def _prefix(name: str) -> str:
    return f".{name[:_NAME_CHARS]}.bootseer-"


def _remove(path: str) -> None:
    with suppress(OSError):
        fd = os.open(path, _FOLDER)
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                return
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder, inside, _ in os.walk(path):
                for name in inside:
                    below = os.path.join(folder, name)
                    if not os.path.islink(below):
                        os.chmod(below, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)

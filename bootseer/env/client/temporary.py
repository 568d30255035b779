"""Temporary folders, and the removal of those that killed processes have left.

A process locks its temporary folder (flock(2)) while it uses it. A folder that is not locked
belongs to no process any more, and the next `env run` removes it. Temporary folders of a target are
beside it or in it. They are removed before the key is made of what the target holds.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_NAME_CHARS = 60
_CUT_CHARS = 40
_FRESH_S = 60.0
"""A younger folder of `temporary_folder` may not be locked yet."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary_name(name: str) -> str:
    """Return a name for a temporary folder of the target with this name."""
    return f"{prefix(name)}{os.urandom(8).hex()}"


def note_use(folder: int) -> None:
    """Mark an open temporary folder as in use, until it is closed or its process has died."""
    with suppress(OSError):  # files of this file system cannot be locked: it is never removed
        fcntl.flock(folder, fcntl.LOCK_SH)


@contextmanager
def temporary_folder(above: str, begins: str) -> Iterator[str]:
    """Make an empty folder for the length of a block; yields its path.

    Args:
        above: path of the one that it is made in.
        begins: what its name begins with.

    Raises:
        OSError: it cannot be made.
    """
    import shutil  # a result that is restored needs neither
    import tempfile

    path = tempfile.mkdtemp(prefix=begins, dir=above)
    try:
        lock = os.open(path, _FOLDER)
        try:
            note_use(lock)
            yield path
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_temporary_folders(above: str, begins: str) -> None:
    """Remove folders of `temporary_folder` that killed processes have left."""
    remove_unused(above, re.compile(re.escape(begins) + r"\w{8}", re.ASCII), _FRESH_S)


def remove_leftovers(target: str) -> None:
    """Remove temporary folders of a target that no process uses, as far as can be told.

    Args:
        target: absolute path, without links.
    """
    above, name = os.path.split(target)
    pattern = re.compile(re.escape(prefix(name)) + "[0-9a-f]{16}")
    for folder in (above, target):
        remove_unused(folder, pattern)


def remove_unused(folder: str, pattern: re.Pattern[str], older_s: float = 0) -> None:
    """Remove temporary folders that no process uses, as far as can be told.

    None where others may rename what is the user's: it could be anything.

    Args:
        folder: path of the one that they are in.
        pattern: of their whole names.
        older_s: remove only those without a change for this long, because a process that makes one
            in this folder cannot lock it at once.
    """
    with suppress(OSError):
        if not _is_safe(folder):
            return
        for found in os.listdir(folder):
            if pattern.fullmatch(found):
                _remove(os.path.join(folder, found), older_s)


def prefix(name: str) -> str:
    """Return the beginning of all names of temporary files for the target with this name."""
    if len(name) > _NAME_CHARS:  # others may begin as this one does
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()
        name = f"{name[:_CUT_CHARS]}-{digest[:16]}"
    return f".{name}.bootseer-"


def _is_safe(folder: str) -> bool:
    """Whether no other user can rename a folder to the name of a temporary one there."""
    status = os.stat(folder)
    is_open = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and not _is_only_mine(folder, status.st_gid)
    )
    may_rename = is_open and not status.st_mode & stat.S_ISVTX
    return not may_rename and status.st_uid in (0, os.geteuid())


def _is_only_mine(folder: str, gid: int) -> bool:
    """Whether a folder's group has no member but the user: a user private group."""
    with suppress(OSError):  # there is no such attribute
        os.getxattr(folder, "system.posix_acl_access")
        return False
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    is_own = (gid, group.gr_name) == (user.pw_gid, user.pw_name)
    return is_own and set(group.gr_mem) <= {user.pw_name}


def _remove(path: str, older_s: float) -> None:
    with suppress(OSError):
        fd = os.open(path, _FOLDER)
        import shutil  # rarely needed

        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < older_s:
                return
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(fd, 0o700)
            for folder, inside, _ in os.walk(path):
                for name in inside:
                    below = os.path.join(folder, name)
                    if not os.path.islink(below):
                        os.chmod(below, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)

"""Temporary folders, and what of these the killed leave behind.

Who makes one has a lock on it (flock(2)) for as long as it is in use. One that has none, and can be
locked, is nobody's any more: the next `env run` removes it. Those of a target are beside it or in
it, and are removed before the key is made of what the target holds. Standard library only: see
`bootseer.env.client.run`.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import os
import pwd
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_NAME_CHARS = 60
_CUT_CHARS = 40
_FRESH_S = 60.0
"""A folder of `temporary_folder` that is younger may be one that is not locked yet."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary_name(name: str) -> str:
    """Return a name for a temporary folder of the target with this name."""
    return f"{prefix(name)}{secrets.token_hex(8)}"


def note_use(folder: int) -> None:
    """Have an open temporary folder count as in use, until it is closed or its process has died."""
    with suppress(OSError):  # files of this file system cannot be locked: it is never removed
        fcntl.flock(folder, fcntl.LOCK_SH)


@contextmanager
def temporary_folder(above: str, begins: str) -> Iterator[str]:
    """Have an empty folder for the length of a block; yields its path.

    Args:
        above: path of the one that it is made in.
        begins: what its name begins with.

    Raises:
        OSError: it cannot be made.
    """
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
    """Remove those of `temporary_folder` that killed processes have left."""
    remove_unused(above, re.compile(re.escape(begins) + r"\w{8}", re.ASCII), _FRESH_S)


def remove_leftovers(target: str) -> None:
    """Remove temporary folders of a target that nobody uses, as far as that can be told.

    Args:
        target: absolute path, without links.
    """
    above, name = os.path.split(target)
    pattern = re.compile(re.escape(prefix(name)) + "[0-9a-f]{16}")
    for folder in (above, target):
        remove_unused(folder, pattern)


def remove_unused(folder: str, pattern: re.Pattern[str], older_s: float = 0) -> None:
    """Remove temporary folders that nobody uses, as far as that can be told.

    None where others may rename what is the user's: it could be anything.

    Args:
        folder: path of the one that they are in.
        pattern: of their whole names.
        older_s: remove only those that nothing was put into for this long, because who makes one
            in this folder cannot lock it at once.
    """
    with suppress(OSError):
        if not _is_safe(folder):
            return
        for found in os.listdir(folder):
            if pattern.fullmatch(found):
                _remove(os.path.join(folder, found), older_s)


def prefix(name: str) -> str:
    """Return what names of our own begin with that belong to the target with this name."""
    if len(name) > _NAME_CHARS:  # others may begin as this one does
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()
        name = f"{name[:_CUT_CHARS]}-{digest[:16]}"
    return f".{name}.bootseer-"


def _is_safe(folder: str) -> bool:
    """Whether nobody else can give a folder of the user's the name of a temporary one there."""
    status = os.stat(folder)
    is_open = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and not _is_only_mine(folder, status.st_gid)
    )
    may_rename = is_open and not status.st_mode & stat.S_ISVTX
    return not may_rename and status.st_uid in (0, os.geteuid())


def _is_only_mine(folder: str, gid: int) -> bool:
    """Whether a folder's group has nobody but the user, as many have one of their own name."""
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

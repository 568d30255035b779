"""What the operating system's error numbers mean for an object in a store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from bootseer.errors import (
    BootseerError,
    ConfigError,
    Conflict,
    Denied,
    NoSpace,
    NotFound,
    OverQuota,
    Transient,
    Unavailable,
)

_MEANINGS: dict[int, tuple[type[BootseerError], str]] = {
    errno.ENOENT: (NotFound, "there is no such object"),
    errno.EACCES: (Denied, "permission denied; check the owner and mode of the store's folders"),
    errno.EPERM: (Denied, "not permitted; check the owner and mode of the store's folders"),
    errno.EROFS: (Denied, "the file system is mounted read-only"),
    errno.ELOOP: (Denied, "it is or lies behind a symbolic link, and links are not followed"),
    errno.ENXIO: (Denied, "it is not a regular file"),
    errno.EEXIST: (Conflict, "it exists already"),
    errno.ENOTEMPTY: (Conflict, "the folder is not empty"),
    errno.EISDIR: (Conflict, "it is a folder"),
    errno.ENOTDIR: (Conflict, "it or a folder above it is an object"),
    errno.ENAMETOOLONG: (ConfigError, "the name is too long for this file system"),
    errno.ENOSPC: (NoSpace, "no space left; free some, or choose another place for the store"),
    errno.EDQUOT: (OverQuota, "no space left in the quota; free some, or have it raised"),
    errno.ENOTCONN: (Unavailable, "the mount has lost its server; mount it again"),
    errno.ESTALE: (Transient, "the file handle is stale"),
    errno.EIO: (Transient, "input/output error"),
    errno.EINTR: (Transient, "interrupted"),
    errno.EAGAIN: (Transient, "the file system asks to try again"),
    errno.ETIMEDOUT: (Transient, "the file system did not answer in time"),
}


def translate(error: OSError, operation: str, name: str, url: str) -> BootseerError:
    """Return the error of ours that says what an operating system's error means.

    A text that is not the system's own for the number was put there by us, knows more, and is kept.
    """
    number = error.errno or 0
    meaning, reason = _MEANINGS.get(number, (Unavailable, os.strerror(number)))
    if error.strerror and error.strerror != os.strerror(number):
        reason = error.strerror
    return meaning(f"cannot {operation} {name!r} in {url}: {reason}")


@contextmanager
def translated(operation: str, name: str, url: str) -> Iterator[None]:
    """Turn every OSError of the block into the error of ours."""
    try:
        yield
    except OSError as error:
        raise translate(error, operation, name, url) from error

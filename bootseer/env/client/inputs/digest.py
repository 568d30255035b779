"""Digests of files and folders, for keys: of bounded size, and without blocking."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bootseer.errors import ConfigError

MAX_TEXT_BYTES = 16 << 20
MAX_TREE_BYTES = 64 << 20
MAX_TREE_FILES = 10_000
ABSENT = "absent"

_READ_BYTES = 1 << 20
_CREDENTIALS = re.compile(rb"(://)[^/?#\s\"<>`]*@")
_TOKEN = re.compile(
    rb"(://[^/?#\s\"<>`]+)/t/[\w-]{16,}(?=/)"
)  # conda: https://host/t/TOKEN/channel
_CACHES = frozenset((b".git", b".hg", b"__pycache__"))
_SETUPTOOLS = re.compile(rb"build/(lib|bdist|temp)([.-].*)?", re.DOTALL)


class KeyProblem(ConfigError):
    """A command has no key, for none would tell all that its result depends on."""


class FileDigest(NamedTuple):
    """Digest of a file's content."""

    sha256: str
    size_bytes: int

    def __str__(self) -> str:
        """Return the text for a key's part."""
        return f"sha256:{self.sha256}, {self.size_bytes:,} bytes"


def printable(text: str) -> str:
    r"""Return a text as printable ASCII, other characters as ``\x..`` and ``\u....``.

    Different texts stay different, and are written alike by every version of Python.
    """
    return text.encode("unicode_escape").decode("ascii")


def without_credentials(text: str) -> str:
    """Remove users and passwords from the URLs in a text, and conda's tokens."""
    return _clean(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def text_digest(data: bytes) -> FileDigest:
    """Digest a text without its credentials: a new password does not change the digest."""
    data = _clean(data)
    return FileDigest(hashlib.sha256(data).hexdigest(), len(data))


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn an OSError of the block into one that says what to do.

    Raises:
        KeyProblem: there was an OSError.
    """
    try:
        yield
    except OSError as error:
        raise KeyProblem(
            f"{error.filename or path}: {error.strerror}, so its content cannot be part of the "
            "key; make it readable, or leave it out of the command"
        ) from error


def read_text(path: str) -> bytes | None:
    """Read a file of up to 16 MiB; None if there is none.

    Raises:
        KeyProblem: it is no regular file, or too large, or cannot be read.
    """
    fd = _open(path)
    if fd is None:
        return None
    data = bytearray()
    for chunk in _chunks(fd, path):
        data += chunk
        if len(data) > MAX_TEXT_BYTES:
            raise KeyProblem(
                f"{path}: larger than {MAX_TEXT_BYTES >> 20} MiB, which no requirement, lock or "
                "script file is; name another file"
            )
    return bytes(data)


def file_digest(path: str) -> FileDigest | None:
    """Digest a file of any size; None if there is none.

    Raises:
        KeyProblem: it is no regular file, or cannot be read.
    """
    fd = _open(path)
    if fd is None:
        return None
    whole = hashlib.sha256()
    size_bytes = 0
    for chunk in _chunks(fd, path):
        whole.update(chunk)
        size_bytes += len(chunk)
    return FileDigest(whole.hexdigest(), size_bytes)


def tree_digest(folder: str, left_out: Collection[str] = ()) -> str:
    """Digest a project's folder: names, contents, executable bits and link targets.

    Files of version control, byte code, virtual environments and files that setuptools builds in a
    project are left out: the first install would change the key of the second.

    Args:
        folder: the project.
        left_out: absolute paths of more folders to leave out.

    Raises:
        KeyProblem: it is too large, or a file in it cannot be read.
    """
    whole = hashlib.sha256()
    size_bytes = files = 0
    with reading(folder):
        found = sorted(_walk(os.fsencode(folder), set(map(os.fsencode, left_out))))
    for path, status in found:
        full = os.path.join(os.fsencode(folder), path)
        if stat.S_ISLNK(status.st_mode):
            with reading(folder):
                fields = [b"link", path, os.readlink(full)]
        elif stat.S_ISREG(status.st_mode):
            size_bytes += status.st_size
            files += 1
            _check_size(folder, size_bytes, files)
            content = file_digest(os.fsdecode(full))
            mode = b"executable" if status.st_mode & 0o100 else b"file"
            fields = [mode, path, (content.sha256 if content else ABSENT).encode()]
        else:
            fields = [b"other", path, b""]
        for field in fields:
            whole.update(len(field).to_bytes(8, "little"))
            whole.update(field)
    return f"sha256:{whole.hexdigest()}, {files:,} files, {size_bytes:,} bytes"


def _check_size(folder: str, size_bytes: int, files: int) -> None:
    if size_bytes > MAX_TREE_BYTES or files > MAX_TREE_FILES:
        raise KeyProblem(
            f"{folder}: more than {MAX_TREE_BYTES >> 20} MiB or {MAX_TREE_FILES:,} files, too much "
            "to look through at every start; build a wheel of it and install that"
        )


def _walk(root: bytes, left_out: set[bytes]) -> Iterator[tuple[bytes, os.stat_result]]:
    """List the files of a project that are part of its digest, in no order."""
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        for entry in list(os.scandir(os.path.join(root, folder))):
            path = os.path.join(folder, entry.name)
            if _is_part(entry, path) and os.path.join(root, path) not in left_out:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                else:
                    yield path, entry.stat(follow_symlinks=False)


def _is_part(entry: os.DirEntry[bytes], path: bytes) -> bool:
    """Whether a name in a project is part of its sources."""
    if entry.is_dir(follow_symlinks=False):
        made = entry.name in _CACHES or entry.name.endswith(b".egg-info")
        is_venv = os.path.lexists(os.path.join(entry.path, b"pyvenv.cfg"))
        return not made and not is_venv and not _SETUPTOOLS.fullmatch(path)
    return not entry.name.endswith(b".pyc")


def _open(path: str) -> int | None:
    """Open a file for `_chunks`; None if there is none."""
    with reading(path):
        try:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _chunks(fd: int, path: str) -> Iterator[bytes]:
    """Read a regular file piece by piece, and close it."""
    try:
        with reading(path):
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                raise KeyProblem(
                    f"{path}: not a regular file, so its content cannot be part of the key; "
                    "name a file"
                )
            while chunk := os.read(fd, _READ_BYTES):
                yield chunk
            after = os.fstat(fd)
    finally:
        os.close(fd)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise KeyProblem(f"{path}: changed while it was read; try again when it is complete")


def _clean(data: bytes) -> bytes:
    return _TOKEN.sub(rb"\1", _CREDENTIALS.sub(rb"\1", data))

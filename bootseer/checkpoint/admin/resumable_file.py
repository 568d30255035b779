"""Write a local file in pieces, in any order, and resume after an interruption.

Until the file is complete it has a temporary name in the same folder; beside it is a journal of the
pieces that are on the disk. See docs/formats/export-journal.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bootseer.checkpoint.admin.compare import THIS_MACHINE
from bootseer.errors import Conflict, Denied
from bootseer.posix import pwrite_fully, sync_folder, write_fully
from bootseer.store.local.errors import translated
from bootseer.units import MIB, format_numbers

VERSION = 1
JOURNAL_LEAST_BYTES = 64 * MIB
"""Length from which a file has a journal; a shorter one is fetched again."""
SYNC_BYTES = 256 * MIB
"""Most bytes that are fetched a second time after a crash."""
EXPORT_PREFIX = ".bootseer-export-"
"""Begins the name of an incomplete file, and of its journal."""


class ResumableFile:
    """A local file that is being written. All calls block, and raise `BootseerError`.

    Concurrency: `put` from any number of threads; the rest one call at a time.

    Durability: pieces that the journal names survive a crash; after `publish`, the file does.
    """

    def __init__(
        self, path: str, size_bytes: int, piece_bytes: int, version: dict[str, object]
    ) -> None:
        """Begin, or resume an earlier one of the same version.

        Args:
            path: of the complete file.
            size_bytes: its length.
            piece_bytes: of every piece but the last.
            version: identifies the content; JSON must leave it unchanged.

        Raises:
            Conflict: another process is writing it.
            Denied: another user's file has the temporary name.
        """
        self.path = path
        self._folder = os.path.dirname(path) or "."
        self._temporary, self._journal_path = _beside(path)
        self._size_bytes = size_bytes
        self._piece_bytes = piece_bytes
        self._unsynced: list[int] = []
        self._journal = -1
        self._is_published = False
        self._has_failed = False
        self.done: set[int] = set()
        with translated("write", path, THIS_MACHINE):
            self._fd = self._lock(_open_own(self._temporary))
            try:
                self._begin(version)
            except BaseException:
                self.close()
                raise

    def put(self, offset: int, data: bytes) -> None:
        with self._writing():
            pwrite_fully(self._fd, data, offset)

    def mark_written(self, offset: int) -> bool:
        """Note that a piece was written; returns whether it is time to `sync`."""
        self._unsynced.append(offset // self._piece_bytes)
        return len(self._unsynced) * self._piece_bytes >= SYNC_BYTES

    def sync(self) -> None:
        """Add all pieces written so far to the journal, after syncing them."""
        if self._journal < 0:
            return
        written, self._unsynced = self._unsynced, []
        if written and not self._has_failed:
            with self._writing():
                os.fdatasync(self._fd)
                self._write_journal(format_numbers(written).encode() + b"\n")

    def publish(self, mode: int | None, mtime_ns: int) -> None:
        """Rename the complete file to its name, replacing any other.

        Raises:
            Conflict: where locks do not work, another process has begun it again.
        """
        with translated("write", self.path, THIS_MACHINE):
            self._check_name(self._fd)
            os.fchmod(self._fd, 0o666 & ~_umask() if mode is None else mode)
            os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            os.fsync(self._fd)
            os.rename(self._temporary, self.path)
            self._is_published = True
            remove_leftovers(self.path)
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_folder(folder)
            finally:
                os.close(folder)

    def discard(self) -> None:
        """Remove the incomplete file, unless it is another process's by now."""
        with suppress(Conflict):
            self._check_name(self._fd)
            remove_leftovers(self.path)

    def close(self) -> None:
        """Close it; the pieces of a large file stay for the next time."""
        if self._fd >= 0 and self._journal < 0 and not self._is_published:
            self.discard()
        for fd in (self._journal, self._fd):
            if fd >= 0:
                os.close(fd)
        self._journal = self._fd = -1

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Add nothing more to the journal once a write has failed.

        The kernel reports a lost write once, and not which: any since the last sync may be lost.
        """
        try:
            with translated("write", self.path, THIS_MACHINE):
                yield
        except BaseException:
            self._has_failed = True
            raise

    def _write_journal(self, lines: bytes) -> None:
        write_fully(self._journal, memoryview(lines))
        os.fdatasync(self._journal)

    def _lock(self, fd: int) -> int:
        """Lock the incomplete file against other processes; returns its descriptor `fd`."""
        try:
            with suppress(OSError):  # where locks do not work, `_check_name` must be enough
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Conflict(f"{self.path} is being exported by another process") from None
            self._check_name(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_name(self, fd: int) -> None:
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._temporary, follow_symlinks=False), os.fstat(fd)):
                return
        raise Conflict(f"{self.path} is, or was, being exported by another process; look at it")

    def _begin(self, version: dict[str, object]) -> None:
        old_bytes = os.fstat(self._fd).st_size
        header = {"version": VERSION, "piece_bytes": self._piece_bytes, "source": version}
        first = json.dumps(header, sort_keys=True).encode() + b"\n"
        if self._size_bytes >= JOURNAL_LEAST_BYTES:
            self._journal = _open_own(self._journal_path, os.O_APPEND)
            self._go_on(first, is_old=old_bytes == self._size_bytes)
        if old_bytes and not self.done:
            # Where locks do not work, another process may still write to the old ones.
            remove_leftovers(self.path)
            new = self._lock(_open_own(self._temporary, os.O_EXCL))
            os.close(self._fd)
            self._fd = new
            if self._journal >= 0:
                journal = _open_own(self._journal_path, os.O_APPEND | os.O_EXCL)
                os.close(self._journal)
                self._journal = journal
                self._write_journal(first)
        os.ftruncate(self._fd, self._size_bytes)

    def _go_on(self, first: bytes, *, is_old: bool) -> None:
        """Take over the pieces of a journal whose first line is `first`, and write it again."""
        with open(self._journal, "rb", closefd=False) as file:
            lines = file.readlines()
        kept = first
        if is_old and lines and lines[0] == first:
            for line in lines[1:]:
                pieces = _pieces(line, -(-self._size_bytes // self._piece_bytes))
                if pieces is None:
                    break
                self.done.update(pieces)
                kept += line
        # A line that a crash has truncated must not become the beginning of another.
        os.ftruncate(self._journal, 0)
        self._write_journal(kept)


def remove_leftovers(path: str) -> None:
    """Remove the temporary file and the journal of a file."""
    for beside in _beside(path):
        with suppress(FileNotFoundError):
            os.unlink(beside)


def _beside(path: str) -> tuple[str, str]:
    """Return the names of the temporary file and its journal, no longer than a folder allows."""
    folder, name = os.path.split(path)
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    temporary = os.path.join(folder, f"{EXPORT_PREFIX}{digest}")
    return temporary, f"{temporary}.journal"


def _open_own(path: str, flags: int = 0) -> int:
    """Open a file for reading and writing, creating it if needed; returns its descriptor.

    Raises:
        FileExistsError: there is one, and `flags` have O_EXCL.
        Denied: it is another user's, or no file, and must not be trusted.
    """
    flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:  # some network file systems give a new file another owner
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
    fd = os.open(path, flags)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(fd)
        raise Denied(f"{path} is in the way and not a file of yours; remove it")
    return fd


def _umask() -> int:
    """Return the umask; umask(2) would change it for other threads."""
    found = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 8) if found else 0o077


def _pieces(line: bytes, count: int) -> list[int] | None:
    """Return the pieces of a journal line; None if it is incomplete or invalid."""
    if not line.endswith(b"\n"):
        return None
    numbers: list[int] = []
    for run in line.rstrip(b"\n").split(b", "):
        first, dash, last = run.partition(b"-")
        if not first.isdigit() or not (last if dash else first).isdigit() or len(run) > 40:
            return None
        start, stop = int(first), int(last or first) + 1
        if not start < stop <= count or len(numbers) + stop - start > count:
            return None
        numbers += range(start, stop)
    return numbers

"""Account for the space of the block cache's entries, and evict entries for others.

Every entry has an account: an empty file whose length is the space charged to the entry, and whose
mtime is the entry's last use. It is executable while part of the charge may be unused. The
length of a second file is the id of the user who is charged. The numbers are stored as lengths
so that a crash cannot leave one half-written.

Used by the lender: imports the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bootseer.cache.removal import cut, disk_bytes, is_mounted
from bootseer.cache.shares import CacheLimits, EntryUsage, SpaceDemand, UsageBook
from bootseer.cache.size import SUM_BYTES, EntrySize, on_disk

GOING, NEW, LOCK = ".going-", ".new-", ".lock"
_ENTRY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_OPEN = stat.S_IXUSR
_ROUNDS = 16
"""Rounds of eviction before a request is refused."""
_VICTIMS = 8
"""Entries evicted per round."""
_PIECES = 8
"""Pieces of removed entries freed per round, see `bootseer.cache.removal`."""


class Ledger:
    """The accounts of a cache, and its limits.

    Concurrency: any number of processes and threads. The lock is not held while data are removed.
    """

    def __init__(
        self,
        folder: Path,
        quota_bytes: int,
        free_share: float,
        user_share: float,
        user_entries: int,
    ) -> None:
        """Take the folder and limits; see `BlockCache`."""
        self._folder = folder
        self._quota_bytes = quota_bytes
        self._free_share = free_share
        self._user_bytes = int(user_share * quota_bytes)
        self._user_entries = user_entries

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock on the accounts; keep the block short."""
        fd = open_file(self._folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def admit(
        self,
        demand: Callable[[UsageBook], SpaceDemand | None],
        commit: Callable[[UsageBook, SpaceDemand], None],
    ) -> bool:
        """Make space for a demand, and commit it.

        Args:
            demand: returns the current demand; None if it no longer exists.
            commit: writes the demand to the accounts; called with the lock held.

        Returns:
            Whether there was space.

        Raises:
            OSError: an operation on the disk failed.
        """
        busy: set[str] = set()
        for number in range(_ROUNDS):
            is_first = number == 0
            with self.locked():
                book = self._book()
                found = demand(book)
                if is_first and found is not None and not book.fits(found):
                    self._settle_dead(book)
                    book = self._book()
                    found = demand(book)
                if found is None:
                    return False
                if book.fits(found):
                    commit(book, found)
                    return True
                is_hopeful = not is_first and self._push_out(book, found, busy)
            if is_first:
                is_hopeful = book.is_possible(found)  # otherwise evict nothing
            else:
                self.free_some()
            if not is_hopeful:
                return False
        return False

    def _push_out(self, book: UsageBook, demand: SpaceDemand, busy: set[str]) -> bool:
        """Evict entries; returns whether any is being removed. The lock is held."""
        for _ in range(_VICTIMS):
            victim = book.victim(demand, busy)
            while victim is not None and not self.take_away(victim.name):
                busy.add(victim.name)
                victim = book.victim(demand, busy)
            if victim is None:
                break
            book.note_leaving(victim)
        return any(a.is_leaving and a.charged_bytes for a in book.accounts)

    def _settle_dead(self, book: UsageBook) -> None:
        """Cancel reservations of dead processes. The lock is held."""
        for account in book.accounts:
            if account.is_open:
                with suppress(OSError):
                    settle(self._folder / account.name)

    def _book(self) -> UsageBook:
        accounts = self.accounts()
        charged_bytes = sum(a.charged_bytes for a in accounts)
        space = os.statvfs(self._folder)
        kept_bytes = int(self._free_share * space.f_blocks * space.f_frsize)
        free_bytes = space.f_bavail * space.f_frsize - kept_bytes
        for account in accounts:
            if account.is_open:  # other processes may use it soon
                there = disk_bytes(self._folder / account.name)
                free_bytes -= max(0, account.charged_bytes - there)
        total_bytes = min(self._quota_bytes, charged_bytes + free_bytes)
        limits = CacheLimits(max(0, total_bytes), self._user_bytes, self._user_entries)
        return UsageBook(accounts, limits, time.time_ns())

    def accounts(self) -> list[EntryUsage]:
        """Read the accounts of all entries; two calls for each. The lock is held."""
        found = []
        for name in os.listdir(self._folder):
            if not is_entry(name):
                continue
            leaves = name.startswith(GOING)
            try:
                info = os.lstat(f"{self._folder}/{name}/account")
            except OSError:  # created by another version, or damaged
                found.append(EntryUsage(name, 0, disk_bytes(self._folder / name), 0, leaves))
                continue
            is_open = not leaves and bool(info.st_mode & _OPEN)
            numbers = info.st_size, info.st_mtime_ns
            found.append(EntryUsage(name, user_of(self._folder / name), *numbers, leaves, is_open))
        return found

    def take_away(self, name: str) -> bool:
        """Rename an unused entry to mark it as removed. The lock is held."""
        path = self._folder / name
        fd = -1
        try:
            for guard in ("account", "map"):  # another version locks the map
                with suppress(FileNotFoundError):
                    fd = open_file(path / guard, os.O_RDONLY)
                    break
            if fd >= 0:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_mounted(path):
                return False
            with suppress(FileNotFoundError):
                os.truncate(path / "account", disk_bytes(path))
            path.rename(self._folder / f"{GOING}{secrets.token_hex(8)}")
        except OSError:
            return False
        finally:
            if fd >= 0:
                os.close(fd)
        return True

    def free_some(self) -> None:
        """Free some space of removed entries, without the lock."""
        pieces = _PIECES
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if name.startswith(GOING) and pieces:
                    pieces = cut(self._folder / name, pieces)


def is_entry(name: str) -> bool:
    """Return whether this is the name of an entry, also of one being created or removed."""
    return name.startswith((GOING, NEW)) or _ENTRY.fullmatch(name) is not None


def open_file(path: Path, flags: int) -> int:
    """Open or create a file of the cache, without following links.

    Raises:
        OSError: the file cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def size_of(path: Path) -> EntrySize:
    """Return the sizes of an entry from its files' lengths; OSError if one is missing."""
    sizes = [os.lstat(path / name).st_size for name in ("manifest", "data", "map")]
    return EntrySize(sizes[0], sizes[1], sizes[2] // SUM_BYTES)


def user_of(path: Path) -> int:
    """Return the id of the user to whom an entry is charged, root's if unknown."""
    try:
        return os.lstat(path / "user").st_size
    except OSError:
        return 0


def note_user(path: Path, uid: int) -> None:
    """Record the user to whom an entry is charged. The lock is held."""
    fd = open_file(path / "user", os.O_RDWR | os.O_CREAT)
    try:
        os.truncate(fd, uid)
    finally:
        os.close(fd)


def charge(path: Path, charged_bytes: int, *, is_open: bool) -> None:
    """Write the charge to an entry's account. The lock is held.

    Args:
        path: the entry's folder.
        charged_bytes: see `EntryUsage`.
        is_open: see `EntryUsage`.
    """
    account = path / "account"
    if is_open:
        account.chmod(0o600 | _OPEN)
    os.truncate(account, charged_bytes)
    if not is_open:
        account.chmod(0o600)


def settle(path: Path) -> None:
    """Return an unused entry's unused reservations. The lock is held."""
    fd = open_file(path / "account", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = size_of(path)
        data_bytes = os.lstat(path / "data").st_blocks * 512
        charged_bytes = size.fixed_bytes + min(data_bytes, on_disk(size.image_bytes))
        info = os.fstat(fd)
        charge(path, charged_bytes, is_open=False)
        os.utime(path / "account", ns=(info.st_atime_ns, info.st_mtime_ns))  # not counted as a use
    except BlockingIOError:
        pass
    finally:
        os.close(fd)

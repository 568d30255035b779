"""The block cache's folder on a node: an entry for each image, and their shared space.

    FOLDER/.lock           held while accounts are read or changed
    FOLDER/NAME/manifest   of the image
    FOLDER/NAME/data       sparse, as long as the image
    FOLDER/NAME/map        eight bytes for each block, see `bootseer.cache.cached_blocks`
    FOLDER/NAME/claims     empty; a lock on a byte is the claim on that block
    FOLDER/NAME/account    empty; its length is the space charged to the entry
    FOLDER/NAME/user       empty; its length is the id of the user charged
    FOLDER/.new-…          an entry that is being made
    FOLDER/.going-…        an entry that is being removed

All of it belongs to the cache's account, which has no other rights. A user of an entry holds a
shared lock on its account file, which only lenders open. Removal needs an exclusive lock, so no
entry in use is removed. Images mounted by the kernel are not removed either; their mounts hold no
lock.

Space is reserved before anything is written. Unused reservations are freed when the last user of
the entry closes it; those of dead processes when the space is needed.

Used by the lender: imports the standard library only, and treats manifests as bytes with a token.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bootseer.cache.ledger import (
    LOCK,
    NEW,
    Ledger,
    charge,
    is_entry,
    note_user,
    open_file,
    settle,
    size_of,
    user_of,
)
from bootseer.cache.removal import FILES, unexpected
from bootseer.cache.shares import EntryUsage, SpaceDemand, UsageBook
from bootseer.cache.size import SUM_BYTES, EntrySize
from bootseer.cache.token import entry_name
from bootseer.errors import NoSpace, NotFound, Unavailable
from bootseer.folder_ownership import check_alone
from bootseer.posix import pwrite_fully
from bootseer.units import MIB

_ATTEMPTS = 10
"""Attempts to open an entry that is removed repeatedly."""
_REFUSED_S = 1.0
"""Time during which a refused entry's requests for space are refused unchecked."""
_COPY_BYTES = MIB


class CacheEntry:
    """An image's entry, in use until it is closed.

    Attributes:
        path: its folder.
        lock_fd: descriptor with the shared lock; a process that holds a copy keeps the entry in
            use.
    """

    def __init__(self, cache: BlockCache, path: Path, lock_fd: int, uid: int) -> None:
        """Take over the descriptor with the lock."""
        self.path = path
        self.lock_fd = lock_fd
        self._cache = cache
        self._uid = uid
        self._refused_until = 0.0

    def open_manifest(self) -> int:
        """Open the manifest for reading.

        Raises:
            Unavailable: the manifest is gone or cannot be opened.
        """
        return self._open(os.O_RDONLY, "manifest")[0]

    def open_blocks(self) -> tuple[int, int]:
        """Open data and map for reading; see `open_manifest`."""
        data, block_map = self._open(os.O_RDONLY, "data", "map")
        return data, block_map

    def open_keeper(self) -> tuple[int, int, int]:
        """Open data, map and claims for a `BlockKeeper`; see `open_manifest`."""
        data, block_map, claims = self._open(os.O_RDWR, "data", "map", "claims")
        return data, block_map, claims

    def reserve(self, size_bytes: int, wanted_bytes: int) -> int:
        """Reserve space for blocks before they are written.

        Args:
            size_bytes: bytes to be written now.
            wanted_bytes: bytes that may be written later, granted only if nothing must be removed.

        Returns:
            How many bytes may be written, 0 for none.
        """
        if time.monotonic() < self._refused_until:
            return 0
        granted_bytes = self._cache.reserve(self, self._uid, size_bytes, wanted_bytes)
        if not granted_bytes:
            self._refused_until = time.monotonic() + self._cache.refused_s
        return granted_bytes

    def close(self) -> None:
        """Record the use, return unused reservations, and unlock the entry."""
        self._cache.release(self)

    def _open(self, flags: int, *names: str) -> list[int]:
        with ExitStack() as opened:
            fds = []
            for name in names:
                try:
                    fds.append(open_file(self.path / name, flags))
                except OSError as error:
                    raise Unavailable(f"the block cache cannot be opened: {error}") from error
                opened.callback(os.close, fds[-1])
            opened.pop_all()
        return fds


class BlockCache:
    """The cache of a node.

    Concurrency: any number of processes.

    Attributes:
        refused_s: time during which a refused entry's requests are refused unchecked.
    """

    def __init__(
        self,
        folder: Path,
        quota_bytes: int,
        free_share: float,
        user_share: float = 1.0,
        user_entries: int = 1000,
        refused_s: float = _REFUSED_S,
    ) -> None:
        """Take the folder and limits; no I/O is done.

        Args:
            folder: a folder on a local file system.
            quota_bytes: limit of all entries together.
            free_share: share of that file system to be left free.
            user_share: share of the quota that one user's entries may take.
            user_entries: limit of one user's entries.
            refused_s: see `refused_s`.
        """
        self.refused_s = refused_s
        self._folder = folder
        self._ledger = Ledger(folder, quota_bytes, free_share, user_share, user_entries)

    # Entries.

    def find(self, token: bytes, uid: int) -> CacheEntry:
        """Open the entry of an image.

        Args:
            token: token of its manifest, see `bootseer.cache.token`.
            uid: the user who reads the image.

        Raises:
            NotFound: the entry is missing or incomplete; `create` makes it.
            Unavailable: an operation on the disk failed.
            Denied: other users can change the folder.
        """
        with self._usable():
            entry = self._opened(entry_name(token), uid)
            if entry is not None:
                if all((entry.path / name).exists() for name in FILES if name != "user"):
                    return entry
                entry.close()
        raise NotFound("the image is not in the block cache")

    def create(self, token: bytes, size: EntrySize, manifest_fd: int, uid: int) -> CacheEntry:
        """Open the entry of an image; create the entry or its missing files.

        Args:
            token: as for `find`; computed from the content of ``manifest_fd``.
            size: sizes of the image, from the process that decoded the manifest.
            manifest_fd: descriptor of the manifest in sealed memory.
            uid: the user to whom the entry is charged.

        Raises:
            NoSpace: there is no space for the entry; nothing was written.
            Corrupt: no image is of that size.
            Unavailable, Denied: as for `find`.
        """
        size.check()
        name = entry_name(token)
        with self._usable():
            for _ in range(_ATTEMPTS):
                entry = self._opened(name, uid) or self._make(name, size, manifest_fd, uid)
                if entry is not None:
                    return self._filled(entry, size, manifest_fd)
        raise Unavailable(f"the block cache's {self._folder / name} is removed all the time")

    def accounts(self) -> list[EntryUsage]:
        """List the entries' usage."""
        with suppress(OSError), self._ledger.locked():
            return self._ledger.accounts()
        return []

    def remove(self, name: str) -> bool:
        """Remove an entry unless in use; returns whether it was removed."""
        try:
            with self._ledger.locked():
                is_gone = self._ledger.take_away(name)
        except OSError:
            return False
        self._ledger.free_some()
        return is_gone

    def sweep(self) -> list[str]:
        """Remove some left-overs of dead processes and of unfinished removals.

        Returns:
            Messages on foreign files in the folder, which are left alone.
        """
        try:
            with self._ledger.locked():
                for name in os.listdir(self._folder):
                    if name.startswith(NEW):
                        self._ledger.take_away(name)
            self._ledger.free_some()
            names = os.listdir(self._folder)
        except OSError:
            return []
        found = []
        for name in sorted(set(names) - {LOCK}):
            path = self._folder / name
            strange = [path / what for what in unexpected(path)] if is_entry(name) else [path]
            found += [f"{os.fspath(what)!a} does not belong to the block cache" for what in strange]
        return found

    # Space.

    def reserve(self, entry: CacheEntry, uid: int, size_bytes: int, wanted_bytes: int) -> int:
        granted_bytes = 0

        def demand(book: UsageBook) -> SpaceDemand | None:
            account = next((a for a in book.accounts if a.name == entry.path.name), None)
            if account is None:
                return None
            most_bytes = size_of(entry.path).most_bytes
            left_bytes = max(0, most_bytes - account.charged_bytes)
            for amount in (max(size_bytes, wanted_bytes), size_bytes):
                demanded = book.demand(account, uid, min(left_bytes, amount))
                if book.fits(demanded):
                    break
            return demanded

        def commit(book: UsageBook, demanded: SpaceDemand) -> None:
            nonlocal granted_bytes
            info = os.stat(entry.path / "account")
            charged_bytes = info.st_size + demanded.more_bytes
            charge(entry.path, charged_bytes, is_open=True)
            if user_of(entry.path) != demanded.uid:
                note_user(entry.path, demanded.uid)
            # Rewriting damaged blocks takes no additional space.
            is_all = charged_bytes >= size_of(entry.path).most_bytes
            wanted = max(size_bytes, wanted_bytes)
            granted_bytes = wanted if is_all else demanded.more_bytes

        with suppress(OSError):  # then it is not granted
            self._ledger.admit(demand, commit)
        return granted_bytes

    def release(self, entry: CacheEntry) -> None:
        os.close(entry.lock_fd)
        with suppress(OSError), self._ledger.locked():
            os.utime(entry.path / "account")
            settle(entry.path)

    # Making and removing.

    def _opened(self, name: str, uid: int) -> CacheEntry | None:
        """Open an entry, if there is one with an account."""
        path = self._folder / name
        with self._ledger.locked():
            try:
                fd = open_file(path / "account", os.O_RDONLY)
            except FileNotFoundError:
                self._ledger.take_away(name)  # if it exists
                return None
            try:
                with suppress(FileNotFoundError):  # incomplete: `create` completes it
                    settle(path)
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.utime(path / "account")
            except BaseException:
                os.close(fd)
                raise
            return CacheEntry(self, path, fd, uid)

    def _make(self, name: str, size: EntrySize, manifest_fd: int, uid: int) -> CacheEntry | None:
        """Make an entry; None if another process was first.

        Raises:
            NoSpace: there is no space.
        """
        path = self._folder / f"{NEW}{secrets.token_hex(8)}"
        made: list[CacheEntry] = []

        def commit(book: UsageBook, demand: SpaceDemand) -> None:
            path.mkdir(mode=0o700)
            fd = open_file(path / "account", os.O_RDONLY | os.O_CREAT | os.O_EXCL)
            made.append(CacheEntry(self, path, fd, uid))
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            note_user(path, uid)
            charge(path, demand.more_bytes, is_open=True)

        fixed = SpaceDemand(uid, size.fixed_bytes, size.fixed_bytes, 1)
        try:
            if not self._ledger.admit(lambda book: fixed, commit):
                raise NoSpace(
                    f"the block cache is full: no space for {size.fixed_bytes} more bytes"
                )
            (entry,) = made
            _fill(path, size, manifest_fd)
            with self._ledger.locked(), suppress(OSError):
                path.rename(self._folder / name)
                entry.path = self._folder / name
                return entry
        finally:
            if made and made[0].path == path:  # not yet renamed to its final name
                os.close(made[0].lock_fd)
                self.remove(path.name)
        return None

    def _filled(self, entry: CacheEntry, size: EntrySize, manifest_fd: int) -> CacheEntry:
        """Create an entry's missing files; returns the entry."""
        try:
            _fill(entry.path, size, manifest_fd)
        except BaseException:
            entry.close()
            raise
        return entry

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Create the folder if missing; turn disk errors of the block into Unavailable."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_alone(str(self._folder), uid=os.geteuid())
            yield
        except OSError as error:
            raise Unavailable(f"the block cache {self._folder} cannot be used: {error}") from error


def _fill(path: Path, size: EntrySize, manifest_fd: int) -> None:
    """Create an entry's missing files, and rewrite its manifest."""
    fd = open_file(path / "manifest", os.O_RDWR | os.O_CREAT)
    try:
        for at in range(0, size.manifest_bytes, _COPY_BYTES):
            data = os.pread(manifest_fd, _COPY_BYTES, at)
            if os.pread(fd, len(data), at) != data:
                pwrite_fully(fd, data, at)
        os.truncate(fd, size.manifest_bytes)
    finally:
        os.close(fd)
    lengths = {"claims": 0, "map": size.blocks * SUM_BYTES, "data": size.image_bytes}
    for name, size_bytes in lengths.items():
        fd = open_file(path / name, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(fd).st_size != size_bytes:
                os.truncate(fd, size_bytes)
        finally:
            os.close(fd)

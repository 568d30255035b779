"""The block cache's folder on a node: an entry for each image, and the room that they share.

    FOLDER/KEY/manifest    of the image
    FOLDER/KEY/data        sparse, as long as the image
    FOLDER/KEY/map         eight bytes for each block, see `bootseer.cache.blocks`
    FOLDER/KEY/claims      empty; who fetches a block has a lock on its byte
    FOLDER/.going-…        an entry that is being removed

All of it is root's alone. Whoever uses an entry has a shared lock on its map; who removes it needs
an exclusive one, so that nothing is removed that is in use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from bootseer.cache.blocks import SUM_BYTES, CachedBlocks
from bootseer.cache.keeper import BlockKeeper
from bootseer.core import image
from bootseer.core.image import ImageManifest
from bootseer.errors import Corrupt, NotFound, Unavailable
from bootseer.ownership import check_roots
from bootseer.units import MIB

_GOING = ".going-"
_STEP_BYTES = 64 * MIB
"""How much is written before the room is looked at again."""
_ATTEMPTS = 10
"""To open an entry that is being removed all the time."""


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """What is known of an entry from outside.

    Attributes:
        key: its name.
        size_bytes: of the image.
        cached_bytes: that it takes up on the disk.
        used_ns: last use, nanoseconds since 1970.
    """

    key: str
    size_bytes: int
    cached_bytes: int
    used_ns: int


class CacheEntry:
    """An image's entry, in use until it is closed.

    Attributes:
        manifest: what the image holds.
    """

    def __init__(self, path: Path, map_fd: int, manifest: ImageManifest) -> None:
        """Take over the map's descriptor, with its shared lock."""
        self.path = path
        self.manifest = manifest
        self._map_fd = map_fd

    def open_blocks(self) -> tuple[int, int]:
        """Open data and map for somebody to read them.

        Raises:
            Unavailable: they are not there any more, or cannot be opened.
        """
        data = _open(self.path / "data", os.O_RDONLY)
        try:
            return data, _open(self.path / "map", os.O_RDONLY)
        except BaseException:
            os.close(data)
            raise

    def blocks(self) -> CachedBlocks:
        """Open it for reading here."""
        return CachedBlocks(*self.open_blocks(), self.manifest)

    def keeper(self, has_room: Callable[[int], bool]) -> BlockKeeper:
        """Open it for writing.

        Args:
            has_room: see `BlockCache.room`.

        Raises:
            Unavailable: as for `open_blocks`.
        """
        with ExitStack() as opened:
            fds = []
            for name in ("data", "map", "claims"):
                fds.append(_open(self.path / name, os.O_RDWR))
                opened.callback(os.close, fds[-1])
            opened.pop_all()
        data_fd, map_fd, claims_fd = fds
        return BlockKeeper(data_fd, map_fd, claims_fd, self.manifest, has_room)

    def close(self) -> None:
        """Note the use, and let others remove it."""
        with suppress(OSError):
            os.utime(self.path)
        os.close(self._map_fd)


class BlockCache:
    """The cache of a node; root's.

    Concurrency: any number of processes.
    """

    def __init__(self, folder: Path, quota_bytes: int, free_share: float) -> None:
        """Name the folder; nothing is touched.

        Args:
            folder: on a file system of the node's own.
            quota_bytes: what all entries may take up together.
            free_share: of that file system, to be left free.
        """
        self._folder = folder
        self._quota_bytes = quota_bytes
        self._free_share = free_share

    def open(self, key: str, digest: str, manifest: bytes | None = None) -> CacheEntry:
        """Open an entry, and make it if the manifest is at hand.

        Args:
            key: see `entry_key`.
            digest: of the image.
            manifest: of the image, encoded.

        Raises:
            NotFound: there is none, and no manifest to make it.
            Corrupt: it is not the manifest of that image.
            Unavailable: the disk is full, or does not do what it should.
            Denied: the folder is not root's alone.
        """
        path = self._folder / key
        if manifest is not None:
            image.decode(manifest, "manifest", digest)
        try:
            self._folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            check_roots(str(self._folder.parent), str(self._folder))
            for _ in range(_ATTEMPTS):
                if manifest is not None:
                    _make(path, manifest)
                entry = _opened(path, digest)
                if entry is not None:
                    return entry
        except OSError as error:
            raise Unavailable(f"the block cache {self._folder} cannot be used: {error}") from error
        raise NotFound(f"{path} is not in the block cache")

    def room(self) -> Callable[[int], bool]:
        """Return what tells a keeper whether it may write so many bytes more.

        Entries that nobody uses make room, the least recently used first.
        """
        granted_bytes = 0

        def has_room(size_bytes: int) -> bool:
            nonlocal granted_bytes
            if granted_bytes < size_bytes:
                step_bytes = max(size_bytes, _STEP_BYTES)
                if self._fits(self.entries(), step_bytes):
                    granted_bytes = step_bytes
                elif self.make_room(size_bytes):
                    granted_bytes = size_bytes
                else:
                    return False
            granted_bytes -= size_bytes
            return True

        return has_room

    def make_room(self, size_bytes: int) -> bool:
        """Remove what was not used for longest, until so many bytes more have room.

        Returns:
            Whether they have.
        """
        left = sorted(self.entries(), key=lambda e: e.used_ns)
        in_use: list[EntryInfo] = []
        while not self._fits([*in_use, *left], size_bytes):
            if not left:
                return False
            oldest = left.pop(0)
            if not self.remove(oldest.key):
                in_use.append(oldest)
        return True

    def entries(self) -> list[EntryInfo]:
        """List what is there."""
        found = []
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        for name in names:
            if name.startswith("."):
                continue
            with suppress(OSError):  # removed meanwhile, or half made
                data = os.stat(self._folder / name / "data")
                used_ns = os.stat(self._folder / name).st_mtime_ns
                found.append(EntryInfo(name, data.st_size, data.st_blocks * 512, used_ns))
        return found

    def remove(self, key: str) -> bool:
        """Remove an entry that nobody uses; returns whether it is gone."""
        path = self._folder / key
        going = self._folder / f"{_GOING}{secrets.token_hex(8)}"
        try:
            fd = _lock_map(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            fd = -1  # was never finished
        except OSError:
            return False
        try:
            path.rename(going)
        except OSError:
            return False
        finally:
            if fd >= 0:
                os.close(fd)
        shutil.rmtree(going, ignore_errors=True)
        return True

    def sweep(self) -> None:
        """Remove what was being removed when somebody died."""
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if name.startswith(_GOING):
                    shutil.rmtree(self._folder / name, ignore_errors=True)

    def _fits(self, entries: list[EntryInfo], size_bytes: int) -> bool:
        """Whether so many bytes more have room beside these entries."""
        try:
            space = os.statvfs(self._folder)
        except OSError:
            return False
        free_bytes = space.f_bavail * space.f_frsize - self._free_share * (
            space.f_blocks * space.f_frsize
        )
        used_bytes = sum(e.cached_bytes for e in entries)
        return size_bytes <= min(free_bytes, self._quota_bytes - used_bytes)


def entry_key(store_url: str, digest: str, version: str) -> str:
    """Name the entry of an image that comes from a store.

    Of two stores that have the same image, each has an entry of its own: who may read it in the one
    need not be allowed to in the other, and shall not learn from the cache what is in it.

    Args:
        store_url: where the image is.
        digest: of the image.
        version: tells the object there from another under its name.
    """
    return hashlib.sha256(f"{store_url}\n{digest}\n{version}".encode()).hexdigest()


def _make(path: Path, manifest: bytes) -> None:
    """Make what is missing of an entry; it may be removed again before it is in use."""
    with suppress(FileNotFoundError):
        path.mkdir(mode=0o700, exist_ok=True)
        if not _holds(path / "manifest", manifest):
            partial = path / f"manifest-{secrets.token_hex(8)}"
            try:
                partial.write_bytes(manifest)
                partial.rename(path / "manifest")
            except OSError:
                partial.unlink(missing_ok=True)
                raise
        for name in ("claims", "map", "data"):  # an entry with data has a map
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            os.close(os.open(path / name, flags, 0o600))


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False


def _opened(path: Path, digest: str) -> CacheEntry | None:
    """Open an entry with a shared lock; None if it is not there, or not whole."""
    try:
        map_fd = _lock_map(path, fcntl.LOCK_SH)  # waits for a rename at most
    except FileNotFoundError:
        return None
    try:
        if os.fstat(map_fd).st_ino != os.stat(path / "map").st_ino:
            raise FileNotFoundError
        data = (path / "manifest").read_bytes()
        manifest = image.decode(data, str(path / "manifest"), digest)
        _complete(path, manifest)
        os.utime(path)
    except (FileNotFoundError, Corrupt):
        os.close(map_fd)
        return None
    except BaseException:
        os.close(map_fd)
        raise
    return CacheEntry(path, map_fd, manifest)


def _complete(path: Path, manifest: ImageManifest) -> None:
    """Give data and map their lengths; a crash may have come before."""
    for name, size_bytes in (("data", manifest.size_bytes), ("map", manifest.blocks * SUM_BYTES)):
        if (path / name).stat().st_size != size_bytes:
            os.truncate(path / name, size_bytes)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise Unavailable(f"the block cache's {path} cannot be opened: {error}") from error


def _lock_map(path: Path, how: int) -> int:
    fd = os.open(path / "map", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, how)
    except BaseException:
        os.close(fd)
        raise
    return fd

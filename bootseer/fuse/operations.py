"""The kernel's side of a view: pyfuse3's handlers, protocol only."""

from __future__ import annotations

import errno
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyfuse3

from bootseer.errors import BootseerError, Conflict, Denied, NoSpace, NotFound, OverQuota
from bootseer.fuse.errors import errno_of
from bootseer.fuse.view import NAME_BYTES, Attributes, View

_log = logging.getLogger(__name__)

# The first match counts; other errors become EIO. That includes Transient: programs do not expect
# EAGAIN of files, and Python's read() takes it for an empty answer.
_ERRNO: dict[type[BootseerError], int] = {
    NotFound: errno.ENOENT,
    Denied: errno.EACCES,
    Conflict: errno.ESTALE,
    OverQuota: errno.EDQUOT,
    NoSpace: errno.ENOSPC,
}
_BLOCK_BYTES = 512
_IO_BYTES = 1024 * 1024


@dataclass(slots=True)
class OpenDirectory:
    """An open directory.

    Attributes:
        inode: its number.
        entries: counted as lookups, so that the view keeps their numbers; None until read.
        is_fresh: no entry has been returned yet.
        changed: listed names that may have been removed or replaced.
    """

    inode: int
    entries: Sequence[tuple[bytes, Attributes]] | None = None
    is_fresh: bool = True
    changed: set[bytes] = field(default_factory=set)
    _names: frozenset[bytes] | None = None

    def fill(self, entries: Sequence[tuple[bytes, Attributes]]) -> None:
        self.entries, self.is_fresh, self._names = entries, True, None

    def note(self, name: bytes) -> None:
        """Record that a name has changed, if it is listed."""
        if self.entries is not None:
            if self._names is None:
                self._names = frozenset(name for name, _ in self.entries)
            if name not in self._names:
                return
        self.changed.add(name)


class ViewOperations(pyfuse3.Operations):
    """Answers the kernel's requests from a view.

    pyfuse3 answers other requests with ENOSYS, and the kernel stops sending them: flush and fsync
    then succeed, and extended attributes are unsupported.
    """

    # Only an NFS export of the mount looks up "." and "..".
    supports_dot_lookup = False

    def __init__(self, view: View, on_start: Callable[[], None]) -> None:
        """Adapt a view.

        Args:
            view: what to show.
            on_start: called on the kernel's first request, before it is answered.
        """
        super().__init__()
        self._view = view
        self._on_start = on_start
        self._lookups: Counter[int] = Counter()
        self._listings: dict[int, OpenDirectory] = {}
        self._listing_handles = itertools.count(1)

    def init(self) -> None:
        self._on_start()

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Return an entry's attributes; the kernel also caches its absence."""
        with as_errno():
            try:
                attributes = await self._view.lookup(parent_inode, checked(name))
            except (NotFound, FileNotFoundError):
                return self._entry(Attributes(inode=0, mode=0))
            return self._looked_up(attributes)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Reduce lookup counts, and notify the view of files that the kernel has dropped."""
        for inode, count in inode_list:
            self._forget(inode, count)

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        with as_errno():
            return self._entry(await self._view.attributes(inode))

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        with as_errno():
            return await self._view.link_target(inode)

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        with as_errno():
            opened = await self._view.open(inode, flags)
            return pyfuse3.FileInfo(fh=opened.handle, keep_cache=opened.keep_cache)

    async def read(self, fh: int, off: int, size: int) -> bytes | memoryview:  # type: ignore[override]
        """Return bytes of an open file, in any contiguous buffer."""
        with as_errno():
            return await self._view.read(fh, off, size)

    async def release(self, fh: int) -> None:
        with as_errno():
            await self._view.close(fh)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """Open a directory: list it once, for all calls of readdir."""
        with as_errno():
            handle = next(self._listing_handles)
            # Registered before it is filled: names may change meanwhile.
            listing = self._listings[handle] = OpenDirectory(inode)
            try:
                listing.fill(await self._listed(inode))
            except BaseException:
                del self._listings[handle]
                raise
            return handle

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Return as many entries as fit; each counts as a lookup.

        rewinddir(3) reads the directory again.
        """
        with as_errno():
            listing = self._listings[fh]
            if start_id == 0 and not listing.is_fresh:
                # Nothing changes meanwhile: the kernel holds the directory's lock.
                entries = await self._listed(listing.inode)
                self._unlist(listing)
                listing.changed.clear()
                listing.fill(entries)
            listing.is_fresh = False
            await self._hand_out(listing, start_id, token)

    async def _hand_out(
        self, listing: OpenDirectory, start_id: int, token: pyfuse3.ReaddirToken
    ) -> None:
        assert listing.entries is not None
        is_empty = True
        for index in range(start_id, len(listing.entries)):
            name, listed = listing.entries[index]
            try:
                attributes = await self._current(listing, name, listed)
            except (BootseerError, OSError):
                if is_empty:
                    raise
                break  # left to the next call: an answer has entries or an error
            if attributes is None:
                continue
            self._lookups[attributes.inode] += 1
            if not pyfuse3.readdir_reply(token, name, self._entry(attributes), index + 1):
                self._forget(attributes.inode, 1)
                break
            is_empty = False

    async def _current(
        self, listing: OpenDirectory, name: bytes, listed: Attributes
    ) -> Attributes | None:
        """Return an entry's present attributes, None to omit it; here it cannot have changed."""
        return listed

    async def releasedir(self, fh: int) -> None:
        self._unlist(self._listings.pop(fh))

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Return no free space: the view is read-only."""
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = _IO_BYTES
        data.f_namemax = NAME_BYTES
        return data

    async def _listed(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        entries = await self._view.entries(inode)
        for _, attributes in entries:
            self._lookups[attributes.inode] += 1
        return entries

    def _unlist(self, listing: OpenDirectory) -> None:
        for _, attributes in listing.entries or ():
            self._forget(attributes.inode, 1)

    def _looked_up(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        self._lookups[attributes.inode] += 1
        return self._entry(attributes)

    def _forget(self, inode: int, count: int) -> None:
        self._lookups[inode] -= count
        if self._lookups[inode] <= 0:
            del self._lookups[inode]
            self._view.forget(inode)

    def _entry(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = attributes.inode
        entry.entry_timeout = entry.attr_timeout = self._view.valid_s
        entry.st_mode = attributes.mode
        entry.st_nlink = attributes.links
        entry.st_uid = attributes.uid
        entry.st_gid = attributes.gid
        entry.st_size = attributes.size_bytes
        entry.st_blksize = _IO_BYTES
        entry.st_blocks = -(-attributes.size_bytes // _BLOCK_BYTES)
        entry.st_atime_ns = entry.st_mtime_ns = attributes.mtime_ns
        entry.st_ctime_ns = attributes.ctime_ns
        return entry


def checked(name: bytes) -> bytes:
    """Return a name, or raise if it is too long: the kernel allows more than 255 bytes."""
    if len(name) > NAME_BYTES:
        raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
    return name


@contextmanager
def as_errno(conflict: int = errno.ESTALE) -> Iterator[None]:
    """Convert every error to `pyfuse3.FUSEError`.

    Any other exception of a handler would end the mount.

    Args:
        conflict: what a `Conflict` becomes.
    """
    try:
        yield
    except pyfuse3.FUSEError:
        raise
    except BootseerError as error:
        code = next((c for kind, c in _ERRNO.items() if isinstance(error, kind)), errno.EIO)
        if code == errno.EIO:
            _log.error("%s", error)
        raise pyfuse3.FUSEError(conflict if code == errno.ESTALE else code) from error
    except OSError as error:
        raise pyfuse3.FUSEError(errno_of(error)) from error
    except Exception as error:
        _log.exception("a view failed")
        raise pyfuse3.FUSEError(errno.EIO) from error

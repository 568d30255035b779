"""The kernel's side of a view: pyfuse3's handlers, protocol only."""

from __future__ import annotations

import errno
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyfuse3

from bootseer.errors import BootseerError, Conflict, Corrupt, Denied, NotFound, Transient
from bootseer.fuse.view import Attributes, View

_log = logging.getLogger(__name__)

_ERRNO: dict[type[BootseerError], int] = {
    NotFound: errno.ENOENT,
    Denied: errno.EACCES,
    Conflict: errno.ESTALE,
    Corrupt: errno.EIO,
    Transient: errno.EAGAIN,
}
_BLOCK_BYTES = 512
_IO_BYTES = 1024 * 1024


class ViewOperations(pyfuse3.Operations):
    """Answers the kernel's requests out of a view; the only place where errors become an errno."""

    # Only an NFS export of the mount would ask for "." and "..".
    supports_dot_lookup = False

    def __init__(self, view: View, on_start: Callable[[], None]) -> None:
        """Adapt a view.

        Args:
            view: what to show.
            on_start: called when the kernel has said its first word, before it is answered.
        """
        super().__init__()
        self._view = view
        self._on_start = on_start
        self._lookups: Counter[int] = Counter()
        self._listings: dict[int, Sequence[tuple[bytes, Attributes]]] = {}
        self._listing_handles = itertools.count(1)

    def init(self) -> None:
        """Learn that the kernel has opened the connection."""
        self._on_start()

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Return an entry's attributes; that there is none is remembered by the kernel too."""
        with _as_errno():
            try:
                attributes = await self._view.lookup(parent_inode, name)
            except (NotFound, FileNotFoundError):
                return self._entry(Attributes(inode=0, mode=0))
            self._lookups[attributes.inode] += 1
            return self._entry(attributes)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Count lookups down, and tell the view of every file that the kernel has dropped."""
        for inode, count in inode_list:
            self._lookups[inode] -= count
            if self._lookups[inode] <= 0:
                del self._lookups[inode]
                self._view.forget(inode)

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Return a file's attributes."""
        with _as_errno():
            return self._entry(await self._view.attributes(inode))

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """Return a symbolic link's text."""
        with _as_errno():
            return await self._view.link_target(inode)

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a file; the mount is read-only, so the flags cannot ask for more."""
        with _as_errno():
            opened = await self._view.open(inode)
            return pyfuse3.FileInfo(fh=opened.handle, keep_cache=opened.keep_cache)

    async def read(self, fh: int, off: int, size: int) -> bytes | memoryview:  # type: ignore[override]
        """Return bytes of an open file; any contiguous buffer will do for pyfuse3."""
        with _as_errno():
            return await self._view.read(fh, off, size)

    async def release(self, fh: int) -> None:
        """Close a file."""
        with _as_errno():
            await self._view.close(fh)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """List a directory once; what follows reads this listing."""
        with _as_errno():
            listing = await self._view.entries(inode)
            handle = next(self._listing_handles)
            self._listings[handle] = listing
            return handle

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Hand out as much of the listing as fits; every entry taken counts as a lookup."""
        with _as_errno():
            listing = self._listings[fh]
            for index in range(start_id, len(listing)):
                name, attributes = listing[index]
                if not pyfuse3.readdir_reply(token, name, self._entry(attributes), index + 1):
                    break
                self._lookups[attributes.inode] += 1

    async def releasedir(self, fh: int) -> None:
        """Drop a listing."""
        self._listings.pop(fh, None)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Say that nothing can be written here."""
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = _IO_BYTES
        data.f_namemax = 255
        return data

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


@contextmanager
def _as_errno() -> Iterator[None]:
    """Turn every error into the one kind that pyfuse3 lets a handler raise.

    Any other would end the mount under its users' feet.
    """
    try:
        yield
    except pyfuse3.FUSEError:
        raise
    except BootseerError as error:
        code = next((c for kind, c in _ERRNO.items() if isinstance(error, kind)), errno.EIO)
        if code == errno.EIO:
            _log.error("%s", error)
        raise pyfuse3.FUSEError(code) from error
    except OSError as error:
        raise pyfuse3.FUSEError(error.errno or errno.EIO) from error
    except Exception as error:
        _log.exception("a view failed")
        raise pyfuse3.FUSEError(errno.EIO) from error

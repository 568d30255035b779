"""The kernel's side of a writable view."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pyfuse3

from bootseer.errors import BootseerError, NotFound
from bootseer.fuse.operations import OpenDirectory, ViewOperations, as_errno, checked
from bootseer.fuse.view import NAME_BYTES, RENAME_NOREPLACE, Attributes, WritableView

_BLOCK_BYTES = 4096
_SECURITY = b"security."


class WritableOperations(ViewOperations):
    """Answers the kernel's requests from a writable view.

    fsync of a directory and setting extended attributes return ENOSYS: the kernel then lets the
    first succeed, answers ENOTSUP to the second, and stops sending either.
    """

    _view: WritableView

    def __init__(self, view: WritableView, on_start: Callable[[], None]) -> None:
        """Adapt a view; the arguments are those of `ViewOperations`."""
        super().__init__(view, on_start)

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        with as_errno():
            opened = await self._view.open(inode, flags, ctx.pid)
            return pyfuse3.FileInfo(fh=opened.handle, keep_cache=opened.keep_cache)

    async def _current(
        self, listing: OpenDirectory, name: bytes, listed: Attributes
    ) -> Attributes | None:
        """Return an entry's present attributes, None if it is gone.

        With attributes from the time of the listing, the kernel would append at an old length and
        overwrite data, and keep removed or replaced names.
        """
        if name in listing.changed:
            try:
                return await self._view.lookup(listing.inode, name)
            except (NotFound, FileNotFoundError):
                return None
        with suppress(BootseerError, OSError):
            return await self._view.attributes(listed.inode)
        return listed

    @contextmanager
    def _changing(self, *names: tuple[int, bytes]) -> Iterator[None]:
        """Mark names (directory, name) as changed in open listings, even if the block fails."""
        try:
            yield
        finally:
            for listing in self._listings.values():
                for folder, name in names:
                    if listing.inode == folder:
                        listing.note(name)

    async def create(
        self,
        parent_inode: int,
        name: bytes,
        mode: int,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        with as_errno(conflict=errno.EEXIST), self._changing((parent_inode, name)):
            attributes, opened = await self._view.create(
                parent_inode, checked(name), mode & 0o7777, flags, ctx.pid
            )
            info = pyfuse3.FileInfo(fh=opened.handle, keep_cache=opened.keep_cache)
            return info, self._looked_up(attributes)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        with as_errno():
            return await self._view.write(fh, off, buf)

    async def flush(self, fh: int) -> None:
        with as_errno():
            await self._view.flush(fh)

    async def fsync(self, fh: int, datasync: bool) -> None:
        with as_errno():
            await self._view.sync(fh)

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Truncate a file, then change other attributes."""
        with as_errno():
            if fields.update_size:
                attributes = await self._view.truncate(inode, fh, attr.st_size)
            others = {
                "mode": attr.st_mode & 0o7777 if fields.update_mode else None,
                "mtime_ns": attr.st_mtime_ns if fields.update_mtime else None,
                "uid": attr.st_uid if fields.update_uid else None,
                "gid": attr.st_gid if fields.update_gid else None,
            }
            if not fields.update_size or any(value is not None for value in others.values()):
                attributes = await self._view.change(inode, **others)
            return self._entry(attributes)

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        with as_errno(conflict=errno.EEXIST), self._changing((parent_inode, name)):
            return self._looked_up(
                await self._view.make_folder(parent_inode, checked(name), mode & 0o7777)
            )

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        with as_errno(), self._changing((parent_inode, name)):
            await self._view.remove(parent_inode, checked(name))

    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        with as_errno(), self._changing((parent_inode, name)):
            await self._view.remove_folder(parent_inode, checked(name))

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """Rename a file or directory; RENAME_EXCHANGE is refused."""
        with as_errno(conflict=errno.EEXIST):
            if flags & ~RENAME_NOREPLACE:
                raise pyfuse3.FUSEError(errno.EINVAL)
            old, new = (parent_inode_old, checked(name_old)), (parent_inode_new, checked(name_new))
            with self._changing(old, new):
                await self._view.rename(*old, *new, flags)

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        raise pyfuse3.FUSEError(errno.EPERM)

    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        raise pyfuse3.FUSEError(errno.EPERM)

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        raise pyfuse3.FUSEError(errno.EPERM)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        with as_errno():
            space = await self._view.space()
            data = pyfuse3.StatvfsData()
            data.f_bsize = data.f_frsize = _BLOCK_BYTES
            data.f_blocks = space.total_bytes // _BLOCK_BYTES
            data.f_bfree = data.f_bavail = space.free_bytes // _BLOCK_BYTES
            data.f_files = space.total_files
            data.f_ffree = data.f_favail = space.free_files
            data.f_namemax = NAME_BYTES
            return data

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        with as_errno():
            # Before each write(2) the kernel gets security.capability, which writing clears.
            if name.startswith(_SECURITY):
                raise pyfuse3.FUSEError(errno.ENODATA)
            return await self._view.extended(inode, name)

    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        with as_errno():
            return await self._view.extended_names(inode)

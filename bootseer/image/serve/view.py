"""What a mount of an image shows: a folder with one file, the image."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from itertools import count

from bootseer.errors import BootseerError
from bootseer.fuse.view import ROOT_INODE, Attributes, JoinedAnswer, Kernel, OpenedFile
from bootseer.image.library.catalog import FILE_NAME
from bootseer.image.serve.image_blocks import ImageBlocks
from bootseer.image.serve.touch_log import TouchLog
from bootseer.posix import os_error

_NAME = FILE_NAME.encode()
_FILE_INODE = ROOT_INODE + 1
_NEVER_S = 365 * 86400.0


class MissingImage:
    """An empty folder, in place of an image that cannot be served: looking it up gives ENOENT."""

    valid_s = 0.0

    def __init__(self, uid: int, gid: int) -> None:
        self._root = Attributes(ROOT_INODE, stat.S_IFDIR | 0o555, links=2, uid=uid, gid=gid)

    def attach(self, kernel: Kernel) -> None:
        """Do nothing: the folder does not change."""

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        raise os_error(errno.ENOENT)

    async def attributes(self, inode: int) -> Attributes:
        return self._root

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        return []

    async def link_target(self, inode: int) -> bytes:
        raise os_error(errno.ENOENT)

    async def open(self, inode: int, flags: int) -> OpenedFile:
        raise os_error(errno.ENOENT)

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes:
        raise os_error(errno.ENOENT)

    async def close(self, handle: int) -> None:
        """Do nothing: there are no files."""

    def forget(self, inode: int) -> None:
        """Do nothing: the folder stays."""


class ImageView:
    """A served image, and a record of what is read of it.

    O_NOATIME marks read-ahead: reads of a file that was opened with it give way to all others, and
    they are not recorded.

    Attributes:
        touched: the first touches of all reads but read-ahead.
    """

    valid_s = _NEVER_S

    def __init__(
        self,
        blocks: ImageBlocks,
        size_bytes: int,
        mtime_ns: int,
        uid: int,
        gid: int,
        on_error: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Show an image.

        Args:
            blocks: of the image.
            size_bytes: length of the image.
            mtime_ns: its last change, in nanoseconds since the epoch.
            uid, gid: owner and group of folder and file.
            on_error: called with the reason when a read fails.
        """
        self.touched = TouchLog()
        self._blocks = blocks
        self._on_error = on_error
        self._handles: dict[int, bool] = {}  # whether it is for read-ahead
        self._next_handle = count(1)
        common = {"mtime_ns": mtime_ns, "ctime_ns": mtime_ns, "uid": uid, "gid": gid}
        self._root = Attributes(ROOT_INODE, stat.S_IFDIR | 0o555, links=2, **common)
        self._file = Attributes(_FILE_INODE, stat.S_IFREG | 0o444, size_bytes, **common)

    def attach(self, kernel: Kernel) -> None:
        """Record also the reads that the kernel's side answers without this view."""
        self.touched.attach(kernel.reads)

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of the file; there are no other names."""
        if parent != ROOT_INODE or name != _NAME:
            raise os_error(errno.ENOENT)
        return self._file

    async def attributes(self, inode: int) -> Attributes:
        return self._root if inode == ROOT_INODE else self._file

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        return [(_NAME, self._file)]

    async def link_target(self, inode: int) -> bytes:
        raise os_error(errno.EINVAL)

    async def open(self, inode: int, flags: int) -> OpenedFile:
        handle = next(self._next_handle)
        self._handles[handle] = bool(flags & os.O_NOATIME)
        return OpenedFile(handle, keep_cache=True)

    async def read(self, handle: int, offset: int, size_bytes: int) -> memoryview:
        """Return bytes of the image.

        Raises:
            OSError: EIO for every error: to a program, an open file exists and may be read.
        """
        is_ahead = self._handles[handle]
        if not is_ahead:
            self.touched.note(offset, min(offset + size_bytes, self._file.size_bytes))
        try:
            return await self._blocks.read(offset, size_bytes, is_urgent=not is_ahead)
        except BootseerError as error:
            raise self._failed(error) from error

    def join(self, handle: int, offset: int, size_bytes: int, answer: JoinedAnswer) -> bool:
        """Have a read answered along with one that is under way; see `JoinableView.join`."""
        is_ahead = self._handles[handle]

        def found(data: memoryview | BootseerError | None) -> None:
            answer(self._failed(data) if isinstance(data, BootseerError) else data)

        if not self._blocks.join(offset, size_bytes, found, is_urgent=not is_ahead):
            return False
        if not is_ahead:
            self.touched.note(offset, min(offset + size_bytes, self._file.size_bytes))
        return True

    def _failed(self, error: BootseerError) -> OSError:
        self._on_error(str(error))
        return os_error(errno.EIO)

    async def close(self, handle: int) -> None:
        del self._handles[handle]

    def forget(self, inode: int) -> None:
        """Do nothing: folder and file keep their numbers."""

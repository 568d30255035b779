"""The interface of a mount's content: a tree of numbered files, independent of FUSE.

`bootseer.fuse.operations` translates the kernel's protocol to calls of a view. Tests call a view
directly, without a mount.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

ROOT_INODE = 1
NAME_BYTES = 255
"""Length of the longest name that reaches a view."""
RENAME_NOREPLACE = 1


@dataclass(frozen=True, slots=True)
class Attributes:
    """A file's attributes, as for stat.

    Attributes:
        inode: the file's number in its view.
        mode: type and permission bits, as in ``st_mode``.
        size_bytes: length of the content.
        mtime_ns: last change of the content, nanoseconds since 1970.
        ctime_ns: last change of content or attributes.
        uid: owner.
        gid: group.
        links: number of the file's names.
    """

    inode: int
    mode: int
    size_bytes: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    uid: int = 0
    gid: int = 0
    links: int = 1


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """An open file.

    Attributes:
        handle: number for `View.read` and `View.close`.
        keep_cache: the kernel's cached pages of the file are still valid.
    """

    handle: int
    keep_cache: bool


@dataclass(frozen=True, slots=True)
class FilesystemSpace:
    """A file system's space, as for statfs.

    Attributes:
        total_bytes, free_bytes: space in total, and space that the user may still write.
        total_files, free_files: limit of files, and files that may still be created.
    """

    total_bytes: int
    free_bytes: int
    total_files: int = 0
    free_files: int = 0


class Kernel(Protocol):
    """Notifications from a view to the kernel.

    Calls for files that the kernel does not know have no effect.

    Raises: OSError from the kernel; Closed once the mount is ending.

    Cancellation: a call in progress cannot be cancelled.
    """

    async def store(self, inode: int, offset: int, data: bytes | memoryview) -> bool:
        """Put bytes of a file into the page cache, so that reading them needs no request.

        Pass only data that can no longer change: cached pages are overwritten, even if modified
        through a mapping. Pass nothing beyond the file's end: the kernel would extend the file,
        and later drop all of its pages. Pass whole pages, or data up to the end of the file:
        the kernel does not keep parts of new pages. Pass 1 MiB to 8 MiB per call; 2 GiB fail.

        It waits for pages that a read in progress will fill: never await it in that `View.read`.

        Returns:
            Whether the kernel knows the file and has stored the bytes.
        """

    async def forget_data(self, inode: int) -> None:
        """Drop what the kernel has cached of a file: its pages and attributes.

        Waits for reads in progress, as `store` does.
        """

    def forget_entry(self, parent: int, name: bytes) -> None:
        """Drop a name from the kernel's cache, asynchronously."""

    def reads(self, *, go_on: bool) -> list[tuple[int, int, int]]:
        """Return reads that bypassed `View.read`, since the last call.

        Args:
            go_on: continue recording.

        Returns:
            Start, end and time of each read, on the monotonic clock in nanoseconds.
        """


class View(Protocol):
    """A read-only tree.

    Errors are `BootseerError` or OSError, which the caller converts to an errno. A returned number
    is valid until `forget`, and not reused before. Do not await between choosing a number and
    returning it: `forget` might be called in between.

    The kernel has checked modes and owners (see `MountOptions.checks_modes`), so a view need not
    check permissions.

    Concurrency: any number of concurrent calls, all in one trio thread. Calls may be cancelled when
    the mount ends.
    """

    valid_s: float
    """Seconds for which the kernel may cache names and attributes."""

    def attach(self, kernel: Kernel) -> None:
        """Set the link to the kernel; called once, before any other call."""

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of the entry `name` of a directory."""

    async def attributes(self, inode: int) -> Attributes:
        """Return a file's present attributes, even if its name was removed.

        If size or mtime have changed, the kernel drops its cached content. For a writable view it
        is called for each entry of a listing.
        """

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        """Return a directory's entries, without ``.`` and ``..``."""

    async def link_target(self, inode: int) -> bytes:
        """Return a symbolic link's target."""

    async def open(self, inode: int, flags: int) -> OpenedFile:
        """Open a file.

        Args:
            inode: number of the file; never of a directory.
            flags: as for open(2): O_ACCMODE, and in a `WritableView` O_TRUNC, O_APPEND, O_DIRECT
                and O_SYNC. O_CREAT and O_EXCL never: such an open is a lookup or a create.
        """

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """Return bytes from `offset` on; fewer than ``size_bytes`` only at the end of the file."""

    async def close(self, handle: int) -> None:
        """Release an open file; the last call with its handle.

        No process waits for it, and errors are not reported.
        """

    def forget(self, inode: int) -> None:
        """Handle that the kernel has dropped the file; it will look it up again if needed.

        A file without a name can be freed: it is not open either.
        """


JoinedAnswer: TypeAlias = Callable[[bytes | memoryview | OSError | None], None]
"""Takes the answer of a joined read: its bytes, its error, or None to have it read by itself."""


@runtime_checkable
class JoinableView(View, Protocol):
    """A tree whose reads may wait for one that is under way: most are answered without a task."""

    def join(self, handle: int, offset: int, size_bytes: int, answer: JoinedAnswer) -> bool:
        """Have a read answered along with one that is under way.

        Args:
            handle, offset, size_bytes: as for `read`.
            answer: called once, from any task, maybe before this returns.

        Returns:
            Whether it is; if not, call `read`.
        """


@runtime_checkable
class WritableView(View, Protocol):
    """A tree that can be changed.

    There are files and directories. Making links, pipes, sockets and devices is refused with EPERM
    and setting an extended attribute with ENOTSUP, and none of it reaches the view.

    The kernel checks whether names exist and are directories, but its cache may be outdated for
    `valid_s` if other nodes change the tree. So a view checks again and raises EEXIST, ENOENT,
    ENOTDIR, EISDIR, ENOTEMPTY and EXDEV, and also ENOSPC and EDQUOT (from `NoSpace` and
    `OverQuota`) and EROFS. A `Conflict` becomes EEXIST where a name is created, ESTALE
    elsewhere. Names must be durable when the call returns, as fsync of a directory is not
    passed on.

    Writes are passed on immediately, in pieces of at most 1 MiB, mostly cut at multiples of 4 KiB
    (untouched memory of the caller comes in two pieces per page). Writes to one file are
    sequential, in the order of the write(2) calls, except with O_DIRECT and for pages of a shared
    mapping. Reads and writes of one file may overlap.

    O_APPEND
        The kernel sets the offset to the end of the file as it knows it. The view must ignore the
        flag: any handle, also this one, may write back pages of a mapping at their own offsets.
    O_TRUNC
        Passed to `open` and `create`, which truncate the file; `truncate` is not called.
        `OpenedFile.keep_cache` does not matter then.
    O_EXCL
        Passed to `create` only: the file must not exist. Without it, an existing file is opened,
        and truncated with O_TRUNC.
    Reading what is being written
        The kernel reads with handles opened for reading, while another handle of the file may be
        O_WRONLY. After a write it gets the attributes before it reads; if mtime has changed, it
        does not use the page cache.
    A file renamed over, or removed, while it is open
        Its number and handles stay valid, for reading, writing, attributes and truncating, until
        they are closed and the number is forgotten. Another file at the same name gets another
        number.
    close(2)
        Each calls `flush`, for every copy of a descriptor in every process; `close` follows some
        time after the last. A killed process closes its files, too, and its exit waits for `flush`.
        The kernel does not report which process closes.
    """

    async def open(self, inode: int, flags: int, thread: int = 0) -> OpenedFile:
        """Open a file; see `View.open`.

        Args:
            inode: of the file.
            flags: as for open(2).
            thread: id of the opening thread, which waits; 0 if it is in another pid namespace than
                the mount.
        """

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, thread: int = 0
    ) -> tuple[Attributes, OpenedFile]:
        """Create a regular file and open it.

        Args:
            parent: the directory.
            name: the file's name.
            mode: permission bits, with the umask applied.
            flags: as for `open`; O_EXCL: fail with EEXIST if it exists.
            thread: as for `open`.
        """

    async def write(self, handle: int, offset: int, data: bytes) -> int:
        """Write bytes; writing beyond the end leaves zeros in between.

        Returns:
            The number of bytes written; a lower number ends the caller's write(2) there.
        """

    async def flush(self, handle: int) -> None:
        """Complete the writes of a descriptor being closed; errors are returned by close(2)."""

    async def sync(self, handle: int) -> None:
        """Make written data durable (fsync, fdatasync)."""

    async def truncate(self, inode: int, handle: int | None, size_bytes: int) -> Attributes:
        """Truncate a file, or extend it with zeros.

        Args:
            inode: of the file.
            handle: handle of the file for ftruncate(2); None for truncate(2).
            size_bytes: the new length.
        """

    async def change(
        self,
        inode: int,
        mode: int | None = None,
        mtime_ns: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> Attributes:
        """Change attributes of a file or directory; None leaves one as it is.

        Access times are not kept: setting one alone calls this without changes.
        """

    async def make_folder(self, parent: int, name: bytes, mode: int) -> Attributes:
        """Create a directory with these permission bits."""

    async def remove(self, parent: int, name: bytes) -> None:
        """Remove the name of a file; open handles stay valid."""

    async def remove_folder(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """Rename a file or a directory atomically.

        Args:
            parent, name: the old name.
            new_parent, new_name: the new name; a file replaces an existing file, a directory an
                empty directory. Renaming a file to itself does nothing.
            flags: 0, or `RENAME_NOREPLACE` to replace nothing. RENAME_EXCHANGE is refused before.
        """

    async def space(self) -> FilesystemSpace:
        """Return the total and free space."""

    async def extended(self, inode: int, name: bytes) -> bytes:
        """Return an extended attribute; ENODATA if the file does not have it.

        Names ``security.…`` are not passed on: the kernel gets one before each write(2).
        """

    async def extended_names(self, inode: int) -> Sequence[bytes]:
        """Return the names of a file's extended attributes."""

"""What a mount shows: a tree of numbered files, known to nothing of FUSE.

A view answers the questions of `bootseer.fuse.operations`, which speaks the kernel's protocol for
it. Tests talk to a view directly, without a mount.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

ROOT_INODE = 1
NAME_BYTES = 255
"""The longest name; longer ones never reach a view."""
RENAME_NOREPLACE = 1


@dataclass(frozen=True, slots=True)
class Attributes:
    """What stat shows of a file.

    Attributes:
        inode: the file's number in its view.
        mode: type and permission bits, as in ``st_mode``.
        size_bytes: the length of what can be read.
        mtime_ns: last change of the content, nanoseconds since 1970.
        ctime_ns: last change of content or attributes.
        uid: owner.
        gid: group.
        links: names the file has.
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
        handle: names it in `View.read` and `View.close`.
        keep_cache: what the kernel has cached of the file is still what the file holds.
    """

    handle: int
    keep_cache: bool


@dataclass(frozen=True, slots=True)
class FilesystemSpace:
    """What statfs shows.

    Attributes:
        total_bytes, free_bytes: of the space; free is what the user may still write.
        total_files, free_files: how many files there can be, and how many more.
    """

    total_bytes: int
    free_bytes: int
    total_files: int = 0
    free_files: int = 0


class Kernel(Protocol):
    """The way back: what a view may tell the kernel without having been asked.

    Each call is of use only for files that the kernel knows, and does nothing for others.

    Raises: OSError, as the kernel says; Closed, once the mount is ending.

    Cancellation: a call in progress cannot be cancelled, for it may sit in a system call.
    """

    async def store(self, inode: int, offset: int, data: bytes | memoryview) -> bool:
        """Put bytes of a file into the page cache, so that reading them asks nobody.

        Give it only what can no longer change: pages that it has are written over, even ones that
        were written to through a mapping. Nothing beyond the file's end, for the kernel takes that
        for a longer file, and drops all of its pages when it learns better. Whole pages: multiples
        of 4,096 bytes, or up to the end of the file; of a page that it has not, it keeps no part.
        From 1 MiB to 8 MiB at once; 2 GiB are too many.

        It waits for pages that a read in progress is to fill: never await it in the `View.read`
        that would fill them.

        Returns:
            Whether the kernel knows the file, and so has taken the bytes.
        """
        ...

    async def forget_data(self, inode: int) -> None:
        """Drop what the kernel has cached of a file: its pages and attributes.

        Waits for reads in progress, as `store` does.
        """
        ...

    def forget_entry(self, parent: int, name: bytes) -> None:
        """Have the kernel ask again for a name; takes effect soon after, whatever is going on."""
        ...

    def reads(self, *, go_on: bool) -> list[tuple[int, int, int]]:
        """Tell what was read of the mount's file without `View.read`, and not told before.

        Args:
            go_on: with remembering it.

        Returns:
            Where each read began and ended, and when it was on the monotonic clock, in nanoseconds.
        """
        ...


class View(Protocol):
    """A read-only tree.

    Errors are `BootseerError` or OSError; the caller turns them into an errno. A number handed out
    stays valid until `forget`, and is never given to another file before that. Nothing may be
    awaited between settling on a number and returning it: `forget` might come in between.

    Unless the mount says otherwise (`MountOptions.checks_modes`), the kernel has compared modes and
    owners with who asks; a view refuses what it cannot do, not who may not do it.

    Concurrency: any number of calls may be in progress at once, all in one trio thread. A call may
    be cancelled when the mount ends.
    """

    valid_s: float
    """How long the kernel may answer from what it was told of names and attributes, in seconds."""

    def attach(self, kernel: Kernel) -> None:
        """Learn the way back to the kernel; called once, before anything is asked."""
        ...

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of the entry `name` of a directory."""
        ...

    async def attributes(self, inode: int) -> Attributes:
        """Return a file's attributes as they are now, also when it has no name any more.

        When size or mtime are not what the kernel has been told before, it drops what it has cached
        of the content. Of a writable view, asked for each entry of a listing, when the kernel takes
        it.
        """
        ...

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        """Return a directory's entries, without ``.`` and ``..``."""
        ...

    async def link_target(self, inode: int) -> bytes:
        """Return what a symbolic link says."""
        ...

    async def open(self, inode: int, flags: int) -> OpenedFile:
        """Open a file.

        Args:
            inode: of the file; never of a directory.
            flags: as for open(2): O_ACCMODE, and in a `WritableView` O_TRUNC, O_APPEND, O_DIRECT
                and O_SYNC. O_CREAT and O_EXCL never: such an open is a lookup or a create.
        """
        ...

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """Return the bytes from `offset` on; fewer than asked for at the end of the file only."""
        ...

    async def close(self, handle: int) -> None:
        """Release an open file, after everything else that is asked of the handle.

        Nobody waits for it and nobody learns of an error.
        """
        ...

    def forget(self, inode: int) -> None:
        """Learn that the kernel has dropped the file; it will look it up again.

        Of a file that has no name any more it means the end: it is not open either.
        """
        ...


@runtime_checkable
class WritableView(View, Protocol):
    """A tree that can be changed.

    There are files and directories. Making links, pipes, sockets and devices is refused with EPERM
    and setting an extended attribute with ENOTSUP, and none of it reaches the view.

    What the kernel knows, it checks before it asks: that a name is free or taken, a directory or
    not. It may be mistaken for `valid_s`, when others change the same tree, so a view checks again:
    EEXIST, ENOENT, ENOTDIR, EISDIR, ENOTEMPTY and EXDEV are its own to raise, and so are ENOSPC
    and EDQUOT (`NoSpace` and `OverQuota` become these) and EROFS. A `Conflict` becomes EEXIST where
    a name is to be made, ESTALE elsewhere. Names are durable when the call returns, for fsync of a
    directory is not asked.

    Writes are passed through at once, in pieces of at most 1 MiB, mostly cut at multiples of 4 KiB
    (a caller's memory that has never been touched comes in two pieces a page). Those of one file
    come one after the other, in the order of the write(2) calls; only O_DIRECT and pages of a
    shared mapping may come in any order. Reads and writes of one file may overlap.

    O_APPEND
        The kernel puts the offset where it believes the end of the file to be. The flag is not for
        the view: pages of a mapping are written back by any handle, this one too, where they are.
    O_TRUNC
        Comes with `open` (and `create`), which returns when the file is empty; `truncate` is not
        called. `OpenedFile.keep_cache` does not matter then.
    O_EXCL
        Comes with `create` only: the file must not be there. Without it, a file that turns out to
        be there is opened, and truncated if O_TRUNC says so.
    Reading what is being written
        The kernel reads with a handle that was opened for reading, so never with one that is
        O_WRONLY; but another handle of the same file may be. After a write it asks for the
        attributes before it reads; if mtime has moved on, nothing is read from the page cache, but
        everything asked for.
    A file renamed over, or removed, while it is open
        Its number and handles stay good, for reading, writing, attributes and truncating, until
        they are closed and the number is forgotten. Another file at the same name gets another
        number.
    close(2)
        Each calls `flush`, for every copy of a descriptor and in every process that has one; the
        last is followed by `close` some time later. A process that is killed closes its files, too,
        and waits in its exit for `flush`. The kernel does not say who closes.
    """

    async def open(self, inode: int, flags: int, thread: int = 0) -> OpenedFile:
        """Open a file; see `View.open`.

        Args:
            inode: of the file.
            flags: as for open(2).
            thread: the kernel's number of the thread that opens it, and waits; 0 if it is in
                another pid namespace than the mount.
        """
        ...

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, thread: int = 0
    ) -> tuple[Attributes, OpenedFile]:
        """Make a regular file and open it in one step.

        Args:
            parent: the directory.
            name: of the file in it.
            mode: permission bits, the process's umask taken off.
            flags: as for `open`; O_EXCL: fail with EEXIST if it is there.
            thread: as for `open`.
        """
        ...

    async def write(self, handle: int, offset: int, data: bytes) -> int:
        """Write, beyond the end too, which leaves zeros in between.

        Returns:
            How many bytes were taken; fewer than given end the caller's write(2) there.
        """
        ...

    async def flush(self, handle: int) -> None:
        """Finish what a descriptor being closed has written; an error is what close(2) returns."""
        ...

    async def sync(self, handle: int) -> None:
        """Make what was written durable (fsync, fdatasync)."""
        ...

    async def truncate(self, inode: int, handle: int | None, size_bytes: int) -> Attributes:
        """Cut a file, or grow it by zeros.

        Args:
            inode: of the file.
            handle: with which ftruncate(2) was called; None for truncate(2).
            size_bytes: the new length.
        """
        ...

    async def change(
        self,
        inode: int,
        mode: int | None = None,
        mtime_ns: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> Attributes:
        """Change attributes of a file or directory; None leaves one as it is.

        Times of access are not kept: setting one alone calls this with nothing to change.
        """
        ...

    async def make_folder(self, parent: int, name: bytes, mode: int) -> Attributes:
        """Make a directory with these permission bits."""
        ...

    async def remove(self, parent: int, name: bytes) -> None:
        """Remove the name of a file; who has it open keeps it."""
        ...

    async def remove_folder(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        ...

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """Rename a file or a directory, at once: at no time is there neither or both.

        Args:
            parent, name: what is there now.
            new_parent, new_name: what it is to be; a file replaces a file there, a directory an
                empty directory. Renaming a file to what is the same file does nothing.
            flags: 0, or `RENAME_NOREPLACE`: nothing may be replaced. Exchanging is refused before
                it comes here.
        """
        ...

    async def space(self) -> FilesystemSpace:
        """Return how much space there is."""
        ...

    async def extended(self, inode: int, name: bytes) -> bytes:
        """Return an extended attribute; ENODATA if the file has none of the name.

        The kernel asks for none of the name ``security.…`` here: it would before each write(2).
        """
        ...

    async def extended_names(self, inode: int) -> Sequence[bytes]:
        """Return the names of a file's extended attributes."""
        ...

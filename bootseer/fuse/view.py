"""What a mount shows: a read-only tree of numbered files, known to nothing of FUSE.

A view answers the questions of `bootseer.fuse.operations`, which speaks the kernel's protocol for
it. Tests talk to a view directly, without a mount.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

ROOT_INODE = 1


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
class Opened:
    """An open file.

    Attributes:
        handle: names it in `View.read` and `View.close`.
        keep_cache: what the kernel has cached of the file is still what the file holds.
    """

    handle: int
    keep_cache: bool


class View(Protocol):
    """A read-only tree.

    Errors are `BootseerError` or OSError; the caller turns them into an errno. A number handed out
    stays valid until `forget`, and is never given to another file before that.

    Concurrency: any number of calls may be in progress at once, all in one trio thread. A call may
    be cancelled when the mount ends.
    """

    valid_s: float
    """How long the kernel may answer from what it was told of names and attributes, in seconds."""

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return the attributes of the entry `name` of a directory."""
        ...

    async def attributes(self, inode: int) -> Attributes:
        """Return a file's attributes as they are now."""
        ...

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        """Return a directory's entries, without ``.`` and ``..``."""
        ...

    async def link_target(self, inode: int) -> bytes:
        """Return what a symbolic link says."""
        ...

    async def open(self, inode: int) -> Opened:
        """Open a file for reading."""
        ...

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """Return the bytes from `offset` on; fewer than asked for at the end of the file only."""
        ...

    async def close(self, handle: int) -> None:
        """Release an open file."""
        ...

    def forget(self, inode: int) -> None:
        """Learn that the kernel has dropped the file; it will look it up again."""
        ...

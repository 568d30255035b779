"""A tree in memory that can be written to: how a writable view must behave, and nothing else.

Other writable views are compared with it. As root attaches it for a user, a process of its own
serves it with that user's rights:

    python -m bootseer_dev.files.memory_view DESCRIPTOR --user NAME
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import pwd
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bootseer.agent.node.privileges import drop_privileges
from bootseer.errors import NoSpace
from bootseer.fuse.serve_view import run, serve_fd
from bootseer.fuse.view import (
    RENAME_NOREPLACE,
    ROOT_INODE,
    Attributes,
    FilesystemSpace,
    Kernel,
    OpenedFile,
)
from bootseer.posix import os_error
from bootseer.units import GIB

MODULE = "bootseer_dev.files.memory_view"
READY = "the memory view is served"


@dataclass(slots=True)
class _Node:
    """A file or a directory; `known` while the kernel has its number, `users` its open handles."""

    inode: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    ctime_ns: int
    content: bytearray = field(default_factory=bytearray)
    entries: dict[bytes, _Node] = field(default_factory=dict)
    is_named: bool = True

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class _Handle:
    node: _Node
    flags: int


class MemoryView:
    """Files and directories in memory, gone with the process.

    Attributes:
        valid_s: names and attributes are changed through this mount only.
    """

    valid_s = 3600.0

    def __init__(
        self,
        uid: int,
        gid: int,
        limit_bytes: int = GIB,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Make an empty tree.

        Args:
            uid, gid: who owns all of it.
            limit_bytes: how much all files may hold together.
            now_ns: the clock, nanoseconds since 1970.
        """
        self._uid = uid
        self._gid = gid
        self._limit_bytes = limit_bytes
        self._now_ns = now_ns
        self._used_bytes = 0
        self._numbers = itertools.count(ROOT_INODE)
        self._nodes: dict[int, _Node] = {}
        self._handles: dict[int, _Handle] = {}
        self._next_handle = itertools.count(1)
        self._new(stat.S_IFDIR | 0o700)

    def attach(self, kernel: Kernel) -> None:
        """Has nothing to tell the kernel: nobody else changes the tree."""

    # Reading

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return an entry's attributes."""
        return self._attributes(self._entry(self._folder(parent), name))

    async def attributes(self, inode: int) -> Attributes:
        """Return a file's attributes."""
        return self._attributes(self._nodes[inode])

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        """Return a directory's entries."""
        found = self._folder(inode).entries
        return [(name, self._attributes(node)) for name, node in found.items()]

    async def link_target(self, inode: int) -> bytes:
        """There are no links."""
        raise os_error(errno.EINVAL)

    async def open(self, inode: int, flags: int, thread: int = 0) -> OpenedFile:
        """Open a file, and empty it if O_TRUNC says so."""
        return self._open(self._nodes[inode], flags)

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes:
        """Return bytes of an open file."""
        file = self._handles[handle]
        if file.flags & os.O_ACCMODE == os.O_WRONLY:
            raise os_error(errno.EBADF)
        return bytes(memoryview(file.node.content)[offset : offset + size_bytes])

    async def close(self, handle: int) -> None:
        """Forget a handle."""
        del self._handles[handle]

    def forget(self, inode: int) -> None:
        """Drop a file that has no name any more."""
        if not self._nodes[inode].is_named:
            node = self._nodes.pop(inode)
            self._used_bytes -= len(node.content)

    # Writing

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, thread: int = 0
    ) -> tuple[Attributes, OpenedFile]:
        """Make and open a file."""
        folder = self._folder(parent)
        node = folder.entries.get(name)
        if node is None:
            node = self._add(folder, name, stat.S_IFREG | mode)
        elif flags & os.O_EXCL:
            raise os_error(errno.EEXIST)
        opened = self._open(node, flags)
        return self._attributes(node), opened

    async def write(self, handle: int, offset: int, data: bytes) -> int:
        """Write."""
        file = self._handles[handle]
        if file.flags & os.O_ACCMODE == os.O_RDONLY:
            raise os_error(errno.EBADF)
        content = file.node.content
        self._resize(file.node, max(len(content), offset + len(data)))
        content[offset : offset + len(data)] = data
        return len(data)

    async def flush(self, handle: int) -> None:
        """There is nothing to finish."""

    async def sync(self, handle: int) -> None:
        """There is nowhere to bring it."""

    async def truncate(self, inode: int, handle: int | None, size_bytes: int) -> Attributes:
        """Cut a file or grow it by zeros."""
        node = self._nodes[inode]
        if node.is_folder:
            raise os_error(errno.EISDIR)
        self._resize(node, size_bytes)
        return self._attributes(node)

    async def change(
        self,
        inode: int,
        mode: int | None = None,
        mtime_ns: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> Attributes:
        """Change attributes; the owner stays who it is."""
        node = self._nodes[inode]
        if uid not in (None, node.uid) or gid not in (None, node.gid):
            raise os_error(errno.EPERM)
        if mode is not None:
            node.mode = stat.S_IFMT(node.mode) | mode
        if mtime_ns is not None:
            node.mtime_ns = mtime_ns
        node.ctime_ns = self._now_ns()
        return self._attributes(node)

    async def make_folder(self, parent: int, name: bytes, mode: int) -> Attributes:
        """Make a directory."""
        folder = self._folder(parent)
        if name in folder.entries:
            raise os_error(errno.EEXIST)
        return self._attributes(self._add(folder, name, stat.S_IFDIR | mode))

    async def remove(self, parent: int, name: bytes) -> None:
        """Remove a file's name."""
        folder = self._folder(parent)
        if self._entry(folder, name).is_folder:
            raise os_error(errno.EISDIR)
        self._take(folder, name)

    async def remove_folder(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        folder = self._folder(parent)
        _check_empty_folder(self._entry(folder, name))
        self._take(folder, name)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """Give a file or a directory another name, in the place of what has it."""
        old, new = self._folder(parent), self._folder(new_parent)
        node = self._entry(old, name)
        there = new.entries.get(new_name)
        if there is not None and flags & RENAME_NOREPLACE:
            raise os_error(errno.EEXIST)
        if node.is_folder and _holds(node, new):
            raise os_error(errno.EINVAL)
        if there is node:
            return
        if there is not None:
            if node.is_folder:
                _check_empty_folder(there)
            elif there.is_folder:
                raise os_error(errno.EISDIR)
            self._take(new, new_name)
        self._take(old, name)
        self._put(new, new_name, node)

    async def space(self) -> FilesystemSpace:
        """Return what is left below the limit."""
        return FilesystemSpace(self._limit_bytes, self._limit_bytes - self._used_bytes)

    async def extended(self, inode: int, name: bytes) -> bytes:
        """There are no extended attributes."""
        raise os_error(errno.ENODATA)

    async def extended_names(self, inode: int) -> Sequence[bytes]:
        """There are no extended attributes."""
        return []

    def _new(self, mode: int) -> _Node:
        inode, now = next(self._numbers), self._now_ns()
        node = self._nodes[inode] = _Node(inode, mode, self._uid, self._gid, now, now)
        return node

    def _add(self, folder: _Node, name: bytes, mode: int) -> _Node:
        if not folder.is_named:
            raise os_error(errno.ENOENT)
        node = self._new(mode)
        self._put(folder, name, node)
        return node

    def _put(self, folder: _Node, name: bytes, node: _Node) -> None:
        folder.entries[name] = node
        node.is_named = True
        node.ctime_ns = folder.ctime_ns = folder.mtime_ns = self._now_ns()

    def _take(self, folder: _Node, name: bytes) -> None:
        node = folder.entries.pop(name)
        node.is_named = False
        node.ctime_ns = folder.ctime_ns = folder.mtime_ns = self._now_ns()

    def _open(self, node: _Node, flags: int) -> OpenedFile:
        if node.is_folder:
            raise os_error(errno.EISDIR)
        if flags & os.O_TRUNC:
            self._resize(node, 0)
        handle = next(self._next_handle)
        self._handles[handle] = _Handle(node, flags)
        return OpenedFile(handle, keep_cache=True)

    def _resize(self, node: _Node, size_bytes: int) -> None:
        grows_by = size_bytes - len(node.content)
        if self._used_bytes + grows_by > self._limit_bytes:
            raise NoSpace(f"there are {self._limit_bytes} bytes of space; remove some files")
        self._used_bytes += grows_by
        if grows_by < 0:
            del node.content[size_bytes:]
        else:
            node.content.extend(bytes(grows_by))
        node.mtime_ns = node.ctime_ns = self._now_ns()

    def _folder(self, inode: int) -> _Node:
        node = self._nodes[inode]
        if not node.is_folder:
            raise os_error(errno.ENOTDIR)
        return node

    def _entry(self, folder: _Node, name: bytes) -> _Node:
        if name not in folder.entries:
            raise os_error(errno.ENOENT)
        return folder.entries[name]

    def _attributes(self, node: _Node) -> Attributes:
        return Attributes(
            inode=node.inode,
            mode=node.mode,
            size_bytes=len(node.content),
            mtime_ns=node.mtime_ns,
            ctime_ns=node.ctime_ns,
            uid=node.uid,
            gid=node.gid,
            links=int(node.is_named),
        )


def _check_empty_folder(node: _Node) -> None:
    if not node.is_folder:
        raise os_error(errno.ENOTDIR)
    if node.entries:
        raise os_error(errno.ENOTEMPTY)


def _holds(folder: _Node, other: _Node) -> bool:
    return folder is other or any(_holds(node, other) for node in folder.entries.values())


def main() -> None:
    """Take on a user's rights and serve until SIGTERM or an unmount."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("connection", type=int)
    parser.add_argument("--user", required=True)
    options = parser.parse_args()
    user = pwd.getpwnam(options.user)
    drop_privileges(user.pw_name, user.pw_uid, user.pw_gid, keep_lock=False)
    view = MemoryView(user.pw_uid, user.pw_gid)
    run(partial(serve_fd, view, options.connection), ready=READY)


if __name__ == "__main__":
    main()

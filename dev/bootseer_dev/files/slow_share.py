"""A folder shown as a shared file system of a cluster would be: read-only, at a distance.

Every request that the kernel sends waits for a latency; reads also wait for their turn on a line
of limited bandwidth that the mounts of all nodes share. What the kernel has cached costs nothing,
as on a real node. One daemon per node:

    python -m bootseer_dev.files.slow_share SOURCE MOUNTPOINT --line FILE --latency-s 0.002
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import mmap
import os
import stat
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from bootseer.errors import Conflict
from bootseer.fuse.root_mounts import MountOptions
from bootseer.fuse.serve_view import run, serve
from bootseer.fuse.view import ROOT_INODE, Attributes, Kernel, OpenedFile
from bootseer.units import NS_PER_S

MODULE = "bootseer_dev.files.slow_share"
READY = "the slow share is mounted"
_FREE_AT = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Throttle:
    """How slow a share is.

    Attributes:
        latency_s: what every request waits for, in seconds.
        bandwidth_bytes_per_s: of all mounts together; None for no limit.
    """

    latency_s: float = 0.002
    bandwidth_bytes_per_s: float | None = 200e6


class SharedLine:
    """A line of limited bandwidth that any number of processes share, first come, first served.

    A file holds the time (CLOCK_MONOTONIC, nanoseconds) at which the line is free again. Whoever
    transfers moves it on by what its bytes take and waits until then; the line itself never waits.

    Concurrency: processes are kept apart by a lock on the file, held for the few microseconds of a
    reservation; the kernel takes it back from a process that is killed.
    """

    def __init__(
        self, path: Path, bytes_per_s: float, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Open the line's file, or create it for a line that is free.

        Args:
            path: the file, the same for all who share the line.
            bytes_per_s: the bandwidth.
            now_ns: the clock.

        Raises:
            OSError: the file cannot be opened.
        """
        self._ns_per_byte = NS_PER_S / bytes_per_s
        self._now_ns = now_ns
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, _FREE_AT.size)
        self._memory = mmap.mmap(self._file, _FREE_AT.size)

    def reserve(self, size_bytes: int) -> int:
        """Take the line for so many bytes; returns when the last one will have arrived, in ns."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            (free_at,) = _FREE_AT.unpack_from(self._memory)
            done_at = max(free_at, self._now_ns()) + round(size_bytes * self._ns_per_byte)
            _FREE_AT.pack_into(self._memory, 0, done_at)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return int(done_at)


@dataclass(slots=True)
class _Known:
    """A file that has a number: where it is in the source, and what it was when last opened."""

    path: bytes
    identity: tuple[int, int, int]
    version: tuple[int, int] | None = field(default=None)


class FolderView:
    """A folder of this machine behind a line.

    A file is known by device, inode and type, so that a replaced file is a new one here, too, and
    a file rewritten in place is noticed by its size and mtime when it is opened or looked up.
    """

    valid_s = 1.0

    def __init__(self, source: Path, latency_s: float = 0, line: SharedLine | None = None) -> None:
        """Show a folder.

        Args:
            source: the folder.
            latency_s: what every request waits for, in seconds.
            line: what reads share; None for no limit.

        Raises:
            OSError: there is no such folder.
        """
        self._source = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._latency_s = latency_s
        self._line = line
        self._files: dict[int, _Known] = {}
        self._inodes: dict[tuple[int, int, int], int] = {}
        self._next_inode = itertools.count(ROOT_INODE)
        self._known(b".", os.stat(b".", dir_fd=self._source))

    def attach(self, kernel: Kernel) -> None:
        """Has nothing to tell the kernel."""

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """Return an entry's attributes."""
        await self._wait(0)
        path = self._files[parent].path + b"/" + name
        return self._known(path, self._lstat(path))

    async def attributes(self, inode: int) -> Attributes:
        """Return a file's attributes.

        Raises:
            Conflict: the source has another file at its path by now.
        """
        await self._wait(0)
        return self._same(inode, self._lstat(self._files[inode].path))

    async def entries(self, inode: int) -> Sequence[tuple[bytes, Attributes]]:
        """Return a directory's entries; one request, however many they are."""
        await self._wait(0)
        folder = self._files[inode].path
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._source)
        try:
            names = [os.fsencode(name) for name in os.listdir(descriptor)]
        finally:
            os.close(descriptor)
        found = []
        for name in names:
            path = folder + b"/" + name
            try:
                found.append((name, self._known(path, self._lstat(path))))
            except FileNotFoundError:
                continue  # removed since it was listed
        return found

    async def link_target(self, inode: int) -> bytes:
        """Return what a symbolic link says."""
        await self._wait(0)
        return os.readlink(self._files[inode].path, dir_fd=self._source)

    async def open(self, inode: int, flags: int) -> OpenedFile:
        """Open a file; the kernel's cached pages are dropped if the file has changed.

        Raises:
            Conflict: the source has another file at its path by now.
        """
        await self._wait(0)
        file = self._files[inode]
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._source)
        try:
            found = os.fstat(descriptor)
            self._same(inode, found)
        except BaseException:
            os.close(descriptor)
            raise
        before, file.version = file.version, (found.st_size, found.st_mtime_ns)
        return OpenedFile(handle=descriptor, keep_cache=before in (None, file.version))

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes:
        """Return bytes of an open file, after its turn on the line."""
        data = os.pread(handle, size_bytes, offset)
        await self._wait(len(data))
        return data

    async def close(self, handle: int) -> None:
        """Close a file; costs nothing, for nobody waits for it."""
        os.close(handle)

    def forget(self, inode: int) -> None:
        """Forget a file's number."""
        if inode != ROOT_INODE and (file := self._files.pop(inode, None)) is not None:
            del self._inodes[file.identity]

    async def _wait(self, size_bytes: int) -> None:
        wait_s = self._latency_s
        if size_bytes and self._line is not None:
            wait_s += (self._line.reserve(size_bytes) - time.monotonic_ns()) / NS_PER_S
        if wait_s > 0:
            await trio.sleep(wait_s)

    def _lstat(self, path: bytes) -> os.stat_result:
        return os.stat(path, dir_fd=self._source, follow_symlinks=False)

    def _known(self, path: bytes, found: os.stat_result) -> Attributes:
        """Number a file, or find its number and remember its latest path."""
        identity = _identity(found)
        inode = self._inodes.get(identity)
        if inode is None:
            inode = self._inodes[identity] = next(self._next_inode)
            self._files[inode] = _Known(path, identity)
        else:
            self._files[inode].path = path
        return _attributes(inode, found)

    def _same(self, inode: int, found: os.stat_result) -> Attributes:
        # The kernel answers ESTALE by looking the path up again.
        if _identity(found) != self._files[inode].identity:
            raise Conflict(f"{os.fsdecode(self._files[inode].path)} was replaced; look it up again")
        return _attributes(inode, found)


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return (found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode))


def _attributes(inode: int, found: os.stat_result) -> Attributes:
    return Attributes(
        inode=inode,
        mode=found.st_mode,
        size_bytes=found.st_size,
        mtime_ns=found.st_mtime_ns,
        ctime_ns=found.st_ctime_ns,
        uid=found.st_uid,
        gid=found.st_gid,
        links=found.st_nlink,
    )


def command_line(
    source: Path, mountpoint: str, throttle: Throttle, line: Path, read_ahead_kib: int | None
) -> list[str]:
    """Return the arguments that follow ``python -m`` for a daemon that mounts a share."""
    words = [MODULE, str(source), mountpoint, f"--latency-s={throttle.latency_s}"]
    if throttle.bandwidth_bytes_per_s is not None:
        words += [f"--bandwidth={throttle.bandwidth_bytes_per_s}", f"--line={line}"]
    if read_ahead_kib is not None:
        words.append(f"--read-ahead-kib={read_ahead_kib}")
    return words


def main() -> None:
    """Mount and serve until SIGTERM or an unmount."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--latency-s", type=float, default=0)
    parser.add_argument("--bandwidth", type=float, help="bytes per second, of all who share --line")
    parser.add_argument("--line", type=Path, help="the file by which mounts share their bandwidth")
    parser.add_argument("--read-ahead-kib", type=int)
    options = parser.parse_args()
    if (options.bandwidth is None) != (options.line is None):
        parser.error("--bandwidth and --line go together")
    line = SharedLine(options.line, options.bandwidth) if options.line else None
    view = FolderView(options.source, options.latency_s, line)
    mount = MountOptions(name="slow-share", read_only=True, for_all=True)
    run(partial(serve, view, options.mountpoint, mount, options.read_ahead_kib), ready=READY)


if __name__ == "__main__":
    main()

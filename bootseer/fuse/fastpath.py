"""The fast path: answers reads of cached blocks in C, without Python.

C threads answer reads of cached blocks; other reads are passed to Python. The fast path sits
between the kernel and pyfuse3, which answers all other requests over a socket. For a snapshot's
tree it works without pyfuse3.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

import trio

from bootseer._io import ffi, lib
from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.core.tree_rows import TreeRows
from bootseer.errors import Corrupt
from bootseer.fuse.errors import errno_of
from bootseer.fuse.view import JoinedAnswer
from bootseer.posix import check_result, os_error

_log = logging.getLogger(__name__)

_THREADS = 8
"""Concurrent reads of the node's disk."""
_TOUCHES = 4096
"""Reads taken out of the record per call."""
_REQUEST = struct.Struct("=8xQQ16x QQIIQI4x")
"""Number and node of fuse_in_header, and fuse_read_in without its padding."""
_REPLY = struct.Struct("=IiQ")
_MAX_REQUEST_BYTES = 4096
_REQUESTS = 64
"""Taken at once, before other tasks run."""


class ReadRequest(NamedTuple):
    """A read.

    Attributes:
        node: the kernel's number of the file.
        handle: handle of the open file, 0 for a tree.
        offset, size_bytes: the requested range.
        flags: flags of the open file.
    """

    node: int
    handle: int
    offset: int
    size_bytes: int
    flags: int


Read: TypeAlias = Callable[[ReadRequest], Awaitable[bytes | memoryview]]
Join: TypeAlias = Callable[[ReadRequest, JoinedAnswer], bool]


class TreeTable:
    """A snapshot's tree, decoded for the fast path."""

    def __init__(self, rows: TreeRows, image_bytes: int, uid: int, gid: int) -> None:
        """Decode a tree.

        Args:
            rows: as `bootseer.env.snapshot.index` encodes them.
            image_bytes: length of the image that holds the content.
            uid, gid: owner of all files.

        Raises:
            Corrupt: the rows are invalid, or hold something not allowed in snapshots.
        """
        parts = [ffi.from_buffer("uint8_t[]", part) for part in rows]
        given = ffi.new("bs_tree_rows *", (*parts, *rows.counts, image_bytes, uid, gid))
        out = ffi.new("bs_tree **")
        result = lib.bs_tree_open(given, out)
        if result == -errno.EINVAL:
            raise Corrupt("the index of a snapshot holds what no snapshot may; capture it again")
        check_result(result)
        self.pointer = ffi.gc(out[0], lib.bs_tree_close)


class FastPath:
    """The fast path of one mount: of one file, or of a tree.

    Attributes:
        session: descriptor for pyfuse3 in place of the mount's; its user closes it. Not set with a
            tree.
    """

    def __init__(
        self, connection: int, blocks: CachedBlocks, tree: TreeTable | None = None
    ) -> None:
        """Start answering requests.

        Args:
            connection: the mount's descriptor, which stays the caller's, and open until `stop`.
            blocks: blocks of the file, or of the image with the tree's content; stay the caller's.
            tree: the mounted tree, if any.

        Raises:
            OSError: the fast path cannot be started.
        """
        self._connection = connection
        self._tree = tree
        self._session, session = _pair()
        self._misses, self._asked = _pair()
        self._sums = ffi.from_buffer("uint64_t[]", blocks.sums)
        self._states = ffi.from_buffer("uint8_t[]", blocks.states)
        self._found = ffi.new("bs_touch[]", _TOUCHES)
        self._is_answering = False
        manifest = blocks.manifest
        files = ffi.new(
            "bs_fastpath_files *",
            (connection, self._session.fileno(), self._misses.fileno(), blocks.data_fd),
        )
        out = ffi.new("bs_fastpath **")
        result = lib.bs_fastpath_start(
            *(files, manifest.size_bytes, manifest.block_bytes),
            *(self._sums, self._states, ffi.NULL if tree is None else tree.pointer),
            *(_THREADS, out),
        )
        if result < 0:
            for end in (self._session, session, self._misses, self._asked):
                end.close()
            raise os_error(-result)
        self._self = out[0]
        if tree is None:
            self.session = session.detach()
        else:
            session.close()

    async def answer_misses(self, read: Read, join: Join = lambda asked, answer: False) -> None:
        """Answer reads of blocks that are not cached, until the mount is gone.

        Args:
            read: answers one.
            join: has one answered along with another, if it can; see `JoinableView.join`.
        """
        self._is_answering = True
        try:
            async with trio.open_nursery() as nursery:
                while requests := await self._take_requests():
                    for request in requests:
                        unique, asked = _unpacked(request)
                        answer = partial(nursery.start_soon, self._answer, unique, asked, read)
                        if not join(asked, partial(self._answer_joined, unique, answer)):
                            answer()
                nursery.cancel_scope.cancel()
        finally:
            self._is_answering = False

    async def _take_requests(self) -> list[bytes]:
        """Wait for requests and take some; none at the end."""
        await trio.lowlevel.wait_readable(self._asked)
        requests: list[bytes] = []
        with suppress(BlockingIOError):
            while len(requests) < _REQUESTS:
                request = self._asked.recv(_MAX_REQUEST_BYTES, socket.MSG_DONTWAIT)
                if not request:
                    break
                requests.append(request)
        return requests

    async def _answer(self, unique: int, asked: ReadRequest, read: Read) -> None:
        try:
            self._reply(unique, await read(asked))
        except OSError as failed:
            self._reply(unique, failed)
        except Exception:  # noqa: BLE001 (one read never ends the mount)
            _log.exception("a read failed")
            self._reply(unique, OSError(errno.EIO, ""))

    def _answer_joined(
        self, unique: int, read: Callable[[], None], answer: bytes | memoryview | OSError | None
    ) -> None:
        if not self._is_answering:
            return  # the mount is gone
        if answer is None:
            read()
        else:
            self._reply(unique, answer)

    def _reply(self, unique: int, answer: bytes | memoryview | OSError) -> None:
        error, data = (-errno_of(answer), b"") if isinstance(answer, OSError) else (0, answer)
        reply = _REPLY.pack(_REPLY.size + len(data), error, unique)
        with suppress(OSError):  # the reader was killed, or the mount is gone
            os.writev(self._connection, [reply, data])

    def touches(self, *, go_on: bool) -> list[tuple[int, int, int]]:
        """Return the reads recorded since the last call, except those of the prefetch.

        Args:
            go_on: continue recording.

        Returns:
            Start, end and time of each read, on the monotonic clock in nanoseconds.
        """
        touches: list[tuple[int, int, int]] = []
        if self._self is None:
            return touches
        while count := lib.bs_fastpath_touches(self._self, go_on, self._found, _TOUCHES):
            touches += [(t.start, t.stop, t.at_ns) for t in self._found[0:count]]
        return touches

    def stop(self) -> None:
        lib.bs_fastpath_stop(self._self)
        self._self = None
        for end in (self._session, self._misses, self._asked):
            end.close()


def _unpacked(request: bytes) -> tuple[int, ReadRequest]:
    """Return the number of a read request, and its fields."""
    unique, node, handle, offset, size_bytes, _, _, flags = _REQUEST.unpack_from(request)
    return unique, ReadRequest(node, handle, offset, size_bytes, flags)


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

"""Reads that find their blocks on this node, answered in C: at the speed of memory, not of Python.

It stands between the kernel and pyfuse3. Reads of blocks that are there are answered by threads of
its own; other reads go to the view, all that is no read to pyfuse3 over a socket.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import trio

from bootseer._io import ffi, lib
from bootseer.cache.blocks import CachedBlocks

Read: TypeAlias = Callable[[int, int, int], Awaitable[bytes | memoryview]]
"""Takes handle, offset and size."""

_THREADS = 8
"""Reads of the node's disk at once."""
_TOUCHES = 4096
"""Taken out of the record at once."""
_REQUEST = struct.Struct("=IIQQIIIHH QQI")
"""fuse_in_header, and of fuse_read_in handle, offset and size."""
_REPLY = struct.Struct("=IiQ")
_MAX_REQUEST_BYTES = 4096


class FastPath:
    """The fast path of one mount with one file.

    Attributes:
        session: for pyfuse3, in place of the mount's descriptor; whoever uses it closes it.
    """

    def __init__(self, connection: int, blocks: CachedBlocks) -> None:
        """Begin to answer.

        Args:
            connection: the mount's descriptor, which stays the caller's, and open until `stop`.
            blocks: of the file; they stay the caller's, too.

        Raises:
            OSError: it cannot be done.
        """
        self._connection = connection
        self._session, session = _pair()
        self._misses, self._asked = _pair()
        self._sums = ffi.from_buffer("uint64_t[]", blocks.sums)
        self._states = ffi.from_buffer("uint8_t[]", blocks.states)
        self._found = ffi.new("bs_touch[]", _TOUCHES)
        manifest = blocks.manifest
        files = ffi.new(
            "bs_fastpath_files *",
            (connection, self._session.fileno(), self._misses.fileno(), blocks.data_fd),
        )
        out = ffi.new("bs_fastpath **")
        result = lib.bs_fastpath_start(
            *(files, manifest.size_bytes, manifest.block_bytes),
            *(self._sums, self._states, _THREADS, out),
        )
        if result < 0:
            for end in (self._session, session, self._misses, self._asked):
                end.close()
            raise OSError(-result, os.strerror(-result))
        self._self = out[0]
        self.session = session.detach()

    async def answer_misses(self, read: Read) -> None:
        """Have a view answer what is not answered here, until the mount is gone."""
        misses = trio.socket.from_stdlib_socket(self._asked)
        async with trio.open_nursery() as nursery:
            while request := await misses.recv(_MAX_REQUEST_BYTES):
                nursery.start_soon(self._answer, request, read)
            nursery.cancel_scope.cancel()

    async def _answer(self, request: bytes, read: Read) -> None:
        unique, handle, offset, size_bytes = _unpacked(request)
        error = 0
        data: bytes | memoryview = b""
        try:
            data = await read(handle, offset, size_bytes)
        except OSError as failed:
            error = -(failed.errno or errno.EIO)
        reply = _REPLY.pack(_REPLY.size + len(data), error, unique)
        with suppress(OSError):  # who asked has been killed, or the mount is gone
            os.writev(self._connection, [reply, data])

    def touches(self, *, go_on: bool) -> list[tuple[int, int, int]]:
        """Take out what was read here and not taken out before, but for who reads ahead.

        Args:
            go_on: with recording.

        Returns:
            Where each begins and ends, and when it was on the monotonic clock, in nanoseconds.
        """
        touches: list[tuple[int, int, int]] = []
        if self._self is None:
            return touches
        while count := lib.bs_fastpath_touches(self._self, go_on, self._found, _TOUCHES):
            touches += [(t.start, t.stop, t.at_ns) for t in self._found[0:count]]
        return touches

    def stop(self) -> None:
        """End it: nothing is answered any more."""
        lib.bs_fastpath_stop(self._self)
        self._self = None
        for end in (self._session, self._misses, self._asked):
            end.close()


def _unpacked(request: bytes) -> tuple[int, int, int, int]:
    """Return number, handle, offset and size of a request to read."""
    fields = _REQUEST.unpack_from(request)
    return fields[2], *fields[-3:]


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

"""The kernel's side of a fast path, played by a test: it asks for reads, without a mount."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import trio

from bootseer.cache.cached_blocks import CachedBlocks
from bootseer.fuse.fastpath import FastPath
from bootseer.fuse.view import View
from bootseer.posix import os_error
from bootseer.units import MIB

_READ = 15
_REQUEST = struct.Struct("=IIQQIIIHH QQIIQII")
"""fuse_in_header and fuse_read_in."""
_REPLY = struct.Struct("=IiQ")
_BUFFER_BYTES = 4 * MIB
_SO_SNDBUFFORCE = 32  # as on all that Slurm runs on; Python has no name for it


class RawKernel:
    """Reads the one file of a view as the kernel does.

    Concurrency: the tasks of one trio run.
    """

    def __init__(self, device: trio.socket.SocketType) -> None:
        """Speak on our end of what the fast path takes for the device."""
        self._device = device
        self._numbers = count(1)
        self._waiting: dict[int, trio.Event] = {}
        self._replies: dict[int, tuple[int, bytes]] = {}

    async def read(self, handle: int, offset: int, size_bytes: int, flags: int = 0) -> bytes:
        """Read up to 1 MiB.

        Args:
            handle, flags: of the open file.
            offset, size_bytes: of what is wanted.

        Raises:
            OSError: that is the answer.
        """
        number = next(self._numbers)
        answered = self._waiting[number] = trio.Event()
        head = (_REQUEST.size, _READ, number, 2, os.getuid(), os.getgid(), os.getpid(), 0, 0)
        await self._device.send(_REQUEST.pack(*head, handle, offset, size_bytes, 0, 0, flags, 0))
        await answered.wait()
        error, data = self._replies.pop(number)
        if error:
            raise os_error(-error)
        return data

    async def listen(self) -> None:
        """Take answers, until cancelled."""
        while True:
            reply = await self._device.recv(_BUFFER_BYTES)
            size_bytes, error, number = _REPLY.unpack_from(reply)
            assert size_bytes == len(reply), "an answer is as long as it says"
            self._replies[number] = error, reply[_REPLY.size :]
            self._waiting.pop(number).set()


@asynccontextmanager
async def raw_kernel(blocks: CachedBlocks, view: View) -> AsyncIterator[RawKernel]:
    """Have a view's file read through a fast path for the length of a block, as root."""
    ours, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A message is a whole answer.
    device.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
    ours.setblocking(False)
    fast = FastPath(device.fileno(), blocks)
    kernel = RawKernel(trio.socket.from_stdlib_socket(ours))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                fast.answer_misses, lambda a: view.read(a.handle, a.offset, a.size_bytes)
            )
            nursery.start_soon(kernel.listen)
            yield kernel
            nursery.cancel_scope.cancel()
    finally:
        os.close(fast.session)
        fast.stop()
        ours.close()
        device.close()

"""The link between an image's server, with a user's rights, and the block keeper.

A request is a frame followed by block indexes. The bytes of blocks to be written are in memory that
both ends share. Each request is answered before the next is sent. Claims and writes use separate
sockets, so that claims do not wait for writes.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum
from io import FileIO

import trio

from bootseer.cache.keeper import BlockClaim, BlockKeeper
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.ranges import runs
from bootseer.errors import BootseerError, Closed, Corrupt, NoSpace, Unavailable
from bootseer.large_buffers import page_buffer
from bootseer.units import MIB

MAX_BYTES = 4 * MIB
"""Limit of the blocks' bytes in one write request."""
MAX_BLOCKS = 1024
"""Limit of blocks in one request."""
_REQUEST = struct.Struct("<BxxxII")  # operation, number of blocks, bytes in the shared memory
_INDEX_BYTES = 4  # native byte order: both ends are on one machine
_ANSWER = struct.Struct("<BxxxI")  # outcome, bytes that follow
_ANSWER_BYTES = 4096  # more than one has


class _Operation(IntEnum):
    CLAIM = 1
    CLAIM_AGAIN = 2
    RELEASE = 3
    KEEP = 4


class _Outcome(IntEnum):
    OK = 0
    NO_SPACE = 1
    CORRUPT = 2
    FAILED = 3


_ERRORS: dict[int, type[BootseerError]] = {
    _Outcome.NO_SPACE: NoSpace,
    _Outcome.CORRUPT: Corrupt,
    _Outcome.FAILED: Unavailable,
}


def shared_memory() -> int:
    """Return a descriptor of memory for the bytes of one write request, of a fixed length."""
    fd = os.memfd_create("blocks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, MAX_BYTES)  # later writes do not fail
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except BaseException:
        os.close(fd)
        raise
    return fd


def serve_keeper(
    keeper: BlockKeeper, manifest: ImageManifest, end: socket.socket, memory: int
) -> None:
    """Answer requests until the other end is closed; blocks its thread.

    The other end may be hostile: an invalid request ends the link, and what is in the shared memory
    is copied before anything looks at it.

    Args:
        keeper: carries out the requests.
        manifest: of the image.
        end: this end of the socket, blocking.
        memory: descriptor of the `shared_memory`; stays the caller's.
    """
    indexes = memoryview(bytearray(MAX_BLOCKS * _INDEX_BYTES))
    content = page_buffer(MAX_BYTES)
    with end:
        try:
            while True:
                operation, count, size_bytes = _REQUEST.unpack(
                    _receive(end, indexes, _REQUEST.size)
                )
                if size_bytes > MAX_BYTES or not 0 < count <= MAX_BLOCKS:
                    return
                blocks = _receive(end, indexes, count * _INDEX_BYTES).cast("I").tolist()
                if max(blocks) >= manifest.blocks or len(set(blocks)) != count:
                    return
                data = content[:size_bytes]
                if operation == _Operation.KEEP and os.preadv(memory, [data], 0) < size_bytes:
                    return
                outcome, answer = _carry_out(keeper, manifest, operation, blocks, data)
                end.sendall(_ANSWER.pack(outcome, len(answer)) + answer)
        except (OSError, Closed, ValueError):
            return


def _carry_out(
    keeper: BlockKeeper,
    manifest: ImageManifest,
    operation: int,
    blocks: list[int],
    data: memoryview,
) -> tuple[_Outcome, bytes]:
    try:
        if operation == _Operation.KEEP:
            _keep(keeper, manifest, blocks, data)
        elif operation == _Operation.RELEASE:
            for run in runs(blocks):
                keeper.release(run)
        else:
            replace = _Operation(operation) == _Operation.CLAIM_AGAIN
            claims = [claim for run in runs(blocks) for claim in keeper.claim(run, replace=replace)]
            return _Outcome.OK, bytes(claims)
    except NoSpace as error:
        return _Outcome.NO_SPACE, str(error).encode()
    except Corrupt as error:
        return _Outcome.CORRUPT, str(error).encode()
    except (BootseerError, OSError) as error:
        return _Outcome.FAILED, str(error).encode()
    return _Outcome.OK, b""


def _keep(
    keeper: BlockKeeper, manifest: ImageManifest, blocks: list[int], data: memoryview
) -> None:
    """Write blocks stored consecutively in ``data``; releases all claims after an error."""
    at = 0
    left = list(runs(blocks))
    try:
        while left:
            run = left[0]
            stop = manifest.block_range(run[-1]).stop
            size_bytes = stop - manifest.block_range(run.start).start
            keeper.keep(run.start, data[at : at + size_bytes])
            at += size_bytes
            del left[0]
    finally:
        for run in left:
            keeper.release(run)


def _receive(end: socket.socket, buffer: memoryview, size_bytes: int) -> memoryview:
    got = 0
    while got < size_bytes:
        count = end.recv_into(buffer[got:size_bytes])
        if not count:
            raise Closed("the other end of the link is gone")
        got += count
    return buffer[:size_bytes]


class KeeperLink:
    """The server's end of the link.

    Concurrency: any number of tasks.

    Cancellation: a request that has been sent makes its socket unusable.
    """

    def __init__(self, claims: socket.socket, blocks: socket.socket, memory: int) -> None:
        """Take over two sockets, each with a `serve_keeper` at the other end, and their memory."""
        self._memory = os.fdopen(memory, "wb", buffering=0)
        self._claims = _End(claims, self._memory)
        self._blocks = _End(blocks, self._memory)

    @classmethod
    def of(cls, claims: int, blocks: int, memory: int) -> KeeperLink:
        """Take over two sockets, given as descriptors, and their memory."""
        return cls(socket.socket(fileno=claims), socket.socket(fileno=blocks), memory)

    async def claim(self, blocks: Sequence[int], *, replace: bool = False) -> list[BlockClaim]:
        """See `BlockKeeper.claim`.

        Raises:
            Closed: the keeper is gone.
            Unavailable: the keeper cannot claim.
        """
        operation = _Operation.CLAIM_AGAIN if replace else _Operation.CLAIM
        return [BlockClaim(value) for value in await self._claims.ask(operation, blocks)]

    async def release(self, blocks: Sequence[int]) -> None:
        await self._claims.ask(_Operation.RELEASE, blocks)

    async def keep(self, blocks: Sequence[int], data: bytes | memoryview) -> None:
        """See `BlockKeeper.keep`; the blocks need not be consecutive, their bytes are.

        Raises:
            NoSpace, Corrupt, Unavailable: see `BlockKeeper.keep`.
            Closed: the keeper is gone.
        """
        await self._blocks.ask(_Operation.KEEP, blocks, data)

    def close(self) -> None:
        self._claims.close()
        self._blocks.close()
        self._memory.close()


class _End:
    """One socket: one request at a time."""

    def __init__(self, end: socket.socket, memory: FileIO) -> None:
        self._socket = trio.socket.from_stdlib_socket(end)
        self._stream = trio.SocketStream(self._socket)
        self._memory = memory  # written by one of the ends only
        self._lock = trio.Lock()  # guards the stream: a request and its answer
        self._is_broken = False

    async def ask(
        self, operation: _Operation, blocks: Sequence[int], data: bytes | memoryview = b""
    ) -> bytes:
        """Send a request, with bytes in the shared memory; returns the answer."""
        async with self._lock:
            if self._is_broken:
                raise Closed("the keeper of the block cache is gone")
            self._is_broken = True  # unless the answer arrives
            try:
                if data:
                    os.pwrite(self._memory.fileno(), data, 0)
                request = _REQUEST.pack(operation, len(blocks), len(data))
                await self._stream.send_all(request + array("I", blocks).tobytes())
                answer = await self._at_least(_ANSWER.size)
                outcome, more_bytes = _ANSWER.unpack_from(answer)
                answer += await self._at_least(_ANSWER.size + more_bytes - len(answer))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise Closed("the keeper of the block cache is gone") from error
            self._is_broken = False
        said = bytes(answer[_ANSWER.size :])
        if outcome != _Outcome.OK:
            raise _ERRORS[outcome](said.decode())
        return said

    def close(self) -> None:
        self._is_broken = True
        self._socket.close()

    async def _at_least(self, size_bytes: int) -> bytearray:
        data = bytearray()
        while len(data) < size_bytes:
            part = await self._stream.receive_some(_ANSWER_BYTES)
            if not part:
                raise trio.BrokenResourceError
            data += part
        return data

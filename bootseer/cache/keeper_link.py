"""The link between an image's server, with a user's rights, and the block keeper.

A request is a frame followed by block indexes and, for writes, the blocks' bytes. Each is answered
before the next is sent. Claims and writes use separate sockets, so that claims do not wait for
writes.
"""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum

import trio

from bootseer.cache.keeper import BlockClaim, BlockKeeper
from bootseer.core.image_manifest import ImageManifest
from bootseer.core.ranges import runs
from bootseer.errors import BootseerError, Closed, Corrupt, NoSpace, Unavailable

MAX_BYTES = 1024 * 1024
"""Limit of the blocks' bytes in one write request."""
MAX_BLOCKS = 256
"""Limit of blocks in one request."""
_REQUEST = struct.Struct("<BxxxII")  # operation, number of blocks, bytes after their indexes
_INDEX_BYTES = 4  # native byte order: both ends are on one machine
_ANSWER = struct.Struct("<BxxxI")  # outcome, bytes that follow


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


def serve_keeper(keeper: BlockKeeper, manifest: ImageManifest, end: socket.socket) -> None:
    """Answer requests until the other end is closed; blocks its thread.

    The other end may be hostile: an invalid request ends the link.

    Args:
        keeper: carries out the requests.
        manifest: of the image.
        end: this end of the socket, blocking.
    """
    buffer = memoryview(bytearray(MAX_BLOCKS * _INDEX_BYTES + MAX_BYTES))
    with end:
        try:
            while True:
                operation, count, size_bytes = _REQUEST.unpack(_receive(end, buffer, _REQUEST.size))
                if size_bytes > MAX_BYTES or not 0 < count <= MAX_BLOCKS:
                    return
                data = _receive(end, buffer, count * _INDEX_BYTES + size_bytes)
                blocks = data[: count * _INDEX_BYTES].cast("I").tolist()
                if max(blocks) >= manifest.blocks or len(set(blocks)) != count:
                    return
                content = data[count * _INDEX_BYTES :]
                outcome, answer = _carry_out(keeper, manifest, operation, blocks, content)
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

    def __init__(self, claims: socket.socket, blocks: socket.socket) -> None:
        """Take over two sockets, each with a `serve_keeper` at the other end."""
        self._claims = _End(claims)
        self._blocks = _End(blocks)

    @classmethod
    def of(cls, claims: int, blocks: int) -> KeeperLink:
        """Take over two sockets, given as descriptors."""
        return cls(socket.socket(fileno=claims), socket.socket(fileno=blocks))

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
        self._claims.socket.close()
        self._blocks.socket.close()


class _End:
    """One socket: one request at a time."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = trio.socket.from_stdlib_socket(end)
        self._stream = trio.SocketStream(self.socket)
        self._lock = trio.Lock()  # guards the stream: a request and its answer
        self._is_broken = False

    async def ask(
        self, operation: _Operation, blocks: Sequence[int], data: bytes | memoryview = b""
    ) -> bytes:
        async with self._lock:
            if self._is_broken:
                raise Closed("the keeper of the block cache is gone")
            self._is_broken = True  # unless the answer arrives
            try:
                head = _REQUEST.pack(operation, len(blocks), len(data))
                await self._stream.send_all(head + array("I", blocks).tobytes())
                if data:
                    await self._stream.send_all(data)
                outcome, size_bytes = _ANSWER.unpack(await self._exactly(_ANSWER.size))
                answer = await self._exactly(size_bytes)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise Closed("the keeper of the block cache is gone") from error
            self._is_broken = False
        if outcome != _Outcome.OK:
            raise _ERRORS[outcome](answer.decode())
        return answer

    async def _exactly(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            part = await self._stream.receive_some(size_bytes - len(data))
            if not part:
                raise trio.BrokenResourceError
            data += part
        return bytes(data)

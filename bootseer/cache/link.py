"""The way from whoever serves an image, with a user's rights, to the keeper of its blocks.

Each request is a frame, with the blocks that it is about behind it, and their bytes if they are to
be kept; each has an answer, and the next comes after that. Claims and blocks go over links of their
own, so that a claim does not wait for blocks to be written.
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
"""Of blocks kept at once."""
MAX_BLOCKS = 256
"""The same in blocks, and of what is claimed at once."""
_REQUEST = struct.Struct("<BxxxII")  # what, number of blocks, bytes behind their indexes
_INDEX_BYTES = 4  # in the machine's own order: both ends are on it
_ANSWER = struct.Struct("<BxxxI")  # how it went, bytes behind it


class _What(IntEnum):
    CLAIM = 1
    CLAIM_ANEW = 2
    RELEASE = 3
    KEEP = 4


class _How(IntEnum):
    OK = 0
    NO_SPACE = 1
    CORRUPT = 2
    FAILED = 3


_ERRORS: dict[int, type[BootseerError]] = {
    _How.NO_SPACE: NoSpace,
    _How.CORRUPT: Corrupt,
    _How.FAILED: Unavailable,
}


def serve_keeper(keeper: BlockKeeper, manifest: ImageManifest, end: socket.socket) -> None:
    """Answer requests until the other end is closed; in a thread of its own.

    Whoever is there may be hostile: what makes no sense ends the link.

    Args:
        keeper: does what is asked.
        manifest: of the image.
        end: ours, blocking.
    """
    buffer = memoryview(bytearray(MAX_BLOCKS * _INDEX_BYTES + MAX_BYTES))
    with end:
        try:
            while True:
                what, count, size_bytes = _REQUEST.unpack(_receive(end, buffer, _REQUEST.size))
                if size_bytes > MAX_BYTES or not 0 < count <= MAX_BLOCKS:
                    return
                data = _receive(end, buffer, count * _INDEX_BYTES + size_bytes)
                blocks = data[: count * _INDEX_BYTES].cast("I").tolist()
                if max(blocks) >= manifest.blocks or len(set(blocks)) != count:
                    return
                content = data[count * _INDEX_BYTES :]
                how, said = _carry_out(keeper, manifest, what, blocks, content)
                end.sendall(_ANSWER.pack(how, len(said)) + said)
        except (OSError, Closed, ValueError):
            return


def _carry_out(
    keeper: BlockKeeper, manifest: ImageManifest, what: int, blocks: list[int], data: memoryview
) -> tuple[_How, bytes]:
    try:
        if what == _What.KEEP:
            _keep(keeper, manifest, blocks, data)
        elif what == _What.RELEASE:
            for run in runs(blocks):
                keeper.release(run)
        else:
            anew = _What(what) == _What.CLAIM_ANEW
            return _How.OK, bytes(c for run in runs(blocks) for c in keeper.claim(run, anew=anew))
    except NoSpace as error:
        return _How.NO_SPACE, str(error).encode()
    except Corrupt as error:
        return _How.CORRUPT, str(error).encode()
    except (BootseerError, OSError) as error:
        return _How.FAILED, str(error).encode()
    return _How.OK, b""


def _keep(
    keeper: BlockKeeper, manifest: ImageManifest, blocks: list[int], data: memoryview
) -> None:
    """Keep blocks that are one behind the other in ``data``; of what fails, no claim is left."""
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
    """The other end: a keeper somewhere else.

    Concurrency: any number of tasks.

    Cancellation: a request that is under way makes the link unusable.
    """

    def __init__(self, claims: socket.socket, blocks: socket.socket) -> None:
        """Take over two ends, each with a `serve_keeper` at the other."""
        self._claims = _End(claims)
        self._blocks = _End(blocks)

    @classmethod
    def of(cls, claims: int, blocks: int) -> KeeperLink:
        """Take over two ends that came as descriptors."""
        return cls(socket.socket(fileno=claims), socket.socket(fileno=blocks))

    async def claim(self, blocks: Sequence[int], *, anew: bool = False) -> list[BlockClaim]:
        """See `BlockKeeper.claim`.

        Raises:
            Closed: the keeper is gone.
            Unavailable: it can have no claims.
        """
        what = _What.CLAIM_ANEW if anew else _What.CLAIM
        return [BlockClaim(value) for value in await self._claims.ask(what, blocks)]

    async def release(self, blocks: Sequence[int]) -> None:
        """See `BlockKeeper.release`."""
        await self._claims.ask(_What.RELEASE, blocks)

    async def keep(self, blocks: Sequence[int], data: bytes | memoryview) -> None:
        """See `BlockKeeper.keep`; the blocks need not be consecutive, their bytes are.

        Raises:
            NoSpace, Corrupt, Unavailable: it has not.
            Closed: the keeper is gone.
        """
        await self._blocks.ask(_What.KEEP, blocks, data)

    def close(self) -> None:
        """Close it."""
        self._claims.socket.close()
        self._blocks.socket.close()


class _End:
    """One socket: a request at a time."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = trio.socket.from_stdlib_socket(end)
        self._stream = trio.SocketStream(self.socket)
        self._lock = trio.Lock()  # guards the stream: a request and its answer
        self._is_broken = False

    async def ask(
        self, what: _What, blocks: Sequence[int], data: bytes | memoryview = b""
    ) -> bytes:
        async with self._lock:
            if self._is_broken:
                raise Closed("the keeper of the block cache is gone")
            self._is_broken = True  # unless it comes to an end
            try:
                head = _REQUEST.pack(what, len(blocks), len(data))
                await self._stream.send_all(head + array("I", blocks).tobytes())
                if data:
                    await self._stream.send_all(data)
                how, size_bytes = _ANSWER.unpack(await self._exactly(_ANSWER.size))
                said = await self._exactly(size_bytes)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise Closed("the keeper of the block cache is gone") from error
            self._is_broken = False
        if how != _How.OK:
            raise _ERRORS[how](said.decode())
        return said

    async def _exactly(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            part = await self._stream.receive_some(size_bytes - len(data))
            if not part:
                raise trio.BrokenResourceError
            data += part
        return bytes(data)

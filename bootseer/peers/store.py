"""A store whose objects the nodes of a job read for each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from bootseer.parallel import for_each
from bootseer.peers.client import PeerClient
from bootseer.peers.wire import PIECE_BYTES, Kind, PeerRequest
from bootseer.store.api.base import ObjectInfo, Reader, Store, readable_bytes
from bootseer.store.wrappers.base import WrappedStore

_AT_ONCE = 8
"""Pieces of one read."""


class StoreOfNodes(WrappedStore):
    """A store that the nodes of a job read for each other.

    Attributes:
        inner: the store itself.
    """

    def __init__(self, inner: Store, number: int, client: PeerClient) -> None:
        """Read a store through peers.

        Args:
            inner: the store.
            number: of it among the job's stores.
            client: asks the nodes.
        """
        super().__init__(inner)
        self.inner = inner
        self._number = number
        self._client = client


class PeerStore(StoreOfNodes):
    """Reads objects from nodes of the job, and from the store what they do not give.

    Only for objects that are never replaced by others, and whose readers check what they get: a
    wrong byte may come from any node. `read_checked` tells `PeerReader.distrust` of one.
    """

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        if version is not None:  # which peers do not look at
            async with self.inner.open(name, version=version) as reader:
                yield reader
            return
        async with AsyncExitStack() as block:
            info = known or await self._client.describe(self._number, name)
            own = None
            if info is None:
                own = await block.enter_async_context(self.inner.open(name))
                info = own.info
            yield PeerReader(info, self.inner, self._number, self._client, block, own)


@dataclass(eq=False)
class PeerReader(Reader):
    """An object, read from peers; the store is opened once it is needed."""

    info: ObjectInfo
    store: Store
    number: int
    client: PeerClient
    block: AsyncExitStack
    _own: Reader | None
    _opening: trio.Lock = field(default_factory=trio.Lock)
    _givers: dict[int, int] = field(default_factory=dict)
    _distrusted: set[int] = field(default_factory=set)

    async def own(self) -> Reader:
        """Return a reader of the store itself."""
        async with self._opening:
            if self._own is None:
                self._own = await self.block.enter_async_context(self.store.open(self.info.name))
        return self._own

    async def pread(self, offset: int, size: int) -> bytes:
        if not self._distrusted.isdisjoint(_pieces(offset, size)):
            return await (await self.own()).pread(offset, size)
        size = readable_bytes(offset, size, self.info.size_bytes)
        pieces = _pieces(offset, size)
        if len(pieces) == 1:
            return await self._read(pieces[0], offset, size)
        found: dict[int, bytes] = {}

        async def read(piece: int) -> None:
            start = max(offset, piece * PIECE_BYTES)
            stop = min(offset + size, (piece + 1) * PIECE_BYTES)
            found[piece] = await self._read(piece, start, stop - start)

        await for_each(pieces, read, _AT_ONCE)
        return b"".join(found[piece] for piece in pieces)

    def distrust(self, offset: int, size: int) -> bool:
        """Note that these bytes are wrong; see `bootseer.store.api.shared_reader`."""
        pieces = _pieces(offset, size)
        may_be_peers = not self._distrusted.issuperset(pieces)
        self._distrusted.update(pieces)
        for node in {self._givers[piece] for piece in pieces if piece in self._givers}:
            self.client.give_up(node, f"sent wrong bytes of {self.info.name!r}")
        return may_be_peers

    async def _read(self, piece: int, offset: int, size: int) -> bytes:
        request = PeerRequest(Kind.READ, self.number, self.info.name, offset, size)
        found = await self.client.read(request)
        if found is not None and len(found[1]) == size:
            self._givers[piece] = found[0]
            return found[1]
        return await (await self.own()).pread(offset, size)


def _pieces(offset: int, size: int) -> range:
    """Return the numbers of the pieces with these bytes."""
    return range(offset // PIECE_BYTES, -(-(offset + size) // PIECE_BYTES) if size else 0)

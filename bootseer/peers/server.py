"""Give the other nodes of a job what this node has read from the store for them."""

from __future__ import annotations

import hmac
import os
import socket
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from bootseer.errors import BootseerError, Corrupt
from bootseer.peers import whole_object, wire
from bootseer.peers.client import PeerClient
from bootseer.peers.gathering import OF_EVENTS, EventGathering
from bootseer.peers.piece_cache import Piece, PieceCache
from bootseer.peers.start_objects import StartObjects
from bootseer.peers.wire import PIECE_BYTES, Kind, PeerRequest, Status
from bootseer.rate_limit import RateLimit
from bootseer.store.api.base import Reader, Store

T = TypeVar("T")
_MOST_STRANGERS = 64
"""Connections from one address that have not proved the job's secret yet."""
_PROOF_S = 2.0
_IDLE_S = 300.0
_CLOSE_S = 0.5
_WAIT_EVERY_S = 0.25
"""How often a peer is told that the store has not answered yet."""
_OPEN_OBJECTS = 64
_SHARED_S = 60.0
"""A name is shared by the nodes that have asked for it within this time."""
_SEEN_NAMES = 65536


@dataclass(slots=True)
class ServedBytes:
    """What a server has done.

    Attributes:
        read_bytes: read from the store.
        sent_bytes: sent to nodes of the job, this one included.
        strangers: connections that did not prove the secret.
    """

    read_bytes: int = 0
    sent_bytes: int = 0
    strangers: int = 0


@dataclass(eq=False, slots=True)
class _Opened:
    reader: Reader
    block: AsyncExitStack
    users: int = 0


@dataclass(eq=False)
class PeerServer:
    """Reads pieces for the nodes of a job, each once while it is in memory.

    Concurrency: the tasks of one trio run.

    Attributes:
        secret: of the job.
        stores: the job's stores, in the same order on all its nodes.
        cache: pieces that were read.
        client: to ask the nodes that read the store for this one. Nobody else uses it: who waits
            for this server must not keep it from asking.
        limit: of the bytes that are sent.
        gathering: takes the events of other nodes; None if they are given to another node.
        served: what was done so far.
    """

    secret: bytes
    stores: Sequence[Store]
    cache: PieceCache
    client: PeerClient
    limit: RateLimit = field(default_factory=lambda: RateLimit(0))
    gathering: EventGathering | None = None
    served: ServedBytes = field(default_factory=ServedBytes)
    _objects: StartObjects = field(default_factory=StartObjects)
    _strangers: Counter[str] = field(default_factory=Counter)
    _opened: OrderedDict[tuple[int, str], _Opened] = field(default_factory=OrderedDict)
    _opening: dict[tuple[int, str], trio.Lock] = field(default_factory=dict)
    _seen: OrderedDict[tuple[int, str], dict[int, float]] = field(default_factory=OrderedDict)

    async def serve(self, listener: socket.socket) -> None:
        """Serve connections until cancelled.

        Args:
            listener: a listening TCP socket, which it closes.
        """
        accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        try:
            async with accepting, trio.open_nursery() as nursery:
                while True:
                    try:
                        stream = await accepting.accept()
                    except OSError:  # no descriptor is left
                        await trio.sleep(_WAIT_EVERY_S)
                        continue
                    nursery.start_soon(self._converse, stream)
        finally:
            with trio.move_on_after(_CLOSE_S, shield=True):
                for opened in self._opened.values():
                    await opened.block.aclose()

    async def _converse(self, stream: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.TooSlowError, Corrupt):
            async with stream:
                if await self._is_of_job(stream):
                    await self._answer_all(stream)
                else:
                    self.served.strangers += 1

    async def _is_of_job(self, stream: trio.SocketStream) -> bool:
        address = stream.socket.getpeername()[0]
        if self._strangers[address] >= _MOST_STRANGERS:
            return False
        self._strangers[address] += 1
        try:
            with trio.move_on_after(_PROOF_S):
                nonce = os.urandom(wire.NONCE_BYTES)
                await stream.send_all(wire.MAGIC + nonce)
                told = await _receive(stream, wire.NONCE_BYTES + wire.PROOF_BYTES)
                theirs, proof = told[: wire.NONCE_BYTES], told[wire.NONCE_BYTES :]
                node, port = self.client.grid.index, stream.socket.getsockname()[1]
                proofs = wire.Proofs(self.secret, node, port, nonce, theirs)
                if hmac.compare_digest(proof, proofs.client):
                    await stream.send_all(proofs.server)
                    return True
        except (Corrupt, trio.BrokenResourceError):
            return False
        finally:
            self._strangers[address] -= 1
        return False

    async def _answer_all(self, stream: trio.SocketStream) -> None:
        while True:
            with trio.fail_after(_IDLE_S):
                header = await _receive(stream, wire.REQUEST_BYTES)
                request, name_bytes = wire.decode_request(header)
                name = (await _receive(stream, name_bytes)).decode(errors="replace")
                if request.kind is Kind.EVENTS:
                    content = await _receive(stream, request.size_bytes)
                    request = request._replace(content=content)
            request = request._replace(name=name)
            if request.kind in OF_EVENTS:
                await self._gather(stream, request)
            elif request.store >= len(self.stores):
                await stream.send_all(wire.encode_answer(Status.FAILED))
            elif request.kind is Kind.DESCRIBE:
                await self._describe(stream, request)
            elif request.kind is Kind.SHARED:
                answer = wire.IS_SHARED if self._note_reader(request) else wire.IS_OWN
                await stream.send_all(wire.encode_answer(Status.DATA, len(answer)) + answer)
            elif request.kind is Kind.OBJECT:
                await self._give_object(stream, request)
            else:
                await self._give(stream, request)

    async def _gather(self, stream: trio.SocketStream, request: PeerRequest) -> None:
        gathering = self.gathering
        if gathering is None:
            await stream.send_all(wire.encode_answer(Status.FAILED))
            return
        try:
            answer = await _patiently(stream, partial(gathering.answer, request))
            if answer is None:
                await stream.send_all(wire.encode_answer(Status.FAILED))
            else:
                await stream.send_all(wire.encode_answer(Status.DATA, len(answer)) + answer)
        finally:
            gathering.end_answer(request)

    async def _describe(self, stream: trio.SocketStream, request: PeerRequest) -> None:
        async def describe() -> bytes:
            async with self._reader(request) as reader:
                return wire.encode_info(reader.info)

        data = await _patiently(stream, describe)
        if data is None:
            await stream.send_all(wire.encode_answer(Status.FAILED))
        else:
            await stream.send_all(wire.encode_answer(Status.DATA, len(data)) + data)

    def _note_reader(self, request: PeerRequest) -> bool:
        """Note that a node reads a name; returns whether another one has, too."""
        key, now_s = (request.store, request.name), trio.current_time()
        seen = self._seen.pop(key, {})
        seen.pop(request.offset, None)
        seen[request.offset] = now_s  # the newest are the last ones
        recent = [node for node, asked_s in seen.items() if asked_s > now_s - _SHARED_S]
        self._seen[key] = {node: seen[node] for node in recent[-2:]}
        while len(self._seen) > _SEEN_NAMES:
            self._seen.popitem(last=False)
        return len(recent) > 1

    async def _give_object(self, stream: trio.SocketStream, request: PeerRequest) -> None:
        read = partial(self._read_object, request)
        get = partial(self._objects.get, (request.store, request.name), read)
        data = await _patiently(stream, get)
        if data is None:
            await stream.send_all(wire.encode_answer(Status.FAILED))
            return
        await trio.sleep(self.limit.take(len(data), trio.current_time()))
        await stream.send_all(wire.encode_answer(Status.DATA, len(data)) + data)
        self.served.sent_bytes += len(data)

    async def _read_object(self, request: PeerRequest) -> bytes:
        """Read a small object from the node that reads it for all rows, or from the store.

        Raises:
            BootseerError: the store does not give it.
        """
        data = await self.client.read_object_for_row(request)
        if data is None:
            store = self.stores[request.store]
            data = await whole_object.read_answer(store, request.store, request.name)
            self.served.read_bytes += len(data)
        return data

    async def _give(self, stream: trio.SocketStream, request: PeerRequest) -> None:
        await trio.sleep(self.limit.take(request.size_bytes, trio.current_time()))
        start = request.offset % PIECE_BYTES
        stop = start + request.size_bytes
        piece = self.cache.take((request.store, request.name, request.piece))
        if piece is None:  # all memory is in use: the client reads the store
            await stream.send_all(wire.encode_answer(Status.FAILED))
            return
        try:
            if piece.missing(start, stop):
                fill = partial(self._fill, request, piece, start, stop)
                if await _patiently(stream, fill) is None:
                    await stream.send_all(wire.encode_answer(Status.FAILED))
                    return
            size_bytes = max(0, min(stop, piece.size_bytes) - start)
            await stream.send_all(wire.encode_answer(Status.DATA, size_bytes))
            at = piece.slot * PIECE_BYTES + start
            await _send_file(stream.socket, self.cache.fd, at, size_bytes)
            self.served.sent_bytes += size_bytes
        finally:
            piece.users -= 1

    async def _fill(self, request: PeerRequest, piece: Piece, start: int, stop: int) -> Piece:
        """Read what is missing of a piece, unless another task has read it meanwhile."""
        async with piece.lock:
            missing = piece.missing(start, stop)
            if missing:
                offset = request.piece * PIECE_BYTES + missing.start
                wanted = request._replace(offset=offset, size_bytes=len(missing))
                data = await self._read(wanted)
                self.cache.put(piece, missing.start, data, len(missing))
        return piece

    async def _read(self, request: PeerRequest) -> bytes:
        """Read from the node that reads this piece for all rows, or from the store."""
        if request.kind is Kind.READ:
            data = await self.client.read_for_row(request)
            if data is not None:
                return data
        async with self._reader(request) as reader:
            data = await reader.pread(request.offset, request.size_bytes)
        self.served.read_bytes += len(data)
        return data

    @asynccontextmanager
    async def _reader(self, request: PeerRequest) -> AsyncIterator[Reader]:
        """Open an object, or take it as it was opened before.

        Raises:
            BootseerError: the store does not give it.
        """
        key = (request.store, request.name)
        async with self._opening.setdefault(key, trio.Lock()):
            opened = self._opened.pop(key, None)
            if opened is None:
                block = AsyncExitStack()
                reading = self.stores[request.store].open(request.name)
                opened = _Opened(await block.enter_async_context(reading), block)
            self._opened[key] = opened
            opened.users += 1
        try:
            yield opened.reader
        except BootseerError:
            if self._opened.get(key) is opened:  # the next one opens it again
                del self._opened[key]
            raise
        finally:
            opened.users -= 1
            await self._close_some(opened)

    async def _close_some(self, opened: _Opened) -> None:
        """Close what was used last, if it is not to be used again, and the oldest of too many."""
        if not opened.users and opened not in self._opened.values():
            await opened.block.aclose()
        while len(self._opened) > _OPEN_OBJECTS:
            key = next((k for k, one in self._opened.items() if not one.users), None)
            if key is None:
                return
            self._opening.pop(key, None)
            await self._opened.pop(key).block.aclose()


async def _patiently(stream: trio.SocketStream, work: Callable[[], Awaitable[T]]) -> T | None:
    """Do what takes the store's time, and tell the peer meanwhile that this node is there.

    Returns:
        None if the store does not give it.
    """
    result: T | None = None

    async def tell() -> None:
        with suppress(trio.BrokenResourceError):  # the caller's next send fails as well
            while True:
                await trio.sleep(_WAIT_EVERY_S)
                await stream.send_all(wire.encode_answer(Status.WAIT))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        with suppress(BootseerError):
            result = await work()
        nursery.cancel_scope.cancel()
    return result


async def _receive(stream: trio.SocketStream, size_bytes: int) -> bytes:
    """Receive so many bytes.

    Raises:
        Corrupt: the connection ended before.
    """
    data = b""
    while len(data) < size_bytes:
        more = await stream.receive_some(size_bytes - len(data))
        if not more:
            raise Corrupt("the peer has ended the connection")
        data += more
    return data


async def _send_file(
    connection: trio.socket.SocketType, fd: int, offset: int, size_bytes: int
) -> None:
    stop = offset + size_bytes
    while offset < stop:
        try:
            offset += os.sendfile(connection.fileno(), fd, offset, stop - offset)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(connection)

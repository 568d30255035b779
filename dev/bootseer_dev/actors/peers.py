"""Nodes of one job in one process, each with an address, a server and a way to the same store."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import trio
import trio.testing

from bootseer.peers import wire
from bootseer.peers.client import PeerClient
from bootseer.peers.grid import PeerGrid
from bootseer.peers.piece_cache import PieceCache
from bootseer.peers.server import PeerServer
from bootseer.peers.start_store import StartStore
from bootseer.peers.store import PeerStore
from bootseer.store.api.base import Store, publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.units import MIB

T = TypeVar("T")
SECRET = bytes(range(32))
NAME = "images/object"


class CountedStore(WrappedStore):
    """Counts the operations of one node, and the bytes that it reads."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.calls: list[str] = []
        self.read_bytes = 0
        self.delay_s = 0.0

    async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(operation)
        await trio.sleep(self.delay_s)
        result = await call()
        if isinstance(result, bytes):
            self.read_bytes += len(result)
        return result


def listen(host: str, port: int = 0) -> socket.socket:
    """Return a socket that listens there; at any free port for 0."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen()
    listener.setblocking(False)
    return listener


@dataclass
class Nodes:
    """What a test needs of a job's nodes.

    Attributes:
        content: of the object `NAME` in the store that all of them have.
        own: the store as each node reads it by itself.
        shared: the same through the other nodes.
        starts: the same as a start reads it.
        memory: the store itself.
        notes: what each node's client has noted.
    """

    content: bytes
    hosts: list[str]
    port: int
    memory: MemoryStore
    own: list[CountedStore] = field(default_factory=list)
    shared: list[PeerStore] = field(default_factory=list)
    starts: list[StartStore] = field(default_factory=list)
    clients: list[PeerClient] = field(default_factory=list)
    servers: list[PeerServer] = field(default_factory=list)
    notes: list[list[str]] = field(default_factory=list)
    scopes: list[trio.CancelScope] = field(default_factory=list)

    @property
    def read_bytes(self) -> int:
        """By all nodes from the store."""
        return sum(store.read_bytes for store in self.own)

    async def read(self, node: int, start: int = 0, size: int | None = None) -> bytes:
        async with self.shared[node].open(NAME) as reader:
            return await reader.pread(start, reader.size_bytes if size is None else size)

    def kill(self, node: int) -> None:
        self.scopes[node].cancel()


@asynccontextmanager
async def nodes_of(
    count: int, size: int = 5 * MIB + 333, *, down: set[int] | None = None, memory_mib: int = 64
) -> AsyncIterator[Nodes]:
    """Start the nodes of a job that has so many, but for those that are down."""
    content = random.Random(size).randbytes(size)
    memory = MemoryStore()
    await publish(memory, NAME, content)
    hosts = [f"127.0.{n // 200}.{n % 200 + 2}" for n in range(count)]
    first = listen(hosts[0])
    nodes = Nodes(content, hosts, first.getsockname()[1], memory)
    first.close()
    async with trio.open_nursery() as nursery:
        for index in range(count):
            own = CountedStore(memory)
            notes: list[str] = []
            client, of_server = (
                PeerClient(
                    hosts,
                    PeerGrid(count, index),
                    SECRET,
                    [nodes.port],
                    notes.append,
                    time.monotonic() - 60,
                )
                for _ in range(2)
            )
            server = PeerServer(SECRET, [own], PieceCache(memory_mib * MIB), of_server)
            nodes.own.append(own)
            nodes.notes.append(notes)
            nodes.clients.append(client)
            nodes.servers.append(server)
            nodes.shared.append(PeerStore(own, 0, client))
            nodes.starts.append(StartStore(own, 0, client))
            nodes.scopes.append(trio.CancelScope())
            if index not in (down or ()):
                nursery.start_soon(_serve, nodes, index)
        await trio.testing.wait_all_tasks_blocked()
        yield nodes
        nursery.cancel_scope.cancel()
    for client, server in zip(nodes.clients, nodes.servers, strict=True):
        client.close()
        server.client.close()
        server.cache.close()


async def _serve(nodes: Nodes, index: int) -> None:
    with nodes.scopes[index]:
        listener = listen(nodes.hosts[index], nodes.port)
        await nodes.servers[index].serve(listener)


async def as_server(
    nodes: Nodes,
    secret: bytes,
    behave: Callable[[trio.SocketStream], Awaitable[None]],
    node: int = 1,
) -> None:
    """Be a node that proves a secret and then behaves otherwise."""

    async def converse(stream: trio.SocketStream) -> None:
        nonce = bytes(wire.NONCE_BYTES)
        await stream.send_all(wire.MAGIC + nonce)
        told = b""
        while len(told) < wire.NONCE_BYTES + wire.PROOF_BYTES:
            told += await stream.receive_some()
        theirs = told[: wire.NONCE_BYTES]
        await stream.send_all(wire.Proofs(secret, node, nodes.port, nonce, theirs).server)
        with suppress(trio.BrokenResourceError):  # it was given up
            await behave(stream)

    listener = trio.SocketListener(
        trio.socket.from_stdlib_socket(listen(nodes.hosts[node], nodes.port))
    )
    await trio.serve_listeners(converse, [listener])


async def wrong_bytes(stream: trio.SocketStream) -> None:
    """Give zeroes, and describe nothing."""
    data = b""
    while True:
        data += await stream.receive_some()
        while len(data) >= wire.REQUEST_BYTES:
            request, name_bytes = wire.decode_request(data[: wire.REQUEST_BYTES])
            data = data[wire.REQUEST_BYTES + name_bytes :]
            if request.kind is wire.Kind.DESCRIBE:
                await stream.send_all(wire.encode_answer(wire.Status.FAILED))
                continue
            size = request.size_bytes
            await stream.send_all(wire.encode_answer(wire.Status.DATA, size) + bytes(size))

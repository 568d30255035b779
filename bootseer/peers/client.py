"""Ask other nodes of a job for pieces, and do without those that are slow, wrong or gone."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from threading import Lock

import trio

from bootseer.errors import Corrupt
from bootseer.pace import Pace
from bootseer.peers import whole_object, wire
from bootseer.peers.connection import connect, receive
from bootseer.peers.grid import PeerGrid
from bootseer.peers.whole_object import WholeObject
from bootseer.peers.wire import Kind, PeerRequest, Status
from bootseer.store.api.base import ObjectInfo
from bootseer.units import KIB

_LEAST_RATE = 256 * KIB
"""Of one answer, in bytes per second, after the time of silence; or a part of what answers of other
peers have, where all links are full."""
_USUAL_PART = 0.125
_USUAL = 16
"""Answers whose rates are remembered."""
_STORE_S = 3.0
"""How long a peer may wait for the store: it may be the only one that does not reach it."""
_LOST_S = 20.0
"""How long a peer that did not answer is not asked again."""
_MOST_LOST = 4
_OFF_S = 120.0
"""After so many that did not answer, and none that did, nobody is asked for so long: a firewall
is between the nodes, and each attempt would cost the time of a connect."""
_BEGIN_S = 2.0
"""How long the servers of all nodes may take to start."""
_BEGIN_POLL_S = 0.05
_ABSENT_S = 30.0
"""How long a node whose server does not listen is asked again and again, which costs nothing: busy
nodes start it late."""
_OBJECT_S = 1.0
"""How long a start waits for a small object, beyond the time that servers may take to start."""
_STARTS_PER_S = 1250
"""Nodes that a store of 10,000 calls a second serves with small objects, 8 calls each: no start
waits longer for servers than it would for a store that all nodes ask."""
_OBJECTS = ""
"""All small objects have the same home in a row: a start meets a node that is gone only once."""
_PORTS = 4
"""Ports that a job tries, in case other jobs of its nodes have them."""
_OF_OBJECTS = frozenset({Kind.READ, Kind.READ_STORE, Kind.OBJECT})


class _Lost(Exception):
    """A peer does not answer as it should; its text says what it did."""


class _Absent(Exception):
    """A node is there, and its server is not, or not yet."""


class _Passed(Exception):
    """A peer is well, and the store does not give it what it was asked for, or not yet."""


def pace_of_pieces() -> Pace:
    """Return the pace at which a node of a job begins to ask for pieces.

    How long its sender waited for the store does not count: more requests hide that.
    """
    return Pace(requests=4, most=16, quick_s=0.3, late_s=1.0)


def ports_of_job(ports: range, job_id: int) -> list[int]:
    """List the TCP ports to try for a job, the same on all its nodes.

    Args:
        ports: of the servers of all jobs.
        job_id: of this one.
    """
    return [ports[(job_id * _PORTS + i) % len(ports)] for i in range(min(_PORTS, len(ports)))]


@dataclass(eq=False, slots=True)
class _Peer:
    """Another node's server.

    Attributes:
        lost_until: it is not asked before, on the clock `time.monotonic`.
        port: at which it was found; 0 if it was not yet.
        idle: connections that no request uses.
    """

    lost_until: float = 0.0
    port: int = 0
    idle: list[socket.socket] = field(default_factory=list)


@dataclass(eq=False)
class PeerClient:
    """Asks nodes of the job.

    Concurrency: any number of tasks of one trio run; each request takes a thread.

    Attributes:
        hosts: names or addresses of the job's nodes, in the order of their indexes.
        grid: which of them to ask.
        secret: of the job.
        ports: where servers may listen.
        note: called with the reason when a peer is given up.
        begun_s: when this began, on the clock `time.monotonic`: until shortly after, servers of
            other nodes may not have started.
        received_bytes: of objects, that peers have sent.
    """

    hosts: Sequence[str]
    grid: PeerGrid
    secret: bytes
    ports: Sequence[int]
    note: Callable[[str], None] = lambda reason: None
    begun_s: float = field(default_factory=time.monotonic)
    received_bytes: int = 0
    _is_closed: bool = False
    _lost: int = 0
    _off_until: float = 0.0
    _objects_off_until: float = 0.0
    _peers: dict[int, _Peer] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)  # guards their connections
    _pace: Pace = field(default_factory=pace_of_pieces)
    _limiter: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(pace_of_pieces().requests)
    )
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=_USUAL))

    async def describe(self, store: int, name: str) -> ObjectInfo | None:
        """Return what peers know of an object; None if none of them tells.

        This waits for no server to start: the store tells it at once.
        """
        request = PeerRequest(Kind.DESCRIBE, store, name)
        homes = self.grid.homes(name, 0)
        data = await self._ask_first(homes, request, wire.MAX_INFO_BYTES, 0.0)
        try:
            return None if data is None else wire.decode_info(data[1], name)
        except Corrupt:
            return None

    async def read(self, request: PeerRequest) -> tuple[int, bytes] | None:
        """Read a part of a piece from its homes.

        Returns:
            The index of the node that gave it, and the bytes: fewer than asked for only where the
            object ends. None if none of them gives it.
        """
        homes = self.grid.homes(request.name, request.piece)
        return await self._ask_first(homes, request, request.size_bytes)

    async def read_for_row(self, request: PeerRequest) -> bytes | None:
        """Read as the home of a piece, from the node that reads the store.

        Returns:
            None if that is this node, or none of them gives it.
        """
        readers = self.grid.readers(request.name, request.piece)
        request = request._replace(kind=Kind.READ_STORE)
        found = await self._ask_first(readers, request, request.size_bytes)
        return None if found is None else found[1]

    async def is_shared(self, store: int, name: str) -> bool:
        """Return whether another node of this row has asked this of a name, in the last minute.

        False if nobody tells soon. Like `describe`, this waits for no server to start.
        """
        request = PeerRequest(Kind.SHARED, store, name, self.grid.index)
        found = None
        with trio.move_on_after(_OBJECT_S):
            found = await self._ask_first(self.grid.homes(name, 0), request, 1, 0.0)
        return found is not None and found[1] == wire.IS_SHARED

    async def read_object(self, store: int, name: str) -> WholeObject | None:
        """Read a small object from its home; None if none gives it soon, or as it was read.

        Raises:
            NotFound: it does not exist.
        """
        request = PeerRequest(Kind.OBJECT, store, name)
        found = await self._ask_object(self.grid.homes(_OBJECTS, 0), request)
        if found is None:
            return None
        try:
            return whole_object.decode(found[1], store, name)
        except Corrupt:
            self.give_up(found[0], f"sent wrong bytes of {name!r}")
            return None

    async def read_object_for_row(self, request: PeerRequest) -> bytes | None:
        """Read a small object as a home, from the node that reads the store.

        Returns:
            None if that is this node, or none of them gives it soon.
        """
        found = await self._ask_object(self.grid.readers(_OBJECTS, 0), request)
        return None if found is None else found[1]

    async def _ask_object(
        self, nodes: Sequence[int], request: PeerRequest
    ) -> tuple[int, bytes] | None:
        """Ask nodes, and none of them for a while if that takes long."""
        if self._objects_off_until > time.monotonic():
            return None
        begin_s = min(_BEGIN_S, self.grid.nodes / _STARTS_PER_S)
        with trio.move_on_after(_OBJECT_S + begin_s):
            return await self._ask_first(nodes, request, whole_object.MAX_ANSWER_BYTES, begin_s)
        self._objects_off_until = time.monotonic() + _LOST_S
        self.note(f"{self.hosts[nodes[0]]}: has not given {request.name!r} soon")
        return None

    async def ask(self, node: int, request: PeerRequest, most_bytes: int = 0) -> bytes | None:
        """Ask one node; returns its answer of so many bytes at most, None if it gives none."""
        found = await self._ask_first([node], request, most_bytes)
        return None if found is None else found[1]

    def give_up(self, node: int, why: str) -> None:
        """Ask a node nothing any more: what it gives is wrong."""
        self._lose(node, why, inf)

    def close(self) -> None:
        """End all connections, also those that a request still uses once it has ended."""
        self._is_closed = True
        for peer in self._peers.values():
            self._close_idle(peer)

    async def _ask_first(
        self,
        nodes: Sequence[int],
        request: PeerRequest,
        most_bytes: int,
        begin_s: float = _BEGIN_S,
    ) -> tuple[int, bytes] | None:
        """Ask nodes until one answers; see `_connect`."""
        for node in nodes:
            if self._is_left_out(node):
                continue
            try:
                ask = partial(self._ask, node, request, most_bytes, begin_s)
                data = await trio.to_thread.run_sync(
                    ask, limiter=self._limiter, abandon_on_cancel=True
                )
                if self._rates:
                    self._pace.note(wire.PIECE_BYTES / self._rates[-1])
                    self._limiter.total_tokens = self._pace.requests
            except _Passed:
                return None
            except _Absent:
                continue
            except _Lost as error:
                if begin_s:
                    self._lose(node, str(error))
                continue
            self._lost = 0
            if request.kind in _OF_OBJECTS:
                self.received_bytes += len(data)
            return node, data
        return None

    def _is_left_out(self, node: int) -> bool:
        return max(self._peer(node).lost_until, self._off_until) > time.monotonic()

    def _peer(self, node: int) -> _Peer:
        return self._peers.setdefault(node, _Peer())

    def _lose(self, node: int, why: str, for_s: float = _LOST_S) -> None:
        peer, now_s = self._peer(node), time.monotonic()
        is_new = peer.lost_until < now_s
        peer.lost_until = max(peer.lost_until, now_s + for_s)
        self._close_idle(peer)
        if is_new:
            self._lost += 1
            if self._lost >= _MOST_LOST:
                self._off_until = now_s + _OFF_S
            self.note(f"{self.hosts[node]}: {why}")

    def _close_idle(self, peer: _Peer) -> None:
        with self._lock:
            idle, peer.idle = peer.idle, []
        for connection in idle:
            connection.close()

    def _ask(self, node: int, request: PeerRequest, most_bytes: int, begin_s: float) -> bytes:
        """Ask a node in this thread; see `_connect`.

        Raises:
            _Lost: it does not answer as it should.
            _Absent: its server may yet start, or it was left out while this waited for its turn.
            _Passed: it does, and has nothing.
        """
        if self._is_left_out(node):
            raise _Absent
        peer = self._peer(node)
        while True:
            with self._lock:
                kept = peer.idle.pop() if peer.idle else None
            connection = kept or self._connect(node, peer, begin_s)
            try:
                data = self._converse(connection, request, most_bytes, node)
            except BaseException as error:
                connection.close()
                if kept is not None and isinstance(error, ConnectionError):
                    continue  # it was closed while no request used it
                if isinstance(error, OSError | Corrupt):
                    raise _Lost(str(error)) from error
                raise
            with self._lock:
                peer.idle.append(connection)
            if self._is_closed:
                self._close_idle(peer)
            if data is None:
                raise _Passed
            return data

    def _converse(
        self, connection: socket.socket, request: PeerRequest, most_bytes: int, node: int
    ) -> bytes | None:
        """Ask for something, and return it; None if the peer does not get it from the store.

        Raises:
            OSError: the connection has failed, or the peer is silent or slow.
            Corrupt: it answers something else.
            _Passed: it is well, but the store takes long; the connection cannot be used again.
        """
        connection.sendall(request.encode())
        until = time.monotonic() + _STORE_S
        while True:
            header = receive(connection, wire.ANSWER_BYTES)
            status, size_bytes = wire.decode_answer(header, most_bytes)
            if status is Status.FAILED:
                return None
            if status is Status.DATA:
                began_s = time.monotonic()
                data = receive(connection, size_bytes, self._is_slow)
                # This node's own answers say nothing about links.
                if size_bytes >= _LEAST_RATE and node != self.grid.index:
                    self._rates.append(size_bytes / max(time.monotonic() - began_s, 1e-6))
                return data
            if time.monotonic() > until:
                raise _Passed

    def _is_slow(self, rate: float) -> bool:
        """Return whether an answer comes slowly, in bytes per second, by what is usual now."""
        usual = sorted(self._rates)[len(self._rates) // 2] if self._rates else inf
        return rate < min(_LEAST_RATE, _USUAL_PART * usual)

    def _connect(self, node: int, peer: _Peer, begin_s: float) -> socket.socket:
        """Connect to a peer, and see that it knows the secret.

        Args:
            node, peer: to connect to.
            begin_s: how long after this client's begin to wait for it; 0 for not at all, and a
                node that does not answer is asked again.

        Raises:
            _Lost: there is none.
            _Absent: there is none yet.
        """
        while True:
            why = ""
            is_absent = not peer.port
            for port in [peer.port] if peer.port else self.ports:
                try:
                    connection = connect(self.hosts[node], port, node, self.secret)
                except (OSError, Corrupt) as error:
                    why = why or f"port {port}: {error}"
                    is_absent &= isinstance(error, ConnectionRefusedError)
                    if isinstance(error, TimeoutError):  # as at the next port
                        break
                else:
                    peer.port = port
                    return connection
            passed_s = time.monotonic() - self.begun_s
            if passed_s > begin_s:
                if is_absent and passed_s < _ABSENT_S:
                    raise _Absent
                raise _Lost(why)
            time.sleep(min(_BEGIN_POLL_S, begin_s - passed_s))

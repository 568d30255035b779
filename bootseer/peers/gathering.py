"""Nodes of a job give their events to one of them, which stores all of them as one object.

That node's server can write nothing. It keeps what it is given (`EventGathering`) until the node's
publisher takes it. A node that gives its events waits until that publisher has said that they are
in the store. If it does not say so in time, the node stores them by itself: they may be there twice
then, but are never lost.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import trio

from bootseer.errors import Unavailable
from bootseer.peers.client import PeerClient
from bootseer.peers.wire import PIECE_BYTES, Kind, PeerRequest

OF_EVENTS = (Kind.EVENTS, Kind.TAKE_EVENTS, Kind.EVENTS_STORED)
_UNTAKEN_S = 1.0
"""How long a node waits for the publisher of another, whose epilog may begin later, or never."""
_COLLECT_S = 0.6
"""How long the publisher waits for nodes that have given nothing yet."""
_STORED_S = 5.0
"""Longer than a client waits."""
_TELL_S = 0.5
"""How long the publisher waits until all who have given their events are told; then it ends."""
_COUNT = struct.Struct("!I")


@dataclass(eq=False)
class EventGathering:
    """What the nodes of a group have given to one of them.

    Concurrency: the tasks of one trio run.

    Attributes:
        givers: the number of nodes that are to give theirs.
        most_bytes: of all of them together.
    """

    givers: int
    most_bytes: int
    _given: dict[str, bytes] = field(default_factory=dict)
    _complete: trio.Event = field(default_factory=trio.Event)
    _taken: trio.Event = field(default_factory=trio.Event)
    _stored: trio.Event = field(default_factory=trio.Event)
    _told: trio.Event = field(default_factory=trio.Event)

    async def answer(self, request: PeerRequest) -> bytes:
        """Answer a request of one of the kinds `OF_EVENTS`.

        Raises:
            Unavailable: what was given is not stored, or there is nothing to take any more.
        """
        if request.kind is Kind.EVENTS:
            await self._store(request.name, request.content)
        elif request.kind is Kind.TAKE_EVENTS:
            return await self._take()
        else:
            self._stored.set()
            if self._given:
                with trio.move_on_after(_TELL_S):
                    await self._told.wait()
        return b""

    def end_answer(self, request: PeerRequest) -> None:
        """Forget what a node has given: it has got its answer, or is gone."""
        if self._given.get(request.name) is request.content:  # and not what it gave later
            del self._given[request.name]
            if self._stored.is_set() and not self._given:
                self._told.set()

    async def _store(self, node: str, events: bytes) -> None:
        self._given.pop(node, None)  # it asks again
        given_bytes = sum(map(len, self._given.values())) + len(events)
        is_full = len(self._given) >= self.givers or given_bytes > self.most_bytes
        if self._taken.is_set() or is_full:
            raise Unavailable("those of other nodes are stored already, or take up all the space")
        self._given[node] = events
        if len(self._given) == self.givers:
            self._complete.set()
        with trio.move_on_after(_UNTAKEN_S):
            await self._taken.wait()
        if not self._taken.is_set():
            self._complete = trio.Event()
            raise Unavailable("nobody has come to store them")
        with trio.move_on_after(_STORED_S):
            await self._stored.wait()
        if not self._stored.is_set():
            raise Unavailable("they are not in the store yet")

    async def _take(self) -> bytes:
        with trio.move_on_after(_COLLECT_S):
            await self._complete.wait()
        if self._taken.is_set():
            raise Unavailable("they were taken already")
        self._taken.set()
        return _COUNT.pack(len(self._given)) + b"".join(self._given.values())


async def give(client: PeerClient, gatherer: int, node: str, events: bytes) -> bool:
    """Give this node's events to another; returns whether they are in the store.

    Args:
        client: asks the nodes of the job.
        gatherer: index of the node that stores them.
        node: name of this node.
        events: encoded.
    """
    if len(events) > PIECE_BYTES:
        return False
    request = PeerRequest(Kind.EVENTS, 0, node, 0, len(events), events)
    return await client.ask(gatherer, request) is not None


async def take(client: PeerClient, most_bytes: int) -> tuple[int, bytes] | None:
    """Take what other nodes have given to this node's server, once all have or some time is over.

    Args:
        client: asks this node's server.
        most_bytes: of all of them together.

    Returns:
        How many nodes have, and their events one behind the other; None if the server is gone.
    """
    request = PeerRequest(Kind.TAKE_EVENTS, 0, "events")
    found = await client.ask(client.grid.index, request, _COUNT.size + most_bytes)
    if found is None or len(found) < _COUNT.size:
        return None
    return _COUNT.unpack_from(found)[0], found[_COUNT.size :]


async def tell_stored(client: PeerClient) -> None:
    """Tell the nodes that have given their events that these are in the store."""
    await client.ask(client.grid.index, PeerRequest(Kind.EVENTS_STORED, 0, "events"))

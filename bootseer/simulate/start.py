"""Simulate one start: nodes that read the same data, each its own data then, and the rest.

All nodes begin at the same time. The shared data come from the store, or from the job's nodes as
`bootseer.peers` has it: the same homes and readers, as many requests at once. Where many nodes read
much, a part of the data is simulated, and the rest is taken to be read at the same rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bootseer.pace import Pace
from bootseer.peers.client import pace_of_pieces
from bootseer.peers.grid import PeerGrid
from bootseer.peers.wire import PIECE_BYTES
from bootseer.simulate.network import Clock, Link, transfer

_MOST_PIECES = 1 << 19
"""Simulated for all nodes together, unless there were more homes than pieces."""
_OBJECT = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The store and the nodes.

    Attributes:
        store_bytes_per_s: what the store sends to all nodes together.
        node_bytes_per_s: of each node's link, each way.
        store_latency_s: until the store begins to send.
        node_latency_s: until another node does.
        processors: of one machine on which all nodes are; 0 if each node has its own.
    """

    store_bytes_per_s: float
    node_bytes_per_s: float
    store_latency_s: float = 0.002
    node_latency_s: float = 0.0005
    processors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a start needs on each node.

    Attributes:
        shared_bytes: that all nodes read, such as hot parts of an image.
        own_bytes: that this node alone reads then, such as its shard of a checkpoint.
        rest_s: what it takes where all data are there.
        cpu_s: of the rest, what other nodes that are on the same machine wait for.
        is_first: the start has no hot pack: all nodes read the shared data in the same order.
    """

    shared_bytes: int
    own_bytes: int = 0
    rest_s: float = 0.0
    cpu_s: float = 0.0
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """A simulated start.

    Attributes:
        ready_s: when the last node is ready.
        store_bytes: that left the store.
    """

    ready_s: float
    store_bytes: int


def predict(machines: Machines, need: Need, nodes: int, *, has_peers: bool) -> Prediction:
    """Simulate a start.

    Args:
        machines: store and nodes.
        need: of each node.
        nodes: how many, at least 1.
        has_peers: the nodes read shared data from each other.
    """
    ready_s, store_bytes = _each_by_itself(machines, need.own_bytes, nodes)
    if has_peers and nodes > 1 and need.shared_bytes:
        shared_s, shared_bytes = _Exchange(machines, need, nodes).run()
    else:
        shared_s, shared_bytes = _each_by_itself(machines, need.shared_bytes, nodes)
    ready_s += shared_s + need.rest_s
    if machines.processors:
        ready_s += need.cpu_s * max(0, nodes / machines.processors - 1)
    return Prediction(ready_s, round(store_bytes + shared_bytes))


def _each_by_itself(machines: Machines, size_bytes: int, nodes: int) -> tuple[float, float]:
    """Return how long all nodes read so much of the store, and how many bytes leave it."""
    if not size_bytes:
        return 0.0, 0.0
    of_store_s = nodes * size_bytes / machines.store_bytes_per_s
    of_link_s = size_bytes / machines.node_bytes_per_s
    return max(of_store_s, of_link_s) + machines.store_latency_s, nodes * size_bytes


@dataclass(eq=False, slots=True)
class _Node:
    """A node.

    Attributes:
        grid: of the job, as this node sees it.
        down, up: its link.
        left: pieces that its program has still to ask for.
        missing: that have not come yet; requests are under way for those that are not `left`.
        held: pieces that it has for other nodes, or will have: what is done with each once it is
            there; None from then on.
        pace: how many requests may be under way.
        ready_s: when it has all.
    """

    grid: PeerGrid
    down: Link
    up: Link
    left: int
    missing: int
    held: dict[int, list[Callable[[], None]] | None] = field(default_factory=dict)
    pace: Pace = field(default_factory=pace_of_pieces)
    ready_s: float = 0.0


class _Exchange:
    """How the nodes of a job read the shared data from each other."""

    def __init__(self, machines: Machines, need: Need, nodes: int) -> None:
        self._machines = machines
        self._is_first = need.is_first
        self._clock = Clock()
        self._store = Link(machines.store_bytes_per_s)
        homes = PeerGrid(nodes, 0).columns
        whole = -(-need.shared_bytes // PIECE_BYTES)
        self._pieces = min(whole, max(homes, _MOST_PIECES // nodes))
        self._part = self._pieces * PIECE_BYTES / need.shared_bytes
        rate = machines.node_bytes_per_s
        self._nodes = [
            _Node(PeerGrid(nodes, n), Link(rate), Link(rate), self._pieces, self._pieces)
            for n in range(nodes)
        ]

    def run(self) -> tuple[float, float]:
        """Return when the last node has all, and how many bytes leave the store."""
        for node in self._nodes:
            self._ask(node)
        self._clock.run()
        ready_s = max(node.ready_s for node in self._nodes)
        return ready_s / self._part, self._store.sent_bytes / self._part

    def _ask(self, node: _Node) -> None:
        """Ask for as many shared pieces as may be under way."""
        while node.left and node.missing - node.left < node.pace.requests:
            # From a hot pack, each node begins at another piece.
            began = 0 if self._is_first else node.grid.index
            piece = (began - node.left) % self._pieces
            node.left -= 1
            home = self._nodes[node.grid.homes(_OBJECT, piece)[0]]
            self._get(home, piece, partial(self._send, home, node))

    def _get(self, holder: _Node, piece: int, then: Callable[[], None]) -> None:
        """Do something once a node holds a piece; it gets the piece if nobody has asked before."""
        waiting = holder.held.setdefault(piece, [])
        if waiting is None:
            then()
            return
        waiting.append(then)
        if len(waiting) > 1:
            return
        has_it = partial(self._hold, holder, piece)
        readers = holder.grid.readers(_OBJECT, piece)
        if readers:
            reader = self._nodes[readers[0]]
            self._get(reader, piece, partial(self._send, reader, holder, has_it))
        else:
            self._from_store(holder, has_it)

    def _hold(self, holder: _Node, piece: int) -> None:
        waiting, holder.held[piece] = holder.held[piece], None
        for then in waiting or ():
            then()

    def _send(self, sender: _Node, node: _Node, then: Callable[[], None] | None = None) -> None:
        """Send a piece from a node to another, for its program or to be held there."""
        began_s = self._clock.now_s
        if sender is node:
            self._receive(node)
            return
        begins_s = began_s + self._machines.node_latency_s
        end_s = transfer(begins_s, PIECE_BYTES, sender.up, node.down)
        self._clock.at(end_s, then or partial(self._receive, node, end_s - began_s))

    def _receive(self, node: _Node, sent_s: float = 0.0) -> None:
        """Note that a program has a piece, and ask for the next.

        Args:
            node: of the program.
            sent_s: how long another node was sending it; 0 if none did.
        """
        if sent_s:
            node.pace.note(sent_s)
        node.missing -= 1
        if node.missing:
            self._ask(node)
        else:
            node.ready_s = self._clock.now_s

    def _from_store(self, node: _Node, then: Callable[[], None]) -> None:
        asked_s = self._clock.now_s + self._machines.store_latency_s
        self._clock.at(transfer(asked_s, PIECE_BYTES, self._store, node.down), then)

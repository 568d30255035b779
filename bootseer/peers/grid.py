"""Decide which node of a job reads which piece from the store, and which node asks which.

Up to `FLAT_NODES` nodes form one row: each piece has a home in it, which reads the piece from the
store and gives it to the others. More nodes form rows of about the square root of their number. A
piece then has a home in each row; one of these homes reads the store, and the others ask it. So a
piece leaves the store once, and no node talks to more than two times the square root of all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import isqrt

FLAT_NODES = 64
_CANDIDATES = 2


@dataclass(frozen=True, slots=True)
class PeerGrid:
    """The nodes of a job by index, as one of them sees the others.

    Attributes:
        nodes: their number, at least 1.
        index: of this node.
    """

    nodes: int
    index: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return 1 if self.nodes <= FLAT_NODES else isqrt(self.nodes)

    @property
    def columns(self) -> int:
        """The number of nodes of a row that are homes; a row may have one node more."""
        return self.nodes // self.rows

    @property
    def row_nodes(self) -> range:
        """The nodes of this node's row."""
        row = self._row()
        return range(self._row_start(row), self._row_start(row + 1))

    def homes(self, name: str, piece: int) -> list[int]:
        """List the nodes of this node's row to ask for a piece of an object, the home first."""
        number = _start(name) + piece
        first = self._row_start(self._row())
        return [first + (number + i) % self.columns for i in range(min(_CANDIDATES, self.columns))]

    def readers(self, name: str, piece: int) -> list[int]:
        """List the nodes that a home asks for a piece, the one that reads the store first.

        The list ends at this node: it reads the store itself then. It is empty where there is one
        row.
        """
        number = _start(name) + piece
        found: list[int] = []
        for i in range(min(_CANDIDATES, self.rows) if self.rows > 1 else 0):
            row = (number // self.columns + i) % self.rows
            node = self._row_start(row) + number % self.columns
            if node == self.index:
                break
            found.append(node)
        return found

    def _row(self) -> int:
        """Return the row of this node: the last one that begins at or before it."""
        row = self.index * self.rows // self.nodes
        return row + 1 if row + 1 < self.rows and self._row_start(row + 1) <= self.index else row

    def _row_start(self, row: int) -> int:
        return row * self.nodes // self.rows


def _start(name: str) -> int:
    """Return where the pieces of an object begin to go round, different for each object."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")

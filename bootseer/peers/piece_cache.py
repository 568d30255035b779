"""Pieces that this node has read for the nodes of a job, in memory of a limited size."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field

import trio

from bootseer.peers.wire import PIECE_BYTES
from bootseer.units import KIB

PART_BYTES = 256 * KIB
"""What is read of a piece is whole parts."""


@dataclass(eq=False, slots=True)
class Piece:
    """One piece, or some parts of it.

    Attributes:
        slot: its place in the memory.
        parts: a bit for each part that is there, the first part's the lowest.
        size_bytes: where the object ends in it; `PIECE_BYTES` until that is known.
        users: how many tasks use it: it is not replaced meanwhile.
        lock: held by the task that reads the store.
    """

    slot: int
    parts: int = 0
    size_bytes: int = PIECE_BYTES
    users: int = 0
    lock: trio.Lock = field(default_factory=trio.Lock)

    def missing(self, start: int, stop: int) -> range:
        """Return the bytes to be read so that a range of the piece is there; empty if it is."""
        stop = min(stop, self.size_bytes)
        first, last = start // PART_BYTES, -(-stop // PART_BYTES)
        absent = [n for n in range(first, last) if not self.parts >> n & 1]
        return range(absent[0] * PART_BYTES, (absent[-1] + 1) * PART_BYTES) if absent else range(0)


class PieceCache:
    """Pieces by key, in memory that has no name, so that the kernel sends them from there.

    The piece whose last use is the longest ago is replaced first.
    """

    def __init__(self, memory_bytes: int) -> None:
        """Make the memory, which takes up space as it is filled."""
        self.fd = os.memfd_create("bootseer-peers", os.MFD_CLOEXEC)
        self._free = list(range(memory_bytes // PIECE_BYTES))[::-1]
        os.ftruncate(self.fd, len(self._free) * PIECE_BYTES)
        self._pieces: OrderedDict[tuple[int, str, int], Piece] = OrderedDict()

    def take(self, key: tuple[int, str, int]) -> Piece | None:
        """Return a piece, in use by now; None if all the memory is in use.

        Args:
            key: store, object and number of the piece.
        """
        piece = self._pieces.get(key)
        if piece is None:
            slot = self._free.pop() if self._free else self._replace()
            if slot is None:
                return None
            piece = self._pieces[key] = Piece(slot)
        self._pieces.move_to_end(key)
        piece.users += 1
        return piece

    def put(self, piece: Piece, start: int, data: bytes, wanted_bytes: int) -> None:
        """Fill a part of a piece.

        Args:
            piece: in use.
            start: where the data begin in it, at the begin of a part.
            data: what was read.
            wanted_bytes: how much was asked for; the object ends where less came.
        """
        os.pwrite(self.fd, data, piece.slot * PIECE_BYTES + start)
        if len(data) < wanted_bytes:
            piece.size_bytes = start + len(data)
        for part in range(start // PART_BYTES, (start + wanted_bytes) // PART_BYTES):
            piece.parts |= 1 << part

    def close(self) -> None:
        os.close(self.fd)

    def _replace(self) -> int | None:
        for key, piece in self._pieces.items():
            if not piece.users:
                del self._pieces[key]
                return piece.slot
        return None

"""The order in which an image's data is to lie, so that a start reads it from front to back.

What moves is a *piece*: a file's blocks, which the format wants side by side, or a fragment block
with the ends of many files. Files with the same blocks, or with some of another's, share a piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from bootseer.core.ranges import ByteRange, coalesce, total_bytes
from bootseer.errors import Corrupt
from bootseer.squashfs.inodes import Fragment, SquashfsInode
from bootseer.squashfs.superblock import BLOCK_RAW

DENSE_SHARE = 0.5
"""From this hot share on, a piece lies among the wholly hot ones: what is cold of it is read along,
which takes less than skipping it. Others come right behind: they would tear the hot ones apart."""

HOT_BLOCK_SHARE = 0.5
"""A block is hot from this share on. Whoever reads of a block reads all of it, so that less is of
a page that the block shares with its neighbour."""

NEAR_BYTES = 1 << 32
"""Small files' inodes have 32 bits for where their data begins."""


@dataclass(frozen=True, slots=True)
class DataPiece:
    """Data that keeps together.

    Attributes:
        start: in the image.
        lengths: of its blocks as stored, with BLOCK_RAW; never 0.
        near: it has to begin within NEAR_BYTES.
        opaque: its files disagree about where its blocks begin, and it counts as one.
    """

    start: int
    lengths: tuple[int, ...]
    near: bool = False
    opaque: bool = False

    @property
    def stop(self) -> int:
        """Where it ends in the image."""
        return self.start + self.size_bytes

    @property
    def size_bytes(self) -> int:
        """Its length in the image."""
        return sum(self.lengths) if self.opaque else sum(n & ~BLOCK_RAW for n in self.lengths)

    def blocks(self) -> Iterator[tuple[ByteRange, bool]]:
        """Yield its blocks' ranges in the image, and whether they are compressed."""
        if self.opaque:
            yield ByteRange(self.start, self.stop), False
            return
        at = self.start
        for length in self.lengths:
            stop = at + (length & ~BLOCK_RAW)
            yield ByteRange(at, stop), not length & BLOCK_RAW
            at = stop


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The order of all data of an image.

    Attributes:
        dense: hot pieces, in the order of first touch.
        sparse: pieces of which less than DENSE_SHARE is hot, in the order of first touch.
        cold: the rest, in the order in which it was as far as possible.
        growing: where the blocks begin that are to be stored uncompressed.
        fits: all near pieces begin within NEAR_BYTES, as far as can be told beforehand.
    """

    dense: tuple[DataPiece, ...]
    sparse: tuple[DataPiece, ...]
    cold: tuple[DataPiece, ...]
    growing: frozenset[int]
    fits: bool


def find_pieces(
    inodes: Iterable[SquashfsInode], fragments: Iterable[Fragment], bounds: ByteRange
) -> list[DataPiece]:
    """Return the pieces that an image's data consists of, by place.

    Args:
        inodes: all of the image.
        fragments: all of the image.
        bounds: where the image has its data.

    Raises:
        Corrupt: data lies outside of ``bounds``.
    """
    runs: dict[_Run, bool] = {}
    for inode in inodes:
        lengths = tuple(length for length in inode.blocks if length)
        if lengths:
            run = _Run(inode.start, lengths)
            runs[run] = runs.get(run, False) or not inode.long
    for start, length in fragments:
        if length & ~BLOCK_RAW:
            runs.setdefault(_Run(start, (length,)), False)
    pieces: list[DataPiece] = []
    together: list[_Run] = []
    stop = 0
    for run in sorted(runs):
        if run.start < bounds.start or run.stop > bounds.stop:
            raise Corrupt("the image has files whose data lies outside of it")
        if together and run.start >= stop:
            pieces.append(_join(together, stop, any(runs[one] for one in together)))
            together = []
        together.append(run)
        stop = max(stop, run.stop)
    if together:
        pieces.append(_join(together, stop, any(runs[one] for one in together)))
    return pieces


class _Run(NamedTuple):
    """A file's blocks: where they begin, and their lengths with BLOCK_RAW."""

    start: int
    lengths: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + sum(length & ~BLOCK_RAW for length in self.lengths)


def _join(runs: Sequence[_Run], stop: int, near: bool) -> DataPiece:
    """Make one piece of runs that overlap, each the one before it or earlier."""
    if len(runs) == 1:
        return DataPiece(*runs[0], near)
    lengths: dict[int, int] = {}
    agree = True
    for run in runs:
        at = run.start
        for length in run.lengths:
            agree = agree and lengths.setdefault(at, length) == length
            at += length & ~BLOCK_RAW
    at = runs[0].start
    for start, length in sorted(lengths.items()):
        agree = agree and start == at
        at += length & ~BLOCK_RAW
    if agree:
        return DataPiece(
            runs[0].start, tuple(length for _, length in sorted(lengths.items())), near
        )
    return DataPiece(runs[0].start, (stop - runs[0].start,), near, opaque=True)


def arrange(
    pieces: Sequence[DataPiece],
    hot: Sequence[ByteRange],
    front: int,
    *,
    growth: float = 1,
    block_size: int | None = None,
) -> ImageLayout:
    """Decide the order of an image's pieces, and which blocks are to be stored uncompressed.

    Args:
        pieces: by place.
        hot: ranges of the image in the order of first touch; they may overlap.
        front: where the data is to begin.
        growth: how many times as large all pieces are reckoned to become.
        block_size: what a block grows to when it is stored uncompressed, as hot ones are to be;
            None to store none so.
    """
    ranges = coalesce(hot)
    starts = [r.start for r in ranges]
    moving = _Moving(pieces, front, growth)
    dense: list[DataPiece] = []
    sparse: list[DataPiece] = []
    for number in _touched(pieces, hot):
        piece = pieces[number]
        hot_blocks = [
            (block, compressed)
            for block, compressed in piece.blocks()
            if _covered(ranges, starts, block) >= HOT_BLOCK_SHARE * block.size_bytes
        ]
        growing = {}
        if block_size is not None:
            growing = {
                block.start: block_size - block.size_bytes
                for block, compressed in hot_blocks
                if compressed
            }
        if hot_blocks and moving.take(piece, growing):
            hot_bytes = total_bytes(block for block, _ in hot_blocks)
            (dense if hot_bytes >= DENSE_SHARE * piece.size_bytes else sparse).append(piece)
    taken = {piece.start for piece in (*dense, *sparse)}
    rest = [piece for piece in pieces if piece.start not in taken]
    cold = rest if moving.all_is_near else [*_near_first(rest)]
    parts = (tuple(dense), tuple(sparse), tuple(cold))
    return ImageLayout(*parts, frozenset(moving.growing), moving.fits)


class _Moving:
    """Decides what can go to the front with all near pieces still beginning within NEAR_BYTES.

    Of those that stay behind the largest is put last: it only has to begin there.
    """

    def __init__(self, pieces: Sequence[DataPiece], front: int, growth: float) -> None:
        self.growing: set[int] = set()
        self._growth = growth
        self._behind = sorted((p for p in pieces if p.near), key=lambda piece: piece.size_bytes)
        self._taken: set[int] = set()
        self._room = NEAR_BYTES - 1 - front - growth * total_size(self._behind)
        self._all_room = NEAR_BYTES - 1 - front - growth * total_size(pieces)
        self.fits = self._room_without(None) >= 0

    @property
    def all_is_near(self) -> bool:
        """All of the image lies within NEAR_BYTES."""
        return self._all_room >= 0

    def take(self, piece: DataPiece, growing: Mapping[int, int]) -> bool:
        """Tell whether a piece may go to the front; its blocks are to grow if that fits, too."""
        room = self._room_without(piece)
        need = 0 if piece.near else self._growth * piece.size_bytes
        if need > room:
            return False
        growth = sum(growing.values())
        if need + growth <= room:
            need += growth
            self._all_room -= growth
            self.growing.update(growing)
        self._room -= need
        self._taken.add(piece.start)
        return True

    def _room_without(self, piece: DataPiece | None) -> float:
        """Return how much may come before the near pieces, with this one at the front."""
        while self._behind and self._behind[-1].start in self._taken:
            self._behind.pop()
        last = (p for p in reversed(self._behind) if p != piece and p.start not in self._taken)
        return self._room + self._growth * total_size(islice(last, 1))


def total_size(pieces: Iterable[DataPiece]) -> int:
    """Sum the lengths of pieces, in bytes."""
    return sum(piece.size_bytes for piece in pieces)


def _near_first(pieces: Sequence[DataPiece]) -> Iterator[DataPiece]:
    """Yield the near pieces, the largest of them last, then the others."""
    near = [piece for piece in pieces if piece.near]
    if near:
        largest = max(near, key=lambda piece: piece.size_bytes)
        yield from (piece for piece in near if piece is not largest)
        yield largest
    yield from (piece for piece in pieces if not piece.near)


def _touched(pieces: Sequence[DataPiece], hot: Iterable[ByteRange]) -> list[int]:
    """Return the numbers of the pieces that hot ranges touch, in the order of first touch."""
    starts = [piece.start for piece in pieces]
    numbers: dict[int, None] = {}
    for start, stop in hot:
        first = max(0, bisect_right(starts, start) - 1)
        for number in range(first, len(pieces)):
            if pieces[number].start >= stop:
                break
            if pieces[number].stop > start:
                numbers.setdefault(number)
    return list(numbers)


def _covered(ranges: Sequence[ByteRange], starts: Sequence[int], block: ByteRange) -> int:
    """Return how many bytes of a block lie in sorted ranges."""
    covered = 0
    for number in range(max(0, bisect_right(starts, block.start) - 1), len(ranges)):
        start, stop = ranges[number]
        if start >= block.stop:
            break
        covered += max(0, min(stop, block.stop) - max(start, block.start))
    return covered

"""The order of an image's pieces, as data alone."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core import layout
from bootseer.core.hotset import HotRange
from bootseer.core.inodes import Inode
from bootseer.core.layout import Fragment, Piece, arrange, find_pieces, total_size
from bootseer.core.moves import Move, Moves
from bootseer.core.ranges import ByteRange
from bootseer.core.squashfs import BLOCK_RAW
from bootseer.errors import Corrupt

FRONT = 96
BOUNDS = ByteRange(FRONT, 10_000)


def file(start: int, *lengths: int, long: bool = False) -> Inode:
    return Inode(0, long, 1, 0o100644, 0, 0, 0, size=1, start=start, blocks=lengths)


def test_files_with_the_same_data_share_a_piece():
    long = file(100, 50, 60, long=True)
    assert find_pieces([long, long], [], BOUNDS) == [Piece(100, (50, 60), near=False)]
    assert find_pieces([long, file(100, 50, 60)], [], BOUNDS) == [Piece(100, (50, 60), near=True)]


def test_files_that_share_some_blocks_move_together():
    inodes = [file(100, 50, 60), file(150, 60, 70), file(280, 5 | BLOCK_RAW)]
    assert find_pieces(inodes, [Fragment(285, 20)], BOUNDS) == [
        Piece(100, (50, 60, 70), near=True),
        Piece(280, (5 | BLOCK_RAW,), near=True),
        Piece(285, (20,)),
    ]


@pytest.mark.parametrize("second", [file(120, 60), file(100, 50, 61), file(100, 50 | BLOCK_RAW)])
def test_what_files_disagree_about_moves_as_one(second):
    (piece,) = find_pieces([file(100, 50, 60), second], [], BOUNDS)
    assert piece.opaque
    assert piece.start == 100
    assert piece.stop == max(210, second.start + sum(n & ~BLOCK_RAW for n in second.blocks))
    assert [*piece.blocks()] == [(ByteRange(100, piece.stop), False)]


def test_holes_are_nowhere():
    assert find_pieces([file(100, 0, 50, 0), file(0, 0, 0)], [], BOUNDS) == [
        Piece(100, (50,), near=True)
    ]


@pytest.mark.parametrize("start", [0, 95, 9_951])
def test_data_outside_of_the_image_is_refused(start):
    with pytest.raises(Corrupt, match="outside"):
        find_pieces([file(start, 50)], [], BOUNDS)


LENGTHS = st.tuples(st.integers(1, 30), st.booleans(), st.booleans())


@given(
    st.lists(LENGTHS, min_size=1, max_size=30),
    st.lists(st.integers(0, 600), max_size=12),
    st.integers(150, 700),
    st.booleans(),
)
def test_small_files_begin_where_their_inodes_can_say(shapes, touches, near_bytes, grows):
    pieces, at = [], FRONT
    for size_bytes, small, _ in shapes:
        pieces.append(Piece(at, (size_bytes,), near=small and at < near_bytes))
        at += size_bytes
    hot = [ByteRange(start, start + 5) for start in touches]
    with patch.object(layout, "NEAR_BYTES", near_bytes):
        found = arrange(pieces, hot, FRONT, block_size=40 if grows else None)
    order = [*found.dense, *found.sparse, *found.cold]
    assert sorted(order, key=lambda piece: piece.start) == pieces
    assert found.fits
    at = FRONT
    for piece in order:
        assert at < near_bytes or not piece.near
        at += 40 if piece.start in found.growing else piece.size_bytes
    if FRONT + 40 * len(pieces) < near_bytes:
        assert [*found.cold] == [piece for piece in pieces if piece in found.cold]
        wanted = {p.start for p in pieces for r in hot if r.start <= p.start and p.stop <= r.stop}
        assert wanted <= {piece.start for piece in (*found.dense, *found.sparse)}


def test_what_is_reckoned_to_grow_too_far_does_not_fit():
    pieces = [Piece(FRONT + number * 100, (100,), near=True) for number in range(10)]
    with patch.object(layout, "NEAR_BYTES", FRONT + 1300):
        assert arrange(pieces, [], FRONT, growth=1.4).fits
        assert not arrange(pieces, [], FRONT, growth=1.5).fits
    assert total_size(pieces) == 1000


def test_a_hot_range_is_cut_where_its_data_has_gone_apart():
    moves = Moves(
        [
            Move(ByteRange(100, 200), ByteRange(500, 600)),
            Move(ByteRange(200, 210), ByteRange(600, 650), 50 | BLOCK_RAW),
            Move(ByteRange(210, 300), ByteRange(96, 186)),
        ]
    )
    assert moves.find(200, 10) == (600, 50 | BLOCK_RAW)
    assert moves.find(250, 7) == (136, 7)
    hot = [HotRange(0, 120, 1, 9), HotRange(150, 205, 2, 8), HotRange(205, 400, 3, 7)]
    assert moves.hot_ranges(hot) == (
        HotRange(500, 520, 1, 9),
        HotRange(550, 650, 2, 8),
        HotRange(96, 186, 3, 7),
    )

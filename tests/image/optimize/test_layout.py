"""The order of an image's pieces, as data alone."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt
from bootseer.image.hot.hotset import HotRange
from bootseer.image.optimize import layout
from bootseer.image.optimize.layout import DataPiece, arrange, find_pieces, total_size
from bootseer.image.optimize.moves import DataMove, DataMoves
from bootseer.squashfs.inodes import Fragment, SquashfsInode
from bootseer.squashfs.superblock import BLOCK_RAW

FRONT = 96
BOUNDS = ByteRange(FRONT, 10_000)


def file(start: int, *lengths: int, long: bool = False) -> SquashfsInode:
    return SquashfsInode(0, long, 1, 0o100644, 0, 0, 0, size=1, start=start, blocks=lengths)


def test_files_with_the_same_data_share_a_piece():
    long = file(100, 50, 60, long=True)
    assert find_pieces([long, long], [], BOUNDS) == [DataPiece(100, (50, 60), near=False)]
    assert find_pieces([long, file(100, 50, 60)], [], BOUNDS) == [
        DataPiece(100, (50, 60), near=True)
    ]


def test_files_that_share_some_blocks_move_together():
    inodes = [file(100, 50, 60), file(150, 60, 70), file(280, 5 | BLOCK_RAW)]
    assert find_pieces(inodes, [Fragment(285, 20)], BOUNDS) == [
        DataPiece(100, (50, 60, 70), near=True),
        DataPiece(280, (5 | BLOCK_RAW,), near=True),
        DataPiece(285, (20,)),
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
        DataPiece(100, (50,), near=True)
    ]


@pytest.mark.parametrize("start", [0, 95, 9_951])
def test_data_outside_of_the_image_is_refused(start):
    with pytest.raises(Corrupt, match="outside"):
        find_pieces([file(start, 50)], [], BOUNDS)


def test_data_may_begin_and_end_with_the_images():
    inodes = [file(FRONT, 50), file(9_950, 50)]
    assert find_pieces(inodes, [], BOUNDS) == [
        DataPiece(FRONT, (50,), near=True),
        DataPiece(9_950, (50,), near=True),
    ]


def test_a_fragment_block_without_bytes_is_nowhere():
    assert find_pieces([], [Fragment(0, 0), Fragment(0, BLOCK_RAW)], BOUNDS) == []


def test_a_piece_is_near_if_one_of_its_files_has_to_be():
    several = [file(100, 50, 60, long=True), file(150, 60, 70)]
    assert find_pieces(several, [], BOUNDS) == [DataPiece(100, (50, 60, 70), near=True)]
    alone = [file(100, 50, long=True), file(200, 50)]
    assert [piece.near for piece in find_pieces(alone, [], BOUNDS)] == [False, True]


# What goes to the front.


def pieces_of(*sizes_bytes: int, near: bool = True) -> list[DataPiece]:
    """Pieces side by side, of one block each."""
    starts = [FRONT + sum(sizes_bytes[:number]) for number in range(len(sizes_bytes))]
    both = zip(starts, sizes_bytes, strict=True)
    return [DataPiece(start, (size_bytes,), near=near) for start, size_bytes in both]


def arranged(
    pieces: list[DataPiece], hot: list[DataPiece], near_bytes: int, block_size: int | None = None
) -> tuple[list[DataPiece], list[DataPiece], set[int]]:
    """What goes to the front, what stays behind, and which blocks grow."""
    with patch.object(layout, "NEAR_BYTES", near_bytes):
        found = arrange(
            pieces, [ByteRange(p.start, p.stop) for p in hot], FRONT, block_size=block_size
        )
    assert not found.sparse
    return [*found.dense], [*found.cold], {*found.growing}


def test_what_is_far_goes_to_the_front_if_all_near_pieces_still_begin_in_time():
    small, middle, large = near = pieces_of(10, 20, 30)
    far = DataPiece(large.stop, (50,))
    behind = [small, middle, large]
    # The largest of the near ones is the last, and begins behind 50, 10 and 20 bytes.
    assert arranged([*near, far], [far], FRONT + 81) == ([far], behind, set())
    assert arranged([*near, far], [far], FRONT + 80) == ([], [*behind, far], set())


def test_the_largest_near_piece_goes_to_the_front_if_the_next_one_begins_in_time():
    small, middle, large = near = pieces_of(10, 20, 30)
    assert arranged(near, [large], FRONT + 41) == ([large], [small, middle], set())
    assert arranged(near, [large], FRONT + 40) == ([], near, set())


def test_what_has_gone_to_the_front_leaves_less_room_for_others():
    _, _, large = near = pieces_of(10, 20, 30)
    far = [DataPiece(large.stop, (50,)), DataPiece(large.stop + 50, (15,))]
    assert arranged([*near, *far], far, FRONT + 96)[0] == far
    assert arranged([*near, *far], far, FRONT + 95)[0] == far[:1]
    hot = [far[0], large, far[1]]
    assert arranged([*near, *far], hot, FRONT + 106)[0] == hot
    assert arranged([*near, *far], hot, FRONT + 105)[0] == hot[:2]


def test_a_hot_block_grows_if_there_is_room_for_it():
    small, middle, large = near = pieces_of(10, 20, 30)
    grown = {small.start}
    assert arranged(near, [small], FRONT + 61, 40) == ([small], [middle, large], grown)
    assert arranged(near, [small], FRONT + 60, 40) == ([small], [middle, large], set())
    # What it has grown by is there no more.
    far = DataPiece(large.stop, (50 | BLOCK_RAW,))
    both = [small, far]
    assert arranged([*near, far], both, FRONT + 111, 40) == (both, [middle, large], grown)
    assert arranged([*near, far], both, FRONT + 110, 40)[0] == [small]


def test_a_block_that_is_stored_as_it_is_does_not_grow():
    pieces = [DataPiece(FRONT, (10, 20 | BLOCK_RAW)), DataPiece(FRONT + 30, (20 | BLOCK_RAW,))]
    assert arranged(pieces, pieces, 1 << 20, 40) == (pieces, [], {FRONT})
    assert arranged(pieces, pieces, 1 << 20) == (pieces, [], set())


def test_what_stays_behind_keeps_its_order_if_all_of_the_image_is_near():
    far, small, large, middle = (
        DataPiece(FRONT, (40,)),
        DataPiece(FRONT + 40, (10,), near=True),
        DataPiece(FRONT + 50, (30,), near=True),
        DataPiece(FRONT + 80, (20,), near=True),
    )
    pieces = [far, small, large, middle]
    assert arranged(pieces, [], FRONT + 101)[1] == pieces
    assert arranged(pieces, [], FRONT + 100)[1] == [small, middle, large, far]
    # And if it is not any more, for a block has grown.
    assert arranged(pieces, [small], FRONT + 131, 40)[1] == [far, large, middle]
    assert arranged(pieces, [small], FRONT + 130, 40)[1] == [middle, large, far]


@pytest.mark.parametrize(("missing_bytes", "is_hot"), [(0, True), (1, False)])
def test_half_of_a_block_makes_it_hot(missing_bytes, is_hot):
    before, piece, after = pieces_of(20, 20, 20)
    hot = [ByteRange(FRONT, FRONT + 1), ByteRange(piece.start + 10 + missing_bytes, piece.stop)]
    found = arrange([before, piece, after], hot, FRONT)
    assert [*found.dense] == ([piece] if is_hot else [])
    assert [*found.cold] == ([before, after] if is_hot else [before, piece, after])


def test_several_ranges_make_a_block_hot_together():
    (piece,) = pieces_of(20)
    hot = [ByteRange(piece.start + at, piece.start + at + 5) for at in (12, 0)]
    assert arrange([piece], hot, FRONT).dense == (piece,)
    assert arrange([piece], hot[:1], FRONT).dense == ()


@pytest.mark.parametrize(("blocks", "is_dense"), [(2, True), (1, False)])
def test_half_of_its_blocks_make_a_piece_dense(blocks, is_dense):
    piece = DataPiece(FRONT, (25,) * 4)
    found = arrange([piece], [ByteRange(FRONT, FRONT + 25 * blocks)], FRONT)
    assert (found.dense, found.sparse) == (((piece,), ()) if is_dense else ((), (piece,)))


def test_what_begins_or_ends_beside_a_piece_is_no_touch_of_it():
    a, b, c = pieces_of(20, 20, 20)
    hot = [ByteRange(piece.start, piece.stop) for piece in (a, c, b)]
    assert arrange([a, b, c], hot, FRONT).dense == (a, c, b)
    assert arrange([a, c], [ByteRange(b.start, c.stop), hot[0]], FRONT).dense == (c, a)


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
        pieces.append(DataPiece(at, (size_bytes,), near=small and at < near_bytes))
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
    pieces = [DataPiece(FRONT + number * 100, (100,), near=True) for number in range(10)]
    with patch.object(layout, "NEAR_BYTES", FRONT + 1300):
        assert arrange(pieces, [], FRONT, growth=1.4).fits
        assert not arrange(pieces, [], FRONT, growth=1.5).fits
    for near_bytes, fits in ((FRONT + 901, True), (FRONT + 900, False)):
        with patch.object(layout, "NEAR_BYTES", near_bytes):
            assert arrange(pieces, [], FRONT).fits == fits
    assert total_size(pieces) == 1000


def test_a_hot_range_is_cut_where_its_data_has_gone_apart():
    moves = DataMoves(
        [
            DataMove(ByteRange(100, 200), ByteRange(500, 600)),
            DataMove(ByteRange(200, 210), ByteRange(600, 650), 50 | BLOCK_RAW),
            DataMove(ByteRange(210, 300), ByteRange(96, 186)),
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


def test_a_hot_range_brings_no_block_along_that_it_only_touches():
    moves = DataMoves(
        [
            DataMove(ByteRange(100, 200), ByteRange(500, 600)),
            DataMove(ByteRange(200, 210), ByteRange(600, 650), 50 | BLOCK_RAW),
            DataMove(ByteRange(230, 240), ByteRange(800, 850), 50 | BLOCK_RAW),
            DataMove(ByteRange(240, 300), ByteRange(900, 960)),
        ]
    )
    assert moves.hot_ranges([HotRange(100, 200, 1, 9)]) == (HotRange(500, 600, 1, 9),)
    assert moves.hot_ranges([HotRange(210, 230, 1, 9)]) == ()
    assert moves.hot_ranges([HotRange(0, 100, 1, 9), HotRange(300, 400, 1, 9)]) == ()
    hot = [HotRange(205, 206, 1, 9), HotRange(190, 235, 2, 8), HotRange(231, 250, 3, 7)]
    assert moves.hot_ranges(hot) == (
        HotRange(600, 650, 1, 9),
        HotRange(590, 600, 2, 8),
        HotRange(800, 850, 2, 8),
        HotRange(900, 910, 3, 7),
    )


def test_what_lies_side_by_side_again_is_one_hot_range():
    olds_and_news = [(0, 90), (10, 50), (20, 60), (30, 0), (40, 10)]
    moves = DataMoves(
        DataMove(ByteRange(old, old + 10), ByteRange(new, new + 10)) for old, new in olds_and_news
    )
    assert moves.hot_ranges([HotRange(5, 50, 1, 9)]) == (
        HotRange(95, 100, 1, 9),
        HotRange(50, 70, 1, 9),
        HotRange(0, 20, 1, 9),
    )

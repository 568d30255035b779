"""Pieces that are held out of the prefetch, and what a start says by reading them."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.ranges import ByteRange, total_bytes
from bootseer.image.hot.holdout import (
    LEAST_BYTES,
    PIECE_BYTES,
    PIECES,
    HeldOutPiece,
    HoldoutJudge,
    count_read,
    draw,
)
from bootseer.units import MIB


@st.composite
def hot_sets(draw):
    """Ranges in no order, that together are large enough."""
    sizes = draw(st.lists(st.integers(1, 8 * MIB), min_size=1, max_size=40))
    sizes.append(max(1, LEAST_BYTES - sum(sizes)))
    at, ranges = 0, []
    for size in sizes:
        at += draw(st.integers(0, MIB))
        ranges.append(ByteRange(at, at + size))
        at += size
    return draw(st.permutations(ranges))


@given(hot_sets(), st.integers(0, 1000))
def test_pieces_are_of_the_hot_set_and_know_their_place(hot, seed):
    pieces = draw(hot, Random(seed))
    assert 1 <= len(pieces) <= PIECES
    assert pieces == draw(hot, Random(seed))
    assert pieces == sorted(pieces, key=lambda piece: piece.at_bytes)
    for start, stop, at_bytes in pieces:
        assert 0 < stop - start <= PIECE_BYTES
        (index,) = [i for i, r in enumerate(hot) if r.start <= start and stop <= r.stop]
        assert at_bytes == total_bytes(hot[:index]) + start - hot[index].start
    starts = sorted(pieces)
    assert all(a.stop <= b.start for a, b in pairwise(starts))


def test_of_a_small_hot_set_nothing_is_held_out():
    assert draw([], Random(1)) == []
    assert draw([ByteRange(0, LEAST_BYTES - 1)], Random(1)) == []
    assert draw([ByteRange(0, LEAST_BYTES)], Random(1))


def test_chance_is_by_bytes():
    hot = [ByteRange(0, 3 * LEAST_BYTES), ByteRange(10 * LEAST_BYTES, 11 * LEAST_BYTES)]
    pieces = [piece for seed in range(50) for piece in draw(hot, Random(seed))]
    assert 0.7 < sum(piece.start < 5 * LEAST_BYTES for piece in pieces) / len(pieces) < 0.8


def test_a_piece_is_read_if_any_byte_of_it_is():
    pieces = [ByteRange(100, 200), ByteRange(300, 400), ByteRange(500, 600)]
    touched = [ByteRange(599, 1000), ByteRange(0, 100), ByteRange(350, 351)]
    assert count_read(pieces, touched) == 2
    assert count_read(pieces, [ByteRange(200, 300)]) == 0
    assert count_read(pieces, [ByteRange(0, 1000)]) == 3


SIZE = 512 * MIB
HOT = [ByteRange(n * MIB, (n + 1) * MIB) for n in range(512)]
BEYOND = ByteRange(SIZE, SIZE + 8 * MIB)


def judge():
    """With a piece at the start of every 16 MiB of what is read ahead in file order."""
    pieces = [HeldOutPiece(at, at + PIECE_BYTES, at) for at in range(0, SIZE, 16 * MIB)]
    return HoldoutJudge(pieces, [ByteRange(r.start + PIECE_BYTES, r.stop) for r in HOT])


def note(one, fresh, done_bytes, now_ms):
    """Have one sample show this, and the next one nothing."""
    one.note(fresh, done_bytes, now_ms)
    one.note([], done_bytes, now_ms)


def piece(number):
    return ByteRange(number * 16 * MIB, number * 16 * MIB + 4096)


def test_a_start_that_has_not_begun_is_no_reason_to_stop():
    one = judge()
    note(one, HOT, SIZE, 0)  # all of it has been read ahead
    assert one.is_worth(60_000)


def test_a_start_that_reads_other_things_is_one():
    one = judge()
    note(one, [BEYOND], 200 * MIB, 0)
    assert one.is_worth(499)  # give it time
    assert not one.is_worth(500)


def test_pieces_that_are_not_read_ahead_yet_say_nothing():
    one = judge()
    note(one, [BEYOND], -1, 0)
    assert one.is_worth(5000)
    note(one, [], 20 * MIB, 5000)
    assert one.is_worth(5499) and not one.is_worth(5500)


def test_a_start_has_begun_with_so_much_that_it_reads_itself():
    one = judge()
    note(one, [ByteRange(BEYOND.start, BEYOND.stop - 1)], 200 * MIB, 0)
    assert one.is_worth(500)
    note(one, [ByteRange(BEYOND.stop, BEYOND.stop + 1)], 200 * MIB, 0)
    assert not one.is_worth(500)


@pytest.mark.parametrize(("read", "is_worth"), [(0, False), (1, True)])
def test_one_piece_may_be_enough_to_tell(read, is_worth):
    one = judge()
    note(one, [BEYOND], 0, 0)  # all before the first piece has been read ahead
    note(one, [piece(n) for n in range(read)], 0, 0)
    assert one.is_worth(500) == is_worth


def test_what_is_read_ahead_faster_than_it_is_said_is_not_the_starts_own():
    one = judge()
    for at in range(0, 500, 100):  # what a sample shows is said before the next one
        one.note(HOT[at : at + 100], at * MIB, 250 * at)
    assert one.is_worth(60_000)


def test_what_is_hot_and_far_from_read_ahead_shows_that_the_start_has_begun():
    one = judge()
    note(one, [ByteRange(300 * MIB, 310 * MIB)], 200 * MIB, 0)
    assert not one.is_worth(1000)
    other = judge()
    note(other, [ByteRange(201 * MIB, 211 * MIB)], 200 * MIB, 0)  # this may be on its way
    assert other.is_worth(1000)


@pytest.mark.parametrize(("start_mib", "is_worth"), [(40, True), (60, True), (300, False)])
def test_of_a_long_range_the_first_part_has_been_read_ahead(start_mib, is_worth):
    one = HoldoutJudge([HeldOutPiece(0, PIECE_BYTES, 0)], [ByteRange(PIECE_BYTES, SIZE)])
    note(one, [ByteRange(start_mib * MIB, (start_mib + 10) * MIB)], 50 * MIB, 0)
    assert one.is_worth(1000) == is_worth


@pytest.mark.parametrize(("read", "is_worth"), [(5, False), (6, True), (12, True)])
def test_half_is_enough(read, is_worth):
    one = judge()
    note(one, [BEYOND], 191 * MIB, 0)  # twelve
    note(one, [piece(n) for n in range(read)], 191 * MIB, 300)
    assert one.is_worth(2000) == is_worth


def test_a_start_that_catches_up_has_it_go_on():
    one = judge()
    note(one, [BEYOND], 191 * MIB, 0)
    assert not one.is_worth(1000)
    for number in range(6):
        note(one, [piece(number)], 191 * MIB, 1500)
    assert one.is_worth(1500)

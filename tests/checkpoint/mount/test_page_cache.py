"""Holes in what the page cache had are told from reads of what it never had."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bootseer.checkpoint.mount.page_cache import CachedPieces, ReadKind

PIECE = 10
SIZE = 95


def test_a_piece_that_was_asked_for_as_a_whole_is_cached():
    cached = CachedPieces(PIECE, SIZE)
    assert cached.ask(10, 6) is ReadKind.NEW
    assert cached.numbers == set()
    assert cached.ask(16, 4) is ReadKind.NEW
    assert cached.numbers == {1}
    assert cached.ask(90, 10) is ReadKind.NEW, "the last is shorter"
    assert cached.numbers == {1, 9}
    assert cached.ask(12, 1) is ReadKind.HOLE


def test_what_is_at_the_end_and_beyond_is_no_hole():
    cached = CachedPieces(PIECE, SIZE)
    assert cached.ask(SIZE, 10) is ReadKind.NEW
    assert cached.ask(200, 10) is ReadKind.NEW
    assert cached.numbers == set()


def test_holes_in_one_piece_after_another_show_that_the_file_is_not_cached():
    cached = CachedPieces(PIECE, SIZE)
    cached.numbers |= set(range(9))
    asks = (0, 10, 4, 20, 12, 30, 34)
    assert [cached.ask(at, 2) for at in asks] == [
        *[ReadKind.HOLE] * 5,
        ReadKind.DROPPED,
        ReadKind.NEW,
    ]
    assert cached.numbers == set()


def test_one_whole_piece_among_those_with_holes_shows_that_the_file_is_cached():
    cached = CachedPieces(PIECE, SIZE)
    cached.numbers |= set(range(9))
    assert len(ReadKind) == 3
    assert [cached.ask(at, 2) for at in (0, 10, 30, 20)] == [ReadKind.HOLE] * 4
    assert cached.ask(34, 2) is ReadKind.DROPPED


def test_a_file_that_was_dropped_is_known_anew():
    cached = CachedPieces(PIECE, SIZE)
    cached.numbers |= set(range(9))
    assert [cached.ask(at, 2) for at in (0, 10, 20, 30)][-1] is ReadKind.DROPPED
    cached.numbers |= set(range(9))
    assert [cached.ask(at, 2) for at in (30, 40, 50, 60)] == [
        *[ReadKind.HOLE] * 3,
        ReadKind.DROPPED,
    ]


def test_beside_a_hole_what_the_kernel_never_had_counts():
    cached = CachedPieces(PIECE, SIZE)
    cached.numbers |= {1, 3}
    assert cached.ask(5, 25) is ReadKind.HOLE
    assert cached.numbers == {1, 2, 3}
    assert cached.ask(0, 5) is ReadKind.NEW
    assert cached.numbers == {0, 1, 2, 3}


@given(st.sets(st.integers(0, 4)), st.data())
def test_scattered_holes_never_do(few, data):
    cached = CachedPieces(PIECE, SIZE)
    cached.numbers |= set(range(9))
    pieces = [2 * number for number in few]
    for number in data.draw(st.permutations(pieces)):
        assert cached.ask(number * PIECE, PIECE // 2) is ReadKind.HOLE
    assert cached.numbers == set(range(9))


@given(st.sets(st.integers(0, SIZE)), st.randoms())
def test_what_is_asked_for_once_is_no_hole(cuts, random):
    cached = CachedPieces(PIECE, SIZE)
    asks = list(itertools.pairwise([0, *sorted(cuts), SIZE]))
    random.shuffle(asks)
    for start, stop in asks:
        assert cached.ask(start, stop - start) is ReadKind.NEW
    assert cached.numbers == set(range(10))

"""Holes in what the page cache had are told from reads of what it never had."""

from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.cached import CachedPieces

PIECE = 10
SIZE = 95


def test_a_piece_that_was_asked_for_as_a_whole_is_cached():
    cached = CachedPieces(PIECE, SIZE)
    assert not cached.ask(10, 6)
    assert cached.numbers == set()
    assert not cached.ask(16, 4)
    assert cached.numbers == {1}
    assert not cached.ask(90, 10), "the last is shorter"
    assert cached.numbers == {1, 9}
    assert cached.ask(12, 1)


def test_what_is_at_the_end_and_beyond_is_no_hole():
    cached = CachedPieces(PIECE, SIZE)
    assert not cached.ask(SIZE, 10)
    assert not cached.ask(200, 10)
    assert cached.numbers == set()


def test_holes_in_one_piece_after_another_show_that_the_file_is_not_cached():
    cached = CachedPieces(PIECE, SIZE)
    cached.numbers |= set(range(9))
    assert [cached.ask(at, 2) for at in (0, 4, 10, 12, 20, 30, 34)] == [True] * 5 + [False] * 2
    assert cached.numbers == set()


@given(st.sets(st.integers(0, 4)), st.data())
def test_scattered_holes_never_do(few, data):
    cached = CachedPieces(PIECE, SIZE)
    cached.numbers |= set(range(9))
    pieces = [2 * number for number in few]
    for number in data.draw(st.permutations(pieces)):
        assert cached.ask(number * PIECE, PIECE // 2)
    assert cached.numbers == set(range(9))


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=50))
def test_what_was_never_given_is_no_hole(asks):
    cached = CachedPieces(PIECE, SIZE)
    given = set()
    for offset, size in asks:
        wanted = set(range(offset, min(SIZE, offset + size)))
        is_hole = cached.ask(offset, size)
        assert not is_hole or wanted & given
        given |= wanted

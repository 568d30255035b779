import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.ranges import ByteRange, coalesce, runs, split, subtract, total_bytes

RANGES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 60)).map(lambda p: ByteRange(p[0], p[0] + p[1])),
    max_size=12,
)


def bytes_of(ranges):
    return {b for start, stop in ranges for b in range(start, stop)}


@given(RANGES)
def test_coalesce_keeps_the_bytes_and_nothing_touches(ranges):
    joined = coalesce(ranges)
    assert bytes_of(joined) == bytes_of(ranges)
    assert all(a.stop < b.start for a, b in itertools.pairwise(joined))
    assert total_bytes(joined) == len(bytes_of(ranges))


@given(RANGES, st.integers(0, 20))
def test_coalesce_fills_gaps_up_to_the_limit(ranges, gap):
    joined = coalesce(ranges, gap)
    assert bytes_of(ranges) <= bytes_of(joined)
    assert all(b.start - a.stop > gap for a, b in itertools.pairwise(joined))


def test_ranges_of_nothing_are_left_out():
    assert coalesce([ByteRange(5, 5), ByteRange(7, 9), ByteRange(20, 20)]) == [ByteRange(7, 9)]


def test_ranges_as_far_apart_as_the_limit_are_joined_and_no_others():
    ranges = [ByteRange(0, 5), ByteRange(8, 9), ByteRange(13, 14)]
    assert coalesce(ranges, 3) == [ByteRange(0, 9), ByteRange(13, 14)]


@given(RANGES, RANGES)
def test_subtract_is_the_difference_of_sets_and_keeps_order(ranges, holes):
    left = subtract(ranges, holes)
    assert bytes_of(left) == bytes_of(ranges) - bytes_of(holes)
    assert all(r.size_bytes > 0 for r in left)
    # Each range's remains come in the order of the ranges.
    expected = [b for r in ranges for b in range(*r) if b not in bytes_of(holes)]
    assert [b for r in left for b in range(*r)] == expected


@given(st.integers(0, 500), st.integers(1, 500), st.integers(1, 64))
def test_split_covers_the_range_and_ends_at_multiples(start, length, size):
    pieces = list(split(ByteRange(start, start + length), size))
    assert [b for p in pieces for b in range(*p)] == list(range(start, start + length))
    assert all(p.size_bytes <= size for p in pieces)
    assert all(p.stop % size == 0 for p in pieces[:-1])


@pytest.mark.parametrize(
    ("indexes", "found"),
    [
        ([], []),
        ([5], [range(5, 6)]),
        ([1, 2, 3, 7, 9, 10], [range(1, 4), range(7, 8), range(9, 11)]),
    ],
)
def test_consecutive_indexes_are_a_run(indexes, found):
    assert list(runs(indexes)) == found


def test_a_run_is_of_one_kind():
    kinds = [range(1, 3), range(3, 4), range(6, 7)]
    assert list(runs([1, 2, 3, 6], lambda index: index >= 3)) == kinds

"""Reading ahead: far enough in sequence, nothing at random, no byte twice."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.ranges import ByteRange, total_bytes
from bootseer.readahead_window import ReadaheadWindow

FIRST = 8
LIMITS = st.integers(0, 200)
"""Up to what is much less than the longest file."""


def window_of(size_bytes, limit_bytes, first_bytes=FIRST, growth=64, **step):
    return ReadaheadWindow(size_bytes, first_bytes, limit_bytes, growth, **step)


def is_covered(wanted, ranges):
    """Whether a range lies in some that are in order and do not overlap."""
    return sum(max(0, min(wanted.stop, r.stop) - max(wanted.start, r.start)) for r in ranges) == (
        wanted.size_bytes
    )


class Reader:
    """Reads a file, and checks each time what it is told to read ahead."""

    def __init__(self, size_bytes, limit_bytes):
        self.window = window_of(size_bytes, limit_bytes)
        self.size_bytes = size_bytes
        self.limit_bytes = max(FIRST, limit_bytes)
        self.ahead = []

    def read(self, offset, size_bytes):
        found = self.window.read(offset, size_bytes)
        stop = min(self.size_bytes, offset + size_bytes)
        assert 0 <= found.start <= found.stop <= self.size_bytes
        if found.size_bytes:
            assert self.window.window_bytes
            assert found.start >= stop
            self.ahead.append(found)
        return found


def disjoint(ranges):
    return all(a.stop <= b.start for a, b in itertools.pairwise(ranges))


@given(
    st.integers(1, 2000), LIMITS, st.lists(st.integers(1, FIRST // 2), min_size=1), st.integers(0)
)
def test_a_sequential_reader_finds_everything_there(size_bytes, limit_bytes, sizes, skipped):
    reader = Reader(size_bytes, limit_bytes)
    at = begin = skipped % size_bytes
    turn = reads = 0
    while at < size_bytes:
        size = sizes[turn % len(sizes)]
        wanted = ByteRange(at, min(size_bytes, at + size))
        # One read shows nothing, but at the beginning of a file.
        if reads >= (1 if begin <= FIRST else 2):
            assert is_covered(wanted, reader.ahead)
        found = reader.read(at, size)
        if found.size_bytes:
            assert found.stop - wanted.stop <= reader.limit_bytes
        at = wanted.stop
        turn += 1
        reads += 1
    assert disjoint(reader.ahead)
    assert reader.ahead == [] or reader.ahead[-1].stop == size_bytes


@given(LIMITS)
def test_the_window_grows_to_its_limit(limit_bytes):
    reader = Reader(100_000, limit_bytes)
    lead = [0]
    for at in range(1000):
        found = reader.read(at, 1)
        if found.size_bytes:
            lead.append(found.stop - at - 1)
    assert lead[1] == FIRST
    assert max(lead) == reader.limit_bytes
    assert lead == sorted(lead), "it never shrinks while the reader goes on"


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(1, FIRST)), min_size=2, max_size=30),
    LIMITS,
    st.randoms(),
)
def test_a_random_reader_causes_nothing(steps, limit_bytes, random):
    """Each read is farther from the one before than what is ahead of it."""
    places = [10_000 + 5_000 * number + jitter for number, (jitter, _) in enumerate(steps)]
    random.shuffle(places)
    reader = Reader(1_000_000, limit_bytes)
    for at, (_, size) in zip(places, steps, strict=True):
        assert not reader.read(at, size).size_bytes
        assert not reader.window.window_bytes


@given(st.integers(0, 100), LIMITS)
def test_who_jumps_away_is_not_followed(reads, limit_bytes):
    reader = Reader(1_000_000, limit_bytes)
    for at in range(reads):
        reader.read(at, 1)
    assert not reader.read(500_000, 1).size_bytes
    assert not reader.window.window_bytes
    # But who reads on from there is, from the beginning.
    found = reader.window.read(500_001, 1)
    assert found == ByteRange(500_002, 500_002 + FIRST)


@given(st.integers(1, 5), st.lists(st.permutations(range(4)), min_size=2, max_size=40), LIMITS)
def test_requests_that_come_out_of_order_change_nothing(size, orders, limit_bytes):
    """The kernel asks for several pieces at once, each an eighth of the first window."""
    file_bytes = 4 * size * len(orders)
    window = window_of(file_bytes, limit_bytes, 8 * size)
    ahead = []
    for number, order in enumerate(orders):
        for place in order:
            at = (4 * number + place) * size
            assert not number or is_covered(ByteRange(at, at + size), ahead)
            found = window.read(at, size)
            assert window.window_bytes
            if found.size_bytes:
                ahead.append(found)
    assert disjoint(ahead)
    assert ahead[-1].stop == file_bytes and total_bytes(ahead) == file_bytes - ahead[0].start


def test_nothing_is_beyond_the_end():
    window = window_of(0, 100)
    assert window.read(0, 10) == ByteRange(0, 0)
    window = window_of(10, 100)
    assert window.read(0, 4).stop == 10
    assert not window.read(10, 4).size_bytes
    assert not window.read(14, 4).size_bytes


def test_who_begins_anew_is_followed_at_once():
    reader = Reader(1000, 100)
    for at in range(0, 500, 4):
        reader.read(at, 4)
    reader.window.restart(40)
    assert reader.read(40, 4) == ByteRange(44, 44 + FIRST)


def ahead_of(*reads, limit_bytes=1000):
    """What is read ahead after these reads of a long file, each of an offset and a length."""
    window = window_of(1_000_000, limit_bytes)
    return [window.read(*read) for read in reads]


@pytest.mark.parametrize(("offset", "is_near"), [(FIRST, True), (FIRST + 1, False)])
def test_a_read_is_in_sequence_as_far_from_the_beginning_as_a_first_window(offset, is_near):
    (found,) = ahead_of((offset, 4))
    assert found == ByteRange(offset + 4, offset + 4 + (FIRST if is_near else 0))


@pytest.mark.parametrize(("offset", "is_near"), [(500 - FIRST, True), (499 - FIRST, False)])
def test_a_read_is_in_sequence_as_far_before_the_others_as_a_first_window(offset, is_near):
    window = window_of(1_000_000, 1000)
    window.restart(500)
    window.read(offset, 1)
    assert (window.window_bytes > 0) == is_near


@pytest.mark.parametrize(("offset", "is_near"), [(512 + 2 * FIRST, True), (513 + 2 * FIRST, False)])
def test_a_read_beyond_all_that_was_read_ahead_is_in_sequence_if_it_is_near(offset, is_near):
    window = window_of(1_000_000, 1000)
    window.restart(500)
    assert window.read(500, 12) == ByteRange(512, 512 + FIRST)
    found = window.read(offset, 4)
    assert bool(found.size_bytes) == is_near
    assert found.start == offset + 4


def test_more_is_read_ahead_once_half_of_it_is_left():
    first, *later = ahead_of((0, 4), (4, 3), (7, 1))
    assert first == ByteRange(4, 4 + FIRST)
    # Of the eight bytes ahead, five are left, and then four.
    assert later == [ByteRange(12, 12), ByteRange(12, 8 + 64 * FIRST)]


@pytest.mark.parametrize("growth", [2, 3])
def test_the_window_grows_by_a_factor(growth):
    window = window_of(1_000_000, 1000, growth=growth)
    sizes = []
    for offset in range(0, 1000, 4):
        if window.read(offset, 4).size_bytes:
            sizes.append(window.window_bytes)
    assert sizes[:4] == [FIRST, FIRST * growth, FIRST * growth**2, FIRST * growth**3]


@given(st.integers(1, 100), LIMITS, st.integers(1, FIRST // 2), st.integers(1, 2000))
def test_read_ahead_ends_at_whole_steps(step_bytes, limit_bytes, size, size_bytes):
    window = window_of(size_bytes, limit_bytes, growth=2, step_bytes=step_bytes)
    ahead = []
    for offset in range(0, size_bytes, size):
        found = window.read(offset, size)
        if found.size_bytes:
            ahead.append(found)
            stop = min(size_bytes, offset + size) + window.window_bytes
            whole = stop - stop % step_bytes
            # A window that reaches no whole step is read as it is.
            assert found.stop == min(size_bytes, whole if whole > found.start else stop)
    assert not ahead or (disjoint(ahead) and ahead[-1].stop == size_bytes)


def test_a_step_cuts_what_is_read_ahead_and_the_rest_follows():
    window = window_of(1_000_000, 1000, growth=2, step_bytes=10)
    # The windows of 8, 16 and 32 bytes would end at 12, 24 and 44.
    assert [window.read(offset, 4) for offset in (0, 4, 8)] == [
        ByteRange(4, 10),
        ByteRange(10, 20),
        ByteRange(20, 40),
    ]


def test_the_first_window_is_the_least_limit():
    assert ahead_of((0, 4), (4, 8), limit_bytes=1) == [ByteRange(4, 12), ByteRange(12, 20)]

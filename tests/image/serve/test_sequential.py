"""Readers that go through an image in order have blocks fetched ahead of them, others have not."""

import random
from itertools import pairwise

from bootseer.image.serve.sequential import SequentialReaders
from bootseer.units import KIB, MIB

BLOCK = 64 * KIB
FETCH = MIB // BLOCK
MANY = 100_000


def read(readers, start, stop, count=2):
    """Read some blocks in order, those that are not fetched ahead; returns the fetched ranges."""
    fetched, ahead = [], range(0)
    for first in range(start, stop, count):
        if not ahead or first + count > ahead.stop:
            ahead = readers.ahead(range(first, first + count)) or ahead
            if ahead and (not fetched or fetched[-1] != ahead):
                fetched.append(ahead)
    return fetched


def test_more_and_more_is_fetched_ahead_of_a_reader_up_to_a_limit():
    readers = SequentialReaders(MANY, BLOCK, FETCH)
    fetched = read(readers, 0, 2000)
    assert fetched[0] == range(6, 10)  # 256 KiB, after 384 KiB
    # It misses two blocks where that ends; 512 KiB, 1 MiB and 2 MiB follow, cut at whole fetches.
    assert fetched[1:4] == [range(12, 16), range(18, 32), range(34, 64)]
    for before, after in pairwise(fetched):
        assert after.start >= before.stop
    sizes = [len(ahead) for ahead in fetched]
    assert sizes == sorted(sizes)
    assert max(sizes) <= 8 * MIB // BLOCK < 2 * max(sizes)
    assert all(ahead.stop % FETCH == 0 for ahead in fetched[3:])  # whole fetches


def test_each_block_is_fetched_ahead_once():
    readers = SequentialReaders(MANY, BLOCK, FETCH)
    fetched = [i for first in range(0, 400, 2) for i in readers.ahead(range(first, first + 2))]
    assert fetched == list(range(6, fetched[-1] + 1))


def test_nothing_is_fetched_ahead_of_reads_that_are_not_in_order():
    readers = SequentialReaders(MANY, BLOCK, FETCH)
    places = random.Random(3).sample(range(0, MANY, 100), 500)
    assert not any(readers.ahead(range(at, at + 2)) for at in places)


def test_reads_in_order_may_share_a_block():
    readers = SequentialReaders(MANY, BLOCK, FETCH)
    for first in range(10, 14):
        assert not readers.ahead(range(first, first + 2))
    assert readers.ahead(range(14, 16)) == range(16, 20)
    for first in (1010, 1012):
        assert not readers.ahead(range(first, first + 3))
    assert readers.ahead(range(1014, 1017)) == range(1017, 1021)


def test_readers_that_take_turns_are_told_apart():
    readers = SequentialReaders(MANY, BLOCK, FETCH)
    starts = [1024 * number for number in range(16)]
    for step in range(3):
        for start in starts:
            first = start + 2 * step
            ahead = readers.ahead(range(first, first + 2))
            assert ahead == (range(start + 6, start + 10) if step == 2 else range(0))


def test_a_reader_is_forgotten_when_many_others_have_missed_since():
    readers = SequentialReaders(MANY, BLOCK, FETCH)
    readers.ahead(range(0, 4))
    for number in range(1, 17):
        readers.ahead(range(number * 1000, number * 1000 + 2))
    assert not readers.ahead(range(4, 8))


def test_a_reader_is_not_forgotten_because_another_misses_often():
    readers = SequentialReaders(MANY, BLOCK, FETCH)
    readers.ahead(range(1000, 1004))
    for first in range(0, 200, 2):
        readers.ahead(range(first, first + 2))
    assert readers.ahead(range(1004, 1006)) == range(1006, 1008)  # a whole fetch


def test_the_image_ends():
    readers = SequentialReaders(9, BLOCK, FETCH)
    assert not readers.ahead(range(0, 4))
    assert readers.ahead(range(4, 6)) == range(6, 9)
    assert not readers.ahead(range(6, 8))
    assert not readers.ahead(range(8, 9))


def test_blocks_may_be_longer_than_what_is_fetched_ahead_first():
    readers = SequentialReaders(100, MIB, 1)
    assert not readers.ahead(range(0, 1))
    assert readers.ahead(range(1, 2)) == range(2, 3)

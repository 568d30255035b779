"""No decoder raises what is not its own, hangs, or takes memory out of proportion.

`make fuzz` looks for longer, and guided by coverage.
"""

import random
import time
import tracemalloc

import fuzz_decoders
import fuzz_mutations
import pytest

INPUTS = 150
LONGEST_S = 5.0
MOST_BYTES = 48 << 20
"""That decoding some kB may take: buffers of a fixed length, and what decompression may make."""


@pytest.fixture(params=fuzz_decoders.DECODERS)
def decoder(request):
    return fuzz_decoders.DECODERS[request.param]


def test_each_has_a_name_of_its_own():
    assert len(fuzz_decoders.DECODERS) == len(fuzz_decoders.ALL)


def test_what_is_good_is_accepted(decoder):
    seeds = decoder.seeds()
    assert seeds
    accepted = [decoder.try_one(seed) for seed in seeds]
    assert accepted[0]
    assert accepted.count(False) <= 1


def test_what_is_changed_is_refused_as_it_should_be(decoder):
    seeds = decoder.seeds()
    changes = random.Random(decoder.name)
    tracemalloc.start()
    try:
        for _ in range(INPUTS):
            data = fuzz_mutations.mutated(changes.choice(seeds), changes, seeds)
            tracemalloc.reset_peak()
            before, begun = tracemalloc.get_traced_memory()[0], time.monotonic()
            decoder.try_one(data)
            assert time.monotonic() - begun < LONGEST_S
            assert tracemalloc.get_traced_memory()[1] - before < MOST_BYTES
    finally:
        tracemalloc.stop()

"""The choice of how an image is brought to a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.choice import Known, Way, choose

TORCH = {"image_bytes": 3_138_000_000, "latency_s": 0.002, "bytes_per_s": 200e6}
HOT = {"hot_bytes": 254_000_000, "hot_reads": 900}
TOUCHED = {"touched_bytes": 254_000_000, "touched_reads": 4100}


@pytest.mark.parametrize(
    ("known", "has_file", "way"),
    [
        ({**TORCH, **HOT}, False, Way.SERVED),
        ({**TORCH, **HOT}, True, Way.SERVED),  # as fast, and it stays on the node
        (TORCH, False, Way.SERVED),
        ({**TORCH, **TOUCHED}, False, Way.SERVED),
        # Each read of a start that is not known waits for a store far away: 4,000 of them.
        ({**TORCH, "latency_s": 0.05}, False, Way.COPY),
        ({**TORCH, **TOUCHED, "latency_s": 0.05}, False, Way.COPY),
        ({**TORCH, **TOUCHED, **HOT, "latency_s": 0.05}, False, Way.SERVED),
        # Many nodes share what the store gives: all of the image would take the longest.
        ({**TORCH, "latency_s": 0.05, "nodes": 100}, False, Way.SERVED),
        # A runtime that unpacks the image reads all of it, a little at a time.
        (
            {**TORCH, "touched_bytes": 3_100_000_000, "touched_reads": 48_000},
            False,
            Way.COPY,
        ),
        # Nothing is waited for that is on the node.
        ({**TORCH, "latency_s": 0.05, "node_bytes": 3_138_000_000}, True, Way.SERVED),
    ],
)
def test_what_is_chosen(known, has_file, way):
    choice = choose(Known(**known), has_file=has_file)
    assert choice.way is way, choice
    assert choice.why.startswith(f"{way.value}: some ")
    assert (Way.PAGE_CACHE in choice.waits_s) == has_file


@given(
    st.builds(
        Known,
        image_bytes=st.integers(1, 1 << 40),
        node_bytes=st.integers(0, 1 << 40),
        hot_bytes=st.integers(0, 1 << 40),
        hot_reads=st.integers(0, 10**6),
        touched_bytes=st.integers(0, 1 << 40),
        touched_reads=st.integers(0, 10**6),
        latency_s=st.floats(0, 10),
        bytes_per_s=st.floats(0, 1e12).filter(lambda rate: rate == 0 or rate > 1),
        nodes=st.integers(1, 10_000),
        nodes_then=st.integers(1, 10_000),
    ),
    st.booleans(),
)
def test_no_other_way_is_much_shorter(known, has_file):
    choice = choose(known, has_file=has_file)
    assert min(choice.waits_s.values()) >= 0.79 * choice.waits_s[choice.way]
    assert len(choice.why) < 300

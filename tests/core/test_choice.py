"""The choice of how an image is brought to a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.choice import Known, Way, choose
from bootseer.core.speed import Speed

NEAR, FAR = Speed(2_000, 200_000_000), Speed(50_000, 200_000_000)
TORCH = {"image_bytes": 3_138_000_000, "store": NEAR}
HOT = {"hot_bytes": 254_000_000}
TOUCHED = {"touched_bytes": 254_000_000, "touched_reads": 4100}


@pytest.mark.parametrize(
    ("known", "way"),
    [
        (TORCH, Way.SERVED),
        ({**TORCH, **HOT}, Way.SERVED),
        ({**TORCH, **TOUCHED}, Way.SERVED),
        ({**TORCH, "store": Speed()}, Way.SERVED),
        # Each read of a start that is not known waits for a store far away: 4,000 of them.
        ({**TORCH, "store": FAR}, Way.COPY),
        ({**TORCH, **TOUCHED, "store": FAR}, Way.COPY),
        ({**TORCH, **TOUCHED, **HOT, "store": FAR}, Way.SERVED),
        # Many nodes share what the store gives: all of the image would take the longest.
        ({**TORCH, "store": FAR, "nodes": 100}, Way.SERVED),
        # Unless as many have measured it.
        ({**TORCH, "store": Speed(50_000, 200_000_000, nodes=100), "nodes": 100}, Way.COPY),
        # A runtime that unpacks the image reads all of it, a little at a time.
        ({**TORCH, "touched_bytes": 3_100_000_000, "touched_reads": 48_000}, Way.COPY),
        # Nothing is waited for that is on the node.
        ({**TORCH, "store": FAR, "node_bytes": 3_138_000_000}, Way.SERVED),
        # The file that it was added from answers sooner.
        ({**TORCH, "file": Speed(100)}, Way.FILE),
        ({**TORCH, "store": FAR, "file": NEAR}, Way.FILE),
        ({**TORCH, "file": FAR}, Way.SERVED),
        ({**TORCH, **HOT, "file": Speed(100)}, Way.SERVED),  # too little to be gained
        ({**TORCH, **HOT, "file": Speed(100, 2_000_000_000)}, Way.FILE),
        # Nothing is gained of a small image.
        ({"image_bytes": 9_000_000, "store": FAR}, Way.SERVED),
    ],
)
def test_what_is_chosen(known, way):
    choice = choose(Known(**known))
    assert choice.way is way, choice
    assert choice.why.startswith(f"{way.value}: ")
    is_there = known.get("node_bytes") == known["image_bytes"]
    assert ("all of it is on the node" in choice.why) == is_there
    assert (Way.FILE in choice.waits_s) == ("file" in known)


@pytest.mark.parametrize("allowed", [[], [Way.COPY], [Way.FILE]])
def test_what_is_not_allowed_is_not_chosen(allowed):
    known = Known(3_138_000_000, store=Speed(500_000), file=Speed(20_000))
    assert choose(known).way is Way.COPY
    assert choose(known, allowed).way is (allowed[0] if allowed else Way.SERVED)


speeds = st.builds(
    Speed,
    latency_us=st.integers(0, 10_000_000),
    bytes_per_s=st.integers(0, 10**12),
    nodes=st.integers(1, 10_000),
)


@given(
    st.builds(
        Known,
        image_bytes=st.integers(1, 1 << 40),
        node_bytes=st.integers(0, 1 << 40),
        hot_bytes=st.integers(0, 1 << 40),
        touched_bytes=st.integers(0, 1 << 40),
        touched_reads=st.integers(0, 10**6),
        nodes=st.integers(1, 10_000),
        store=speeds,
        file=st.none() | speeds,
    )
)
def test_no_other_way_is_much_shorter(known):
    choice = choose(known)
    best = min(choice.waits_s.values())
    assert best >= 0.79 * choice.waits_s[choice.way] or best > choice.waits_s[choice.way] - 1
    assert "\n" not in choice.why
    assert len(choice.why) < 400

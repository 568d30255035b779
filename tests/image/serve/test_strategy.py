"""The choice of how an image is brought to a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core.speed import Speed
from bootseer.image.serve.strategy import AccessFacts, AccessMode, choose

NEAR, FAR = Speed(2_000, 200_000_000), Speed(50_000, 200_000_000)
TORCH = {"image_bytes": 3_138_000_000, "store": NEAR}
HOT = {"hot_bytes": 254_000_000}
TOUCHED = {"touched_bytes": 254_000_000, "touched_reads": 4100}


@pytest.mark.parametrize(
    ("known", "way"),
    [
        (TORCH, AccessMode.SERVED),
        ({**TORCH, **HOT}, AccessMode.SERVED),
        ({**TORCH, **TOUCHED}, AccessMode.SERVED),
        ({**TORCH, "store": Speed()}, AccessMode.SERVED),
        # Each read of a start that is not known waits for a store far away: 4,000 of them.
        ({**TORCH, "store": FAR}, AccessMode.COPY),
        ({**TORCH, **TOUCHED, "store": FAR}, AccessMode.COPY),
        ({**TORCH, **TOUCHED, **HOT, "store": FAR}, AccessMode.SERVED),
        # Many nodes share what the store gives: all of the image would take the longest.
        ({**TORCH, "store": FAR, "nodes": 100}, AccessMode.SERVED),
        # Unless as many have measured it.
        ({**TORCH, "store": Speed(50_000, 200_000_000, nodes=100), "nodes": 100}, AccessMode.COPY),
        # Nor of a store whose rate is not known, which is assumed of all of it.
        ({**TORCH, "store": Speed(20_000)}, AccessMode.COPY),
        ({**TORCH, "store": Speed(20_000, nodes=8), "nodes": 8}, AccessMode.SERVED),
        # A runtime that unpacks the image reads all of it, a little at a time.
        ({**TORCH, "touched_bytes": 3_100_000_000, "touched_reads": 48_000}, AccessMode.COPY),
        # Nothing is waited for that is on the node.
        ({**TORCH, "store": FAR, "node_bytes": 3_138_000_000}, AccessMode.SERVED),
        # The file that it was added from answers sooner.
        ({**TORCH, "file": Speed(100)}, AccessMode.FILE),
        ({**TORCH, "store": FAR, "file": NEAR}, AccessMode.FILE),
        ({**TORCH, "file": FAR}, AccessMode.SERVED),
        ({**TORCH, **HOT, "file": Speed(100)}, AccessMode.SERVED),  # too little to be gained
        ({**TORCH, **HOT, "file": Speed(100, 2_000_000_000)}, AccessMode.FILE),
        # Nothing is gained of a small image.
        ({"image_bytes": 9_000_000, "store": FAR}, AccessMode.SERVED),
    ],
)
def test_what_is_chosen(known, way):
    choice = choose(AccessFacts(**known))
    assert choice.way is way, choice
    assert choice.why.startswith(f"{way.value}: ")
    is_there = known.get("node_bytes") == known["image_bytes"]
    assert ("all of it is on the node" in choice.why) == is_there
    assert (AccessMode.FILE in choice.waits_s) == ("file" in known)


MB, GB = 1_000_000, 1_000_000_000
STORE, FILE = Speed(2_000, 100 * MB), Speed(10_000, 50 * MB)


@pytest.mark.parametrize(
    ("known", "served_s", "copy_s", "file_s"),
    [
        # Of 80 MB, what is usual, in 1,221 reads.
        ({}, 0.8 + 1221 * 0.002, 10, 1.6 + 1221 * 0.01),
        ({"node_bytes": GB // 4}, 0.75 * (0.8 + 1221 * 0.002), 7.5, 0.75 * (1.6 + 1221 * 0.01)),
        ({"node_bytes": 2 * GB}, 0, 0, 0),
        ({"touched_bytes": 50 * MB, "touched_reads": 10}, 0.5 + 10 * 0.002, 10, 1 + 10 * 0.01),
        ({"touched_bytes": 65536 * 3 + 1}, 0.00196609 + 4 * 0.002, 10, 0.00393218 + 4 * 0.01),
        # Of 256 KiB each, 16 at a time.
        (
            {"hot_bytes": 262_144 * 99 + 1, "touched_bytes": GB, "touched_reads": 10},
            *(0.25952257 + 100 * 0.002 / 16, 10, 0.51904514 + 100 * 0.01 / 16),
        ),
        # Half of what each of two nodes had, for each of four.
        ({"nodes": 4, "touched_bytes": 50 * MB, "touched_reads": 10}, 1.02, 20, 2.1),
        ({"nodes": 1, "touched_bytes": 50 * MB, "touched_reads": 10}, 0.52, 10, 1.1),
    ],
)  # fmt: skip
def test_how_long_each_way_takes(known, served_s, copy_s, file_s):
    store, file = (Speed(one.latency_us, one.bytes_per_s, 2) for one in (STORE, FILE))
    waits_s = choose(
        AccessFacts(**{"image_bytes": GB, "nodes": 2, "store": store, "file": file} | known)
    )
    assert waits_s.waits_s == {
        AccessMode.SERVED: pytest.approx(served_s),
        AccessMode.COPY: pytest.approx(copy_s),
        AccessMode.FILE: pytest.approx(file_s),
    }


def test_nothing_is_taken_for_known_that_was_not_said():
    known = AccessFacts(GB)
    assert (known.node_bytes, known.hot_bytes, known.file) == (0, 0, None)
    assert (known.touched_bytes, known.touched_reads) == (0, 0)
    assert (known.nodes, known.store) == (1, Speed(0, 0, 1))
    assert choose(known).waits_s == {
        AccessMode.SERVED: pytest.approx(80 * MB / 200e6),
        AccessMode.COPY: pytest.approx(GB / 200e6),
    }


@pytest.mark.parametrize(
    ("touched_bytes", "image_bytes", "way"),
    [
        (1000, 800, AccessMode.COPY),  # 10 s and 8 s
        (1000, 801, AccessMode.SERVED),
        (200, 100, AccessMode.COPY),  # 2 s and 1 s
        (200, 101, AccessMode.SERVED),
    ],
)
def test_another_way_has_to_be_a_fifth_and_a_second_shorter(touched_bytes, image_bytes, way):
    known = AccessFacts(
        image_bytes, touched_bytes=touched_bytes, touched_reads=1, store=Speed(0, 100)
    )
    assert choose(known).way is way


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({}, "nothing known of 1 GB"),
        ({"touched_bytes": 50 * MB, "touched_reads": 7}, "50 MB in 7 reads of 1 GB"),
        ({"hot_bytes": 30 * MB, "touched_bytes": 9, "touched_reads": 7}, "hot 30 MB of 1 GB"),
        ({"node_bytes": 250 * MB}, "250 MB on the node, store 2 ms a read and 100 MB/s"),
        ({"store": Speed()}, "store ? a read and ? B/s, file 10 ms a read and 50 MB/s, 3 nodes"),
        ({"file": None}, "store 2 ms a read and 100 MB/s, 3 nodes"),
    ],
)
def test_why_a_way_was_chosen_is_told(known, told):
    choice = choose(
        AccessFacts(**{"image_bytes": GB, "nodes": 3, "store": STORE, "file": FILE} | known)
    )
    assert told in choice.why


def test_the_other_ways_are_told_with_their_time():
    known = AccessFacts(GB, touched_bytes=100 * MB, touched_reads=1, store=Speed(0, 100 * MB))
    assert choose(known).why.startswith("served: some 1 s of waiting (copy 10 s); ")
    assert choose(known, []).why.startswith("served: some 1 s of waiting; ")
    known = AccessFacts(
        GB, touched_bytes=100 * MB, touched_reads=1, store=STORE, file=Speed(9, 10 * GB)
    )
    assert choose(known).why.startswith("served: some 1 s of waiting (copy 10 s, file 10 ms); ")


@pytest.mark.parametrize("allowed", [[], [AccessMode.COPY], [AccessMode.FILE]])
def test_what_is_not_allowed_is_not_chosen(allowed):
    known = AccessFacts(3_138_000_000, store=Speed(500_000), file=Speed(20_000))
    assert choose(known).way is AccessMode.COPY
    assert choose(known, allowed).way is (allowed[0] if allowed else AccessMode.SERVED)


speeds = st.builds(
    Speed,
    latency_us=st.integers(0, 10_000_000),
    bytes_per_s=st.integers(0, 10**12),
    nodes=st.integers(1, 10_000),
)


@given(
    st.builds(
        AccessFacts,
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

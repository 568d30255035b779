"""What a node reads: which names are generalised, what counts as read, what is refused."""

import json

import pytest

from bootseer.core.access_log import (
    MARK_BYTES,
    MAX_RANGES,
    AccessedFile,
    FileReads,
    NodeReads,
    Recording,
    combine,
    decode,
    expand,
    newest_components,
    numbered,
    object_name,
)
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.units import MIB


def listing(*paths):
    def names(folder):
        below = [
            p.removeprefix(f"{folder}/" if folder else "") for p in paths if p.startswith(folder)
        ]
        return sorted({p.split("/")[0] for p in below})

    return names


@pytest.mark.parametrize(
    "path, before, now, expected",
    [
        ("step_1000/r_0", ["step_1000/r_0", "step_1000/r_1"], ["step_2000/r_0"], "step_2000/r_0"),
        ("step_9/x", ["step_9/x", "step_8/x"], ["step_9/x", "step_10/x"], "step_10/x"),
        # Resumed from an older one: that is what is meant.
        ("step_8/x", ["step_9/x", "step_8/x"], ["step_9/x", "step_10/x", "step_8/x"], "step_8/x"),
        # Shards, of which other nodes read the others.
        ("s/rank_1", ["s/rank_0", "s/rank_1", "s/rank_2"], ["s/rank_1", "s/rank_2"], "s/rank_1"),
        ("s/rank_2", ["s/rank_1", "s/rank_2"], ["s/rank_1", "s/rank_2"], "s/rank_2"),
        ("e=3-s=70.pt", ["e=3-s=70.pt"], ["e=3-s=70.pt", "e=4-s=9.pt"], "e=4-s=9.pt"),
        # Of another kind.
        ("iter_1/x", ["iter_1/x"], ["iter_1/x", "step_2/x"], "iter_1/x"),
        ("latest.txt", ["latest.txt"], [], "latest.txt"),
        ("a1/b2/c", ["a1/b2/c"], ["a1/b2/c", "a3/b1/c"], "a3/b1/c"),
    ],
)  # fmt: skip
def test_numbers_mean_the_newest_where_they_were(path, before, now, expected):
    file = FileReads(path, newest_components(path, listing(*before)), ())
    assert expand(file, listing(*now)) == expected


def test_a_document_round_trips():
    files = (FileReads("a_1/b_1", (0, 1), (ByteRange(0, 5), ByteRange(9, 10))),)
    reads = NodeReads("alice", "k", 2, 1, files)
    assert decode(reads.encode(), "x", "alice", "k") == reads


@pytest.mark.parametrize(
    "field, value",
    [
        ("format", "other"),
        ("user", "mallory"),
        ("key", "other"),
        ("nodes", -1),
        ("node", "0"),
        ("files", {}),
        ("files", [{}]),
        ("files", [{"path": "../x", "newest": [], "ranges": []}]),
        ("files", [{"path": "/x", "newest": [], "ranges": []}]),
        ("files", [{"path": "a//x", "newest": [], "ranges": []}]),
        ("files", [{"path": "a/./x", "newest": [], "ranges": []}]),
        ("files", [{"path": "x", "newest": [-1], "ranges": []}]),
        ("files", [{"path": "x", "newest": [False], "ranges": []}]),
        ("files", [{"path": "x\0", "newest": [], "ranges": []}]),
        ("files", [{"path": "x", "newest": [1], "ranges": []}]),
        ("files", [{"path": "x", "newest": [0, 0], "ranges": []}]),
        ("files", [{"path": "x", "newest": ["0"], "ranges": []}]),
        ("files", [{"path": "x", "newest": [], "ranges": [[5, 5]]}]),
        ("files", [{"path": "x", "newest": [], "ranges": [[-1, 5]]}]),
        ("files", [{"path": "x", "newest": [], "ranges": [[0, 2**63]]}]),
        ("files", [{"path": "x", "newest": [], "ranges": [[0, True]]}]),
        ("files", [{"path": "x", "newest": [], "ranges": [[0, 1]] * (MAX_RANGES + 1)}]),
    ],
)
def test_damaged_documents_are_refused(field, value):
    document = json.loads(NodeReads("alice", "k", 2, 1, ()).encode())
    with pytest.raises(Corrupt):
        decode(json.dumps({**document, field: value}).encode(), "x", "alice", "k")


def test_another_version_is_refused():
    document = json.loads(NodeReads("alice", "k", 2, 1, ()).encode())
    with pytest.raises(UnknownVersion):
        decode(json.dumps({**document, "version": 2}).encode(), "x", "alice", "k")
    for cut in (b"", b"[]", b"[" * 100_000):
        with pytest.raises(Corrupt):
            decode(cut, "x", "alice", "k")


def test_sequential_and_scattered_reads_become_few_ranges():
    recording = Recording("x", 0)
    for offset in range(0, 100 << 20, 1 << 20):
        recording.add(offset, 1 << 20)
    recording.add(5, 0)
    assert recording.ranges == [ByteRange(0, 100 << 20)]
    for number in range(10_000):
        recording.add((1 << 40) + number * (64 << 20), 4096)
    ranges = recording.read()
    assert len(ranges) <= MAX_RANGES
    assert ranges[0].start == 0
    assert ranges[-1].stop == (1 << 40) + 9_999 * (64 << 20) + 4096


def test_prefetched_ranges_count_if_the_job_opened_the_file():
    def seen(path, opens, *ranges):
        return AccessedFile(path, (), list(ranges), opens)

    recorded = [
        seen("used", 2),
        seen("unused", 1),
        seen("new", 1, ByteRange(0, 7)),
        seen("both", 3, ByteRange(0, 7)),
    ]
    whole = [ByteRange(0, 1 << 30)]
    ahead = dict.fromkeys(("used", "unused", "both"), (1, whole))
    found = {file.path: file.ranges for file in combine(recorded, ahead)}
    assert found == {"used": tuple(whole), "new": (ByteRange(0, 7),), "both": tuple(whole)}


def scattered(count, step_bytes):
    return [ByteRange(n * step_bytes, n * step_bytes + 10) for n in range(count)]


def test_reads_are_noted_as_they_were_while_they_are_few():
    recording = Recording("x", 0)
    assert (recording.opens, recording.ranges, recording.pushed) == (0, [], [])
    recording.add(7, 1)
    recording.add(5, 0)
    recording.add(2, 1)
    recording.add(3, 2)
    recording.push(20, 1)
    recording.push(21, 4)
    assert recording.ranges == [ByteRange(7, 8), ByteRange(2, 5)]
    assert recording.pushed == [ByteRange(20, 25)]
    several = scattered(2 * MAX_RANGES + 1, 10 * MIB)
    recording = Recording("x", 0)
    for start, _ in several[:-1]:
        recording.add(start, 10)
    assert recording.ranges == several[:-1]
    recording.add(several[-1].start, 10)
    assert len(recording.ranges) <= MAX_RANGES


@pytest.mark.parametrize(
    ("ranges", "read"),
    [
        (scattered(MAX_RANGES, 2 * MIB), scattered(MAX_RANGES, 2 * MIB)),
        (scattered(MAX_RANGES + 1, 2 * MIB), [ByteRange(0, 2 * MIB * MAX_RANGES + 10)]),
        ([ByteRange(0, 5), ByteRange(5 + MIB, 6 + MIB)], [ByteRange(0, 6 + MIB)]),
        ([ByteRange(0, 5), ByteRange(6 + MIB, 7 + MIB)],) * 2,
    ],
    ids=["as many as fit", "one more", "near", "less near"],
)
def test_ranges_are_joined_as_far_as_it_takes(ranges, read):
    assert Recording("x", 0, 1, ranges).read() == read


def test_pushed_ranges_count_between_requested_marks():
    pushed = [ByteRange(4096, 3 * MARK_BYTES), ByteRange(4 * MARK_BYTES, 5 * MARK_BYTES)]
    inside = ByteRange(MARK_BYTES + 5, MARK_BYTES + 6)
    recording = Recording("x", 0, 1, [inside], pushed)
    assert recording.read() == [ByteRange(MARK_BYTES, 2 * MARK_BYTES)]
    recording.ranges.append(ByteRange(2 * MARK_BYTES - 1, 2 * MARK_BYTES + 1))
    assert recording.read() == [ByteRange(MARK_BYTES, 3 * MARK_BYTES)]
    recording.ranges[:] = [ByteRange(0, MARK_BYTES)]
    assert recording.read() == [ByteRange(0, MARK_BYTES)]
    recording.ranges[:] = []
    assert recording.read() == []


def test_parents_of_numbered_components_are_listed():
    assert numbered("step_1/model/rank_2") == ["", "step_1/model"]
    assert numbered("a/b2/c/d") == ["a"]
    assert numbered("latest") == []


def test_prefetched_files_that_the_job_did_not_open_do_not_count():
    def seen(path, opens):
        return AccessedFile(path, (), [ByteRange(0, 7)], opens)

    whole = [ByteRange(0, 9)]
    assert combine([seen("a", 0), seen("b", 1), seen("c", 2)], {"c": (2, whole)}) == (
        FileReads("b", (), (ByteRange(0, 7),)),
    )


def test_a_document_is_named_by_key_and_node():
    name = object_name("k", 4, 2)
    assert name.startswith("reads/") and name.endswith("/4/2.json")
    assert len({name, object_name("l", 4, 2), object_name("k", 2, 4)}) == 3
    assert object_name("../" * 9, 1, 0).count("/") == 3

"""Frames hold the stream between them, and whatever else is found in one is refused."""

import itertools
import os
import struct
import subprocess
from dataclasses import replace

import lz4.frame
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core import table
from bootseer.env.snapshot import frames
from bootseer.env.snapshot.frames import FRAME_BYTES, Frame, compress, content, cut, decode, encode
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.units import MIB


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 500))
def test_a_stream_is_cut_into_pieces_that_end_with_members(members, frame_bytes):
    starts = [0, *itertools.accumulate(members)][:-1]
    size_bytes = sum(members)
    at = 0
    for length in cut(starts, size_bytes, frame_bytes):
        assert 0 < length <= frame_bytes
        at += length
        fits = [s for s in starts if at - length + (frame_bytes + 1) // 2 <= s]
        if at < size_bytes and any(s <= at - length + frame_bytes for s in fits):
            assert at in starts
    assert at == size_bytes


@pytest.mark.parametrize(
    ("starts", "size_bytes", "frame_bytes", "lengths"),
    [
        ([0, 50], 120, 100, [50, 70]),
        ([0, 49], 120, 100, [100, 20]),
        ([0, 51], 120, 101, [51, 69]),
        ([0, 50], 120, 101, [101, 19]),
        ([0, 60, 100, 110], 150, 100, [100, 50]),
        ([0, 60, 101], 150, 100, [60, 90]),
        ([0, 60], 100, 100, [100]),
        ([0], 250, 100, [100, 100, 50]),
        ([], 0, 100, []),
    ],
)
def test_a_frame_ends_with_the_last_member_that_leaves_it_half_full(
    starts, size_bytes, frame_bytes, lengths
):
    assert list(cut(starts, size_bytes, frame_bytes)) == lengths


@given(
    st.lists(st.binary(max_size=90), max_size=20),
    st.lists(st.integers(1, 70), max_size=40),
    st.integers(1, 3),
)
def test_what_is_compressed_comes_out(chunks, lengths, threads):
    whole = b"".join(chunks)
    stops = [min(stop, len(whole)) for stop in itertools.accumulate(lengths)] + [len(whole)]
    lengths = [b - a for a, b in itertools.pairwise([0, *stops]) if b > a]
    made = list(compress(chunks, lengths, threads))
    assert [frame.size_bytes for frame, _ in made] == lengths
    assert b"".join(content(frame, stored) for frame, stored in made) == whole
    assert b"".join(lz4.frame.decompress(stored) for _, stored in made) == whole
    assert decode(encode(frame for frame, _ in made), "table") == tuple(f for f, _ in made)


def test_all_frames_together_are_an_ordinary_file(tmp_path):
    whole = os.urandom(3 * MIB) + bytes(20 * MIB) + os.urandom(100)
    path = tmp_path / "all.lz4"
    path.write_bytes(b"".join(s for _, s in compress([whole], cut([], len(whole)))))
    done = subprocess.run(["lz4", "-dc", str(path)], check=True, capture_output=True)
    assert done.stdout == whole
    assert len(list(cut([], len(whole)))) == -(-len(whole) // FRAME_BYTES)


def test_a_few_frames_are_in_memory_at_a_time():
    taken = 0

    def chunks():
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield bytes(1000)

    for number, _ in enumerate(compress(chunks(), [1000] * 50, threads=2), 1):
        assert taken == min(50, number + 2 * 2 - 1)


def test_a_frame_says_how_long_it_is_and_has_blocks_of_their_own():
    [(frame, stored)] = compress([bytes(600_000)], [600_000])
    about = lz4.frame.get_frame_info(stored)
    assert about["content_size"] == frame.size_bytes and not about["block_linked"]
    assert about["block_size"] == 256 << 10


def test_who_stops_leaves_no_thread(threads_left):
    made = compress([bytes(1000)], [10] * 100)
    next(made)
    made.close()
    assert not threads_left()


def test_a_stream_that_fails_leaves_no_thread(threads_left):
    def chunks():
        yield bytes(1000)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(compress(chunks(), [100] * 100))
    with pytest.raises(ValueError, match="shorter"):
        list(compress([bytes(5)], [6]))
    assert not threads_left()


def frame_of(stored, size_bytes):
    return Frame(0, size_bytes, 0, len(stored), blake3(stored).digest())


DATA = os.urandom(1000) + bytes(100_000)


def lying(size_bytes, **options):
    """A frame whose header says another length, with the right checksum of the header."""
    made = bytearray(lz4.frame.compress(DATA, store_size=True, **options))
    struct.pack_into("<Q", made, 6, size_bytes)
    made[14] = _xxh32(bytes(made[4:14])) >> 8 & 0xFF
    return bytes(made)


def _xxh32(data):
    import xxhash

    return xxhash.xxh32(data).intdigest()


def good(data=DATA):
    return lz4.frame.compress(data, store_size=True)


SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"skip"
NOT_ONE_FRAME = {
    "nothing": (b"", len(DATA)),
    "no frame": (b"hello, this is no LZ4 frame at all", len(DATA)),
    "less than it should be": (good(DATA[:-1]), len(DATA)),
    "more than it should be": (good(DATA + b"x"), len(DATA)),
    "a header that says more": (lying(1 << 60), len(DATA)),
    "a header that says more, believed": (lying(len(DATA) + 1), len(DATA) + 1),
    "a header that says less, believed": (lying(len(DATA) - 1), len(DATA) - 1),
    "a header that says nothing": (lz4.frame.compress(DATA, store_size=False), len(DATA)),
    "a bomb": (good(bytes(50 * MIB)), 1000),
    "a bomb that says it is small": (lying(1000), 1000),
    "bytes behind": (good() + b"x", len(DATA)),
    "two frames": (good(DATA[:500]) + good(DATA[500:]), len(DATA)),
    "one with an empty one behind": (good() + lz4.frame.compress(b""), len(DATA)),
    "what is to be skipped": (SKIPPABLE, len(DATA)),
    "something to be skipped before it": (SKIPPABLE + good(), len(DATA)),
    "something to be skipped behind it": (good() + SKIPPABLE, len(DATA)),
    "the first half": (good()[: len(good()) // 2], len(DATA)),
    "no end mark": (good()[:-4], len(DATA)),
    "a damaged block": (good()[:15] + b"\xff\xff\0\0" + good()[19:], len(DATA)),
}


@pytest.mark.parametrize("what", NOT_ONE_FRAME)
def test_what_is_not_one_frame_of_that_length_is_refused(what):
    stored, size_bytes = NOT_ONE_FRAME[what]
    with pytest.raises(Corrupt, match="not one LZ4 frame"):
        content(frame_of(stored, size_bytes), stored)


def test_a_good_one_is_taken_and_the_buffer_used():
    buffer = bytearray(len(DATA) + 5)
    assert content(frame_of(good(), len(DATA)), good(), buffer) == DATA
    assert buffer == DATA + bytes(5)
    with pytest.raises(Corrupt):
        content(frame_of(good(), len(DATA)), good(), bytearray(len(DATA) - 1))


@pytest.mark.parametrize(
    "stored", [good()[:-1], good() + b"x", good(DATA[::-1]), good()[:-1] + b"\1", b""]
)
def test_what_has_another_digest_is_not_even_decompressed(stored, monkeypatch):
    monkeypatch.setattr(frames, "lib", None)
    with pytest.raises(Corrupt, match="digest"):
        content(frame_of(good(), len(DATA)), stored)


FRAMES = [
    Frame(0, 1000, 0, 100, bytes(32)),
    Frame(1000, 500, 100, 60, bytes(32)),
    Frame(1500, 7, 160, 33, bytes(32)),
]


def with_second(**changes):
    return [FRAMES[0], replace(FRAMES[1], **changes), FRAMES[2]]


REFUSED = {
    "overlapping": with_second(start=999),
    "a gap": with_second(start=1001),
    "overlapping where it is stored": with_second(stored_start=99),
    "a gap where it is stored": with_second(stored_start=101),
    "none before": FRAMES[1:],
    "swapped": [FRAMES[1], FRAMES[0], FRAMES[2]],
    "twice": [FRAMES[0], *FRAMES],
    "longer than the next begins": with_second(size_bytes=501),
    "empty": [Frame(0, 0, 0, 33, bytes(32))],
    "empty where it is stored": [replace(FRAMES[0], stored_bytes=0)],
    "too long": [Frame(0, 64 * MIB + 1, 0, MIB, bytes(32))],
    "stored in more than it can take": [Frame(0, 1000, 0, 1000 + 3 + 65, bytes(32))],
    "more than can have been compressed": [Frame(0, 255 * 1000 + 1, 0, 1000, bytes(32))],
}


@pytest.mark.parametrize(
    ("size_bytes", "stored_bytes"),
    [(64 * MIB, MIB), (1000, 1000 + 3 + 64), (255 * 1000, 1000), (1, 20)],
)
def test_tables_that_are_just_taken(size_bytes, stored_bytes):
    frame = Frame(0, size_bytes, 0, stored_bytes, bytes(32))
    assert decode(encode([frame]), "table") == (frame,)


@pytest.mark.parametrize("what", REFUSED)
def test_tables_that_are_refused(what):
    with pytest.raises(Corrupt, match="table: frame"):
        decode(encode(REFUSED[what]), "table")


@pytest.mark.parametrize("key", ["frames", "size_bytes", "stored_bytes"])
def test_a_header_that_says_something_else_is_refused(key):
    data = encode(FRAMES)
    header, rows = table.open_table(frames.MAGIC, frames.VERSION, 56, data, "")
    changed = table.close_table(frames.MAGIC, 1, header | {key: 1 << 40}, 56, bytes(rows))
    with pytest.raises(Corrupt, match="header says"):
        decode(changed, "table")


def test_damage_and_other_versions_of_a_table_are_refused():
    data = encode(FRAMES)
    for at in range(len(data)):
        with pytest.raises((Corrupt, UnknownVersion)):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "table")
    with pytest.raises(UnknownVersion):
        decode(table.close_table(frames.MAGIC, 2, {}, 56, b""), "table")

"""The index of a hot pack, and when an image is to have one."""

import struct
from dataclasses import replace

import pytest
from bootseer_dev.material.stored_image import manifest_of
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core import table
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.image.hot import pack
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.hot.pack import HotPack, hot_blocks, plan_pack
from bootseer.units import MIB

BLOCK = 4096
MANIFEST = manifest_of(bytes(1000 * BLOCK + 77))
LAST = MANIFEST.blocks - 1
IMAGE = "ab" * 32
PACK = HotPack(IMAGE, "sqfs1-test", BLOCK, MIB, 3 * BLOCK, (7, 2, 3))


def hot_set(*blocks):
    ranges = [HotRange(i * BLOCK, i * BLOCK + 9, n, 1_000_000) for n, i in enumerate(blocks)]
    return HotSet("sqfs1-test", MANIFEST.size_bytes, ("c.1",), tuple(ranges))


def planned(*blocks):
    return plan_pack(MANIFEST, IMAGE, hot_set(*blocks))


def touches(*blocks):
    return [(i * BLOCK + 5, i * BLOCK + 6) for i in blocks]


@given(st.lists(st.integers(0, LAST), max_size=700, unique=True))
def test_a_pack_has_each_hot_block_once_and_its_index_is_read_back(blocks):
    plan = planned(*blocks)
    assert sorted(plan.blocks) == sorted({0, *blocks})  # 0: the superblock
    assert LAST not in plan.blocks[:-1]
    assert plan.size_bytes == sum(MANIFEST.block_range(i).size_bytes for i in plan.blocks)
    read = pack.decode(plan.encode(), "p")
    assert read == plan
    pack.check_fits(read, MANIFEST, IMAGE, "p")
    rows = [plan.row_range(range(row, row + 1)).size_bytes for row in range(len(plan.blocks))]
    assert rows == [MANIFEST.block_range(i).size_bytes for i in plan.blocks]
    assert sum(plan.part_range(i).size_bytes for i in range(plan.parts)) == plan.size_bytes


def test_blocks_are_in_the_order_of_first_touch_and_sorted_within_a_piece():
    blocks = [*range(900, 500, -1), 3, 2]
    plan = planned(*blocks)
    wanted = hot_blocks(MANIFEST, hot_set(*blocks))
    per_piece = MIB // BLOCK
    assert wanted[:3] == [0, 900, 899]
    for at in range(0, len(wanted), per_piece):
        assert plan.blocks[at : at + per_piece] == tuple(sorted(wanted[at : at + per_piece]))


def test_a_pack_is_stored_in_parts_of_a_length():
    blocks = tuple(range(3 * MIB // BLOCK + 1))
    packed = replace(PACK, part_bytes=MIB, size_bytes=3 * MIB + BLOCK, blocks=blocks)
    ranges = [packed.part_range(index) for index in range(packed.parts)]
    assert ranges == [
        *[ByteRange(index * MIB, (index + 1) * MIB) for index in range(3)],
        ByteRange(3 * MIB, 3 * MIB + BLOCK),
    ]
    assert replace(packed, size_bytes=3 * MIB).parts == 3
    assert packed.row_range(range(1, 4)) == ByteRange(BLOCK, 4 * BLOCK)


def test_what_is_hot_is_packed_for_its_image_in_parts():
    packed = planned(5)
    assert (packed.image, packed.identity) == (IMAGE, "sqfs1-test")
    assert (packed.block_bytes, packed.part_bytes) == (BLOCK, pack.PART_BYTES)


@given(st.data())
def test_one_changed_byte_is_noticed(data):
    encoded = bytearray(PACK.encode())
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        pack.decode(bytes(encoded), "damaged")


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data):
    for damaged in (data, PACK.encode()[:-1], PACK.encode() + data + b"x"):
        with pytest.raises(Corrupt):
            pack.decode(damaged, "damaged")


@pytest.mark.parametrize(
    "change",
    [
        {"blocks": ()},
        {"blocks": (7, 2, 7)},
        {"blocks": (7, 2)},
        {"size_bytes": 2 * BLOCK},
        {"size_bytes": 3 * BLOCK + 1},
        {"part_bytes": 0},
        {"part_bytes": MIB + BLOCK},
        {"part_bytes": 128 * MIB},
        {"block_bytes": 0},
        {"block_bytes": 2 * MIB},
        {"image": "x" * 65},
        {"identity": "x" * 201},
    ],
    ids=str,
)
def test_what_does_not_fit_itself_is_refused(change):
    with pytest.raises(Corrupt):
        pack.decode(replace(PACK, **change).encode(), "p")


def test_a_header_without_a_field_is_refused():
    row = struct.Struct("<I")
    encoded = table.encode(pack.MAGIC, pack.VERSION, {"image": IMAGE}, row, [(1,)])
    with pytest.raises(Corrupt, match="identity"):
        pack.decode(encoded, "p")


def test_versions_to_come_are_refused():
    newer = bytearray(PACK.encode())
    newer[8] = 99
    with pytest.raises(UnknownVersion, match="version 99"):
        pack.decode(bytes(newer), "p")


@pytest.mark.parametrize(
    "change",
    [
        {"image": "cd" * 32},
        {"block_bytes": 2 * BLOCK, "size_bytes": 6 * BLOCK},
        {"blocks": (7, LAST + 1, 3)},
        {"size_bytes": 3 * BLOCK - 1},
        {"blocks": (7, LAST, 3)},
        {"blocks": (7, 3, LAST)},
    ],
    ids=str,
)
def test_the_pack_of_another_image_is_refused(change):
    pack.check_fits(PACK, MANIFEST, IMAGE, "p")
    with pytest.raises(Corrupt):
        pack.check_fits(replace(PACK, **change), MANIFEST, IMAGE, "p")


def test_the_last_block_may_be_anywhere_if_it_is_as_long_as_the_others():
    whole = manifest_of(bytes(1000 * BLOCK))
    pack.check_fits(replace(PACK, blocks=(7, 999, 3)), whole, IMAGE, "p")
    with pytest.raises(Corrupt, match="not those of the image"):
        pack.check_fits(replace(PACK, blocks=(7, 1000, 3)), whole, IMAGE, "p")


def test_a_hot_set_has_settled_when_a_start_has_missed_next_to_nothing():
    known = hot_set(*range(100))
    assert pack.has_settled(MANIFEST, known, [])
    assert pack.has_settled(MANIFEST, known, touches(*range(50)))
    assert pack.has_settled(MANIFEST, known, touches(5, 200, 201, 202))
    assert not pack.has_settled(MANIFEST, known, touches(5, 200, 201, 202, 203))
    assert not pack.has_settled(MANIFEST, hot_set(), [])


def test_an_image_that_is_read_as_a_whole_gains_nothing():
    assert pack.is_worth_it(MANIFEST, planned(*range(10)))
    assert pack.is_worth_it(MANIFEST, planned(*range(500)))
    assert not pack.is_worth_it(MANIFEST, planned(*range(501)))
    assert pack.is_worth_it(MANIFEST, planned())
    assert not pack.is_worth_it(MANIFEST, replace(planned(), blocks=()))


def test_more_than_a_start_reads_is_not_packed(monkeypatch):
    monkeypatch.setattr(pack, "MAX_PACKED", 9)
    assert pack.is_worth_it(MANIFEST, planned(*range(9)))
    assert pack.decode(planned(*range(9)).encode(), "p") == planned(*range(9))
    assert not pack.is_worth_it(MANIFEST, planned(*range(10)))
    with pytest.raises(Corrupt, match="10 blocks"):
        pack.decode(planned(*range(10)).encode(), "p")


def test_a_pack_is_outdated_when_it_lacks_much_or_holds_much_for_nothing():
    current = planned(*range(100))
    assert not pack.is_outdated(current, planned(*range(99, -1, -1)))
    assert not pack.is_outdated(current, planned(*range(105)))
    assert not pack.is_outdated(planned(*range(95)), current)
    assert pack.is_outdated(current, planned(*range(106)))
    assert not pack.is_outdated(current, planned(*range(67)))
    assert pack.is_outdated(current, planned(*range(66)))
    assert pack.is_outdated(current, plan_pack(MANIFEST, "cd" * 32, hot_set(*range(100))))
    assert pack.is_outdated(current, replace(current, block_bytes=2 * BLOCK))

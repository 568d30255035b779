"""The manifest of an image: what is written is read back, what is damaged is refused."""

from dataclasses import replace

import pytest
from bootseer_dev.material.stored_image import manifest_of
from hypothesis import given
from hypothesis import strategies as st

from bootseer.core import image_manifest
from bootseer.core.image_manifest import MAX_BLOCKS, block_bytes_for, image_digest
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.units import GIB, KIB, MIB

BLOCK = 4 * KIB
MANIFEST = manifest_of(bytes(range(256)) * 100)


@given(st.binary(min_size=1, max_size=5 * BLOCK), st.sampled_from([BLOCK, 2 * BLOCK]))
def test_a_manifest_is_read_back(content, block_bytes):
    manifest = manifest_of(content, block_bytes)
    encoded = manifest.encode()
    assert encoded == manifest_of(content, block_bytes).encode()
    read = image_manifest.decode(encoded, "m", image_digest(encoded))
    assert read == replace(manifest, digests=read.digests)
    assert read.encode() == encoded
    for index in range(read.blocks):
        block = read.block_range(index)
        data = content[block.start : block.stop]
        assert read.matches(index, data)
        assert not read.matches(index, data[:-1] + bytes([data[-1] ^ 1]))
    assert sum(read.block_range(i).size_bytes for i in range(read.blocks)) == len(content)


@given(st.data())
def test_one_changed_byte_is_noticed(data):
    encoded = bytearray(MANIFEST.encode())
    digest = image_digest(bytes(encoded))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        image_manifest.decode(bytes(encoded), "damaged", digest)


def test_another_images_manifest_is_refused():
    encoded = MANIFEST.encode()
    with pytest.raises(Corrupt, match="another image"):
        image_manifest.decode(encoded, "m", "0" * 64)


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": MANIFEST.size_bytes + BLOCK},
        {"size_bytes": 0},
        {"block_bytes": BLOCK + 1},
        {"block_bytes": 2048},
        {"block_bytes": 2 * MIB},
        {"part_bytes": 0},
        {"part_bytes": MIB + BLOCK},
        {"part_bytes": 2 * GIB},
        {"sha256": "x" * 65},
        {"leading": (ByteRange(0, MANIFEST.size_bytes + 1),)},
        {"leading": (ByteRange(5, 5),)},
        {"digests": bytes(MANIFEST.digests)[32:]},
    ],
    ids=str,
)
def test_inconsistent_manifests_are_refused(change):
    encoded = replace(MANIFEST, **change).encode()
    with pytest.raises(Corrupt):
        image_manifest.decode(encoded, "m", image_digest(encoded))


@pytest.mark.parametrize("block_bytes", [2048, BLOCK - 1, BLOCK + 1, 3 * BLOCK, 6 * BLOCK])
def test_blocks_are_powers_of_two_and_no_less_than_pages(block_bytes):
    encoded = manifest_of(bytes(10 * BLOCK), block_bytes).encode()
    with pytest.raises(Corrupt, match=f"block length of {block_bytes} bytes"):
        image_manifest.decode(encoded, "m", image_digest(encoded))


def test_an_image_of_nothing_is_refused():
    encoded = replace(manifest_of(b""), leading=()).encode()
    with pytest.raises(Corrupt, match="0 digests do not fit 0 bytes"):
        image_manifest.decode(encoded, "m", image_digest(encoded))


def test_tables_may_be_all_of_an_image():
    manifest = replace(MANIFEST, leading=(ByteRange(0, MANIFEST.size_bytes),))
    encoded = manifest.encode()
    assert image_manifest.decode(encoded, "m", image_digest(encoded)).leading == manifest.leading


def test_versions_to_come_are_refused():
    encoded = bytearray(MANIFEST.encode())
    encoded[8] = 99
    with pytest.raises(UnknownVersion):
        image_manifest.decode(bytes(encoded), "m", image_digest(bytes(encoded)))


@given(st.integers(0, 30 * BLOCK), st.integers(1, 10 * BLOCK))
def test_covering_blocks_are_those_that_hold_the_bytes(offset, size_bytes):
    covering = MANIFEST.covering(offset, size_bytes)
    wanted = range(offset, min(offset + size_bytes, MANIFEST.size_bytes))
    blocks = [
        i
        for i in range(MANIFEST.blocks)
        if wanted
        and MANIFEST.block_range(i).start <= wanted[-1]
        and MANIFEST.block_range(i).stop > wanted[0]
    ]
    assert list(covering) == blocks


def test_nothing_is_in_no_block():
    assert len(MANIFEST.covering(MANIFEST.size_bytes, 1)) == 0
    assert len(MANIFEST.covering(MANIFEST.size_bytes - 1, 0)) == 0
    assert list(MANIFEST.covering(MANIFEST.size_bytes - 1, 1)) == [MANIFEST.blocks - 1]


def test_bad_block_returns_the_first_wrong_block():
    content = bytes(range(256)) * 100
    blocks = (6, 1, 2)
    data = b"".join(content[r.start : r.stop] for r in map(MANIFEST.block_range, blocks))
    assert MANIFEST.bad_block(blocks, memoryview(data)) is None
    assert MANIFEST.bad_block((), memoryview(b"")) is None
    cut = [(index, bytes(part)) for index, part in MANIFEST.cut(blocks, memoryview(data))]
    assert cut == [(i, content[i * BLOCK : (i + 1) * BLOCK]) for i in blocks]
    damaged = bytearray(data)
    damaged[-1] ^= 1
    assert MANIFEST.bad_block(blocks, memoryview(damaged)) == 2
    damaged[-BLOCK - 1] ^= 1
    assert MANIFEST.bad_block(blocks, memoryview(damaged)) == 1


@pytest.mark.parametrize(("size_bytes", "parts"), [(1, 1), (MIB, 1), (MIB + 1, 2), (5 * MIB, 5)])
def test_parts_hold_all_of_an_image_one_after_the_other(size_bytes, parts):
    manifest = replace(MANIFEST, size_bytes=size_bytes)
    ranges = [manifest.part_range(index) for index in range(manifest.parts)]
    assert len(ranges) == parts
    assert [0, *(r.stop for r in ranges)] == [*(r.start for r in ranges), size_bytes]
    assert all(r.size_bytes == MIB for r in ranges[:-1])


@pytest.mark.parametrize(
    ("blocks", "factor"),
    [(1, 1), (MAX_BLOCKS, 1), (MAX_BLOCKS + 1, 2), (2 * MAX_BLOCKS, 2), (2 * MAX_BLOCKS + 1, 4)],
)
def test_blocks_are_as_short_as_a_manifest_has_room_for(blocks, factor):
    assert (
        block_bytes_for(blocks * image_manifest.BLOCK_BYTES) == factor * image_manifest.BLOCK_BYTES
    )
    assert (
        block_bytes_for(blocks * image_manifest.BLOCK_BYTES - 1)
        == factor * image_manifest.BLOCK_BYTES
    )


@pytest.mark.parametrize("size_bytes", [1, 3 * GIB, 61 * GIB, 62 * GIB, 900 * GIB])
def test_every_image_has_a_manifest_with_room_for_it(size_bytes):
    block_bytes = block_bytes_for(size_bytes)
    assert -(-size_bytes // block_bytes) <= MAX_BLOCKS
    assert block_bytes <= image_manifest.MAX_BLOCK_BYTES
    assert 32 * MAX_BLOCKS < image_manifest.MAX_BYTES

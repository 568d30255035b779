"""Tables of a squashfs whose data has moved: new places, and every other byte as it was."""

import struct

import pytest

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt
from bootseer.image.optimize.moves import DataMove, DataMoves
from bootseer.image.optimize.relocation import (
    encode_table,
    relocate_directories,
    relocate_fragments,
    relocate_inodes,
    relocate_reference,
    relocate_xattrs,
)
from bootseer.squashfs.inodes import Fragment, MetadataTable, read_inodes
from bootseer.squashfs.superblock import BLOCK_RAW, METADATA_BYTES, METADATA_RAW, NO_FRAGMENT
from bootseer.squashfs.xattrs import SET

SPACED = {1000 * number: number for number in range(3)}
"""Where a table's three blocks began, stored with compression."""
STORED_BYTES = 2 + METADATA_BYTES
"""Of a block that is stored as it is."""
MOVES = DataMoves(
    [
        DataMove(ByteRange(100, 150), ByteRange(500, 550)),
        DataMove(ByteRange(150, 160), ByteRange(600, 640), 40 | BLOCK_RAW),
        DataMove(ByteRange(160, 200), ByteRange(900, 940)),
    ]
)
NOWHERE = 77


def table(data):
    return MetadataTable(data.ljust(2 * METADATA_BYTES + 1, b"\0"), SPACED)


@pytest.mark.parametrize("size_bytes", [0, 1, METADATA_BYTES, METADATA_BYTES + 1])
def test_a_table_is_stored_in_blocks_as_they_are(size_bytes):
    data = bytes(range(256)) * 33
    blocks = list(encode_table(data[:size_bytes]))
    lengths = [struct.unpack_from("<H", block)[0] ^ METADATA_RAW for block in blocks]
    assert lengths == [len(block) - 2 for block in blocks]
    assert all(length == METADATA_BYTES for length in lengths[:-1])
    assert all(0 < length <= METADATA_BYTES for length in lengths)
    assert b"".join(block[2:] for block in blocks) == data[:size_bytes]


def test_a_reference_leads_to_the_same_place_of_the_table():
    for number in range(3):
        reference = relocate_reference(table(b""), 1000 * number << 16 | 0x1234)
        assert reference == STORED_BYTES * number << 16 | 0x1234
    with pytest.raises(Corrupt, match="a place outside"):
        relocate_reference(table(b""), NOWHERE << 16)


def test_fragment_blocks_are_where_they_went():
    fragments = [Fragment(160, 40), Fragment(150, 10), Fragment(0, 0), Fragment(7, BLOCK_RAW)]
    assert relocate_fragments(fragments, MOVES) == b"".join(
        struct.pack("<QII", start, length, 0)
        for start, length in ((900, 40), (600, 40 | BLOCK_RAW), (0, 0), (7, BLOCK_RAW))
    )


def head(kind):
    return struct.pack("<4H2I", kind, 0o755, 0, 0, 5, 6)


def short_file(start, *lengths):
    size_bytes = 4096 * len(lengths)
    fields = (start, NO_FRAGMENT, 0, size_bytes, *lengths)
    return head(2) + struct.pack(f"<{len(fields)}I", *fields)


def long_file(start, *lengths):
    fields = (start, 4096 * len(lengths), 99, 7, NO_FRAGMENT, 0, 12, *lengths)
    return head(9) + struct.pack(f"<3Q{len(fields) - 3}I", *fields)


def short_directory(block, size_bytes):
    return head(1) + struct.pack("<2I2HI", block, 7, size_bytes, 90, 99)


def long_directory(block, *index_blocks):
    indexes = b"".join(struct.pack("<3I", 5, index, 2) + b"abc" for index in index_blocks)
    return head(8) + struct.pack("<4I2HI", 7, 80, block, 99, len(index_blocks), 90, 12) + indexes


LINK = head(3) + struct.pack("<2I", 7, 3) + b"a/b"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (short_file(100, 50, 0, 10, 40), short_file(500, 50, 0, 40 | BLOCK_RAW, 40)),
        (short_file(150, 0, 10), short_file(600, 0, 40 | BLOCK_RAW)),
        (short_file(160, 40 | BLOCK_RAW), short_file(900, 40 | BLOCK_RAW)),
        (long_file(100, 50, 10), long_file(500, 50, 40 | BLOCK_RAW)),
        (long_file(0, 0, 0), long_file(0, 0, 0)),
        (short_file(0), short_file(0)),
        (short_directory(2000, 4), short_directory(2 * STORED_BYTES, 4)),
        (short_directory(NOWHERE, 3), short_directory(NOWHERE, 3)),
        (long_directory(1000), long_directory(STORED_BYTES)),
        (long_directory(0, 1000, 2000), long_directory(0, STORED_BYTES, 2 * STORED_BYTES)),
        (LINK, LINK),
    ],
)
def test_an_inode_names_the_new_places(before, after):
    first = short_file(100, 50)  # so that the inode does not begin where the table does
    inodes = MetadataTable(first + before + LINK, {0: 0})
    found = list(read_inodes(inodes, 4096))
    expected = short_file(500, 50) + after + LINK
    assert relocate_inodes(inodes, table(b""), found, MOVES) == expected


@pytest.mark.parametrize(
    "before", [short_directory(NOWHERE, 4), long_directory(NOWHERE), long_directory(0, NOWHERE)]
)
def test_a_directory_at_a_place_that_is_none_is_refused(before):
    inodes = MetadataTable(before, {0: 0})
    with pytest.raises(Corrupt, match="a place outside"):
        relocate_inodes(inodes, table(b""), read_inodes(inodes, 4096), MOVES)


def listed(*blocks):
    entry = struct.pack("<HhHH", 5, 1, 2, 0) + b"a"
    return b"".join(struct.pack("<3I", 0, block, 9) + entry for block in blocks)


def test_a_directory_names_the_new_places_of_its_inodes():
    data = listed(1000, 0, 2000)
    directory = head(1) + struct.pack("<2I2HI", 0, 2, len(data) + 3, 0, 99)
    found = list(read_inodes(MetadataTable(LINK + directory, {0: 0}), 4096))
    expected = listed(STORED_BYTES, 0, 2 * STORED_BYTES)
    assert relocate_directories(table(b""), MetadataTable(data, {0: 0}), found) == expected
    with pytest.raises(Corrupt, match="a place outside"):
        relocate_directories(table(b""), MetadataTable(listed(0, 0, NOWHERE), {0: 0}), found)


def xattr(kind, name, value):
    return struct.pack("<2H", kind, len(name)) + name + struct.pack("<I", len(value)) + value


def reference(block, offset):
    return struct.pack("<Q", block << 16 | offset)


def test_attributes_and_their_values_are_where_they_went():
    shared = xattr(0, b"a", b"long and shared").ljust(METADATA_BYTES, b"\0")

    def values(block):
        return shared + xattr(0, b"b", b"v") + xattr(0x100, b"c", reference(block, 5))

    def sets(block):
        return SET.pack(block << 16, 2, 77) + SET.pack(0, 1, 88)

    data, rows = relocate_xattrs(table(values(0)), sets(1000))
    assert (data[: len(values(0))], rows) == (values(0), sets(STORED_BYTES))
    # As if the table had another block before it.
    later = MetadataTable(bytes(METADATA_BYTES) + values(1000), SPACED)
    data, rows = relocate_xattrs(later, SET.pack(2000 << 16, 2, 77))
    assert data == bytes(METADATA_BYTES) + values(STORED_BYTES)
    assert rows == SET.pack(2 * STORED_BYTES << 16, 2, 77)
    with pytest.raises(Corrupt, match="a place outside"):
        relocate_xattrs(table(values(NOWHERE)), sets(1000))

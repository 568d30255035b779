"""Tables of a squashfs made by hand: every kind of inode, directories, and limits."""

import stat
import struct
from dataclasses import replace

import pytest

from bootseer.errors import Corrupt
from bootseer.squashfs.inodes import (
    DirectoryEntry,
    MetadataTable,
    SquashfsInode,
    read_directory,
    read_inodes,
)
from bootseer.squashfs.superblock import BLOCK_RAW, METADATA_BYTES, NO_FRAGMENT

BLOCK = 4096
COMMON = {"mode": 0o4751, "owner": 3, "group": 4, "mtime": 5, "number": 6}


def head(kind):
    return struct.pack("<4H2I", kind, *COMMON.values())


def table(data, first_block=0):
    """A table whose blocks were stored 1,000 bytes apart."""
    count = -(-len(data) // METADATA_BYTES)
    return MetadataTable(data, {first_block + 1000 * number: number for number in range(count)})


def inode(form, **fields):
    return SquashfsInode(at=0, mode=form | COMMON["mode"], **fields)


SHORT_FILE = head(2) + struct.pack("<4I2I", 7000, NO_FRAGMENT, 0, BLOCK + 1, BLOCK, 1 | BLOCK_RAW)
KINDS = [
    (head(1) + struct.pack("<2I2HI", 1000, 7, 80, 90, 99), inode(
        stat.S_IFDIR, size=80, start=1000, offset=90)),
    (SHORT_FILE, inode(
        stat.S_IFREG, size=BLOCK + 1, start=7000, blocks=(BLOCK, 1 | BLOCK_RAW))),
    (head(2) + struct.pack("<4II", 7000, 8, 9, 2 * BLOCK - 1, 70), inode(
        stat.S_IFREG, size=2 * BLOCK - 1, start=7000, blocks=(70,), fragment=8, offset=9)),
    (head(3) + struct.pack("<2I", 7, 3) + b"a/b", inode(stat.S_IFLNK)),
    (head(4) + struct.pack("<2I", 7, 0x801), inode(stat.S_IFBLK)),
    (head(5) + struct.pack("<2I", 7, 0x502), inode(stat.S_IFCHR)),
    (head(6) + struct.pack("<I", 7), inode(stat.S_IFIFO)),
    (head(7) + struct.pack("<I", 7), inode(stat.S_IFSOCK)),
    (head(8) + struct.pack("<4I2HI", 7, 80, 1000, 99, 0, 90, 12), inode(
        stat.S_IFDIR, size=80, start=1000, offset=90)),
    (
        head(8) + struct.pack("<4I2HI", 7, 80, 1000, 99, 2, 90, 12)
        + struct.pack("<3I", 1, 0, 2) + b"abc" + struct.pack("<3I", 40, 1000, 0) + b"d",
        inode(stat.S_IFDIR, size=80, start=1000, offset=90),
    ),
    (head(9) + struct.pack("<3Q4I2I", 1 << 33, 2 * BLOCK, 99, 7, NO_FRAGMENT, 0, 12, 0, 70), inode(
        stat.S_IFREG, size=2 * BLOCK, start=1 << 33, blocks=(0, 70))),
    (head(10) + struct.pack("<2I", 7, 3) + b"a/b" + struct.pack("<I", 12), inode(stat.S_IFLNK)),
    (head(11) + struct.pack("<3I", 7, 0x801, 12), inode(stat.S_IFBLK)),
    (head(12) + struct.pack("<3I", 7, 0x502, 12), inode(stat.S_IFCHR)),
    (head(13) + struct.pack("<2I", 7, 12), inode(stat.S_IFIFO)),
    (head(14) + struct.pack("<2I", 7, 12), inode(stat.S_IFSOCK)),
]  # fmt: skip


def inodes_of(data):
    return list(read_inodes(table(data), BLOCK))


@pytest.mark.parametrize(("data", "expected"), KINDS)
def test_each_kind_of_inode_is_read(data, expected):
    assert inodes_of(data) == [expected]
    first, second = inodes_of(SHORT_FILE + data)  # blocks follow a file's inode
    assert (second.at, second.mode) == (len(SHORT_FILE), expected.mode)
    assert inodes_of(data + SHORT_FILE) == [expected, replace(first, at=len(data))]


@pytest.mark.parametrize("data", [data for data, _ in KINDS if not data.endswith(b"d")])
def test_an_inode_that_is_cut_is_refused(data):
    for length in range(1, len(data)):
        with pytest.raises(Corrupt, match="image"):
            inodes_of(data[:length])


def test_fields_that_do_not_apply_are_empty():
    plain = SquashfsInode(0, stat.S_IFREG)
    assert (plain.size, plain.start, plain.blocks) == (0, 0, ())
    assert (plain.fragment, plain.offset) == (NO_FRAGMENT, 0)


def test_files_and_directories_are_told_apart():
    (found,) = inodes_of(SHORT_FILE)
    assert found.is_file and not found.is_directory
    (found,) = inodes_of(KINDS[0][0])
    assert found.is_directory and not found.is_file


@pytest.mark.parametrize("kind", [0, 15, 16, 65535])
def test_an_unknown_kind_of_inode_is_refused(kind):
    with pytest.raises(Corrupt, match=f"unknown type {kind}"):
        inodes_of(head(kind) + bytes(100))


@pytest.mark.parametrize("length", [BLOCK + 1, (BLOCK + 1) | BLOCK_RAW])
def test_a_block_longer_than_a_block_is_refused(length):
    data = head(2) + struct.pack("<4I", 7000, NO_FRAGMENT, 0, BLOCK)
    longest = BLOCK | (length & BLOCK_RAW)
    assert inodes_of(data + struct.pack("<I", longest))[0].blocks == (longest,)
    with pytest.raises(Corrupt, match="larger than the superblock allows"):
        inodes_of(data + struct.pack("<I", length))


def test_a_file_of_more_blocks_than_there_are_is_refused():
    with pytest.raises(Corrupt, match="more blocks than the table holds"):
        inodes_of(head(2) + struct.pack("<4I2I", 7000, NO_FRAGMENT, 0, 2**32 - 1, 1, 1))


# Places and directories.


def test_a_place_in_a_table_is_found_by_block_and_offset():
    found = table(bytes(2 * METADATA_BYTES + 5), first_block=500)
    assert found.locate(500, 0) == 0
    assert found.locate(1500, 7) == METADATA_BYTES + 7
    assert found.locate(2500, METADATA_BYTES - 1) == 3 * METADATA_BYTES - 1
    for block, offset in ((500, METADATA_BYTES), (501, 0), (3500, 0)):
        with pytest.raises(Corrupt, match="a place outside"):
            found.locate(block, offset)


def entry(name, offset=0):
    return struct.pack("<HhHH", offset, -1, 2, len(name) - 1) + name


def listed(*parts):
    """A directory's list: of each part the block of its inodes, and entries."""
    return b"".join(
        struct.pack("<3I", len(entries) - 1, block, 1) + b"".join(entries)
        for block, entries in parts
    )


INODES = table(bytes(3 * METADATA_BYTES))


def directory(data, start=0, offset=0, size_bytes=None):
    size_bytes = len(data) if size_bytes is None else size_bytes
    return inode(stat.S_IFDIR, start=start, offset=offset, size=size_bytes + 3)


def entries_of(data, **place):
    return list(read_directory(table(data), INODES, directory(data, **place)))


def test_the_entries_of_a_directory_are_read_in_order():
    data = listed((0, [entry(b"a", 5), entry(b"bcd", 7)]), (2000, [entry(b"e" * 256, 9)]))
    assert entries_of(data) == [
        DirectoryEntry(b"a", 5),
        DirectoryEntry(b"bcd", 7),
        DirectoryEntry(b"e" * 256, 2 * METADATA_BYTES + 9),
    ]


def test_a_directory_may_be_a_part_of_the_table():
    one = listed((1000, [entry(b"a", 5)]))
    data = bytes(METADATA_BYTES + 20) + one + listed((0, [entry(b"z")]))
    place = {"start": 1000, "offset": 20, "size_bytes": len(one)}
    assert entries_of(data, **place) == [DirectoryEntry(b"a", METADATA_BYTES + 5)]


def test_many_names_of_one_letter_are_read():
    names = [bytes([letter]) for letter in range(ord("A"), ord("z"))]
    data = listed((0, [entry(name) for name in names]))
    assert [name for name, _ in entries_of(data)] == names


@pytest.mark.parametrize("size", [0, 3])
def test_an_empty_directory_may_be_anywhere(size):
    empty = inode(stat.S_IFDIR, start=77, offset=9999, size=size)
    assert list(read_directory(table(b""), INODES, empty)) == []


@pytest.mark.parametrize("name", [b".", b"..", b"a/b", b"/", b"a\0", b"\0"])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(Corrupt, match="impossible name"):
        entries_of(listed((0, [entry(b"...x"), entry(name)])))


def test_a_directory_past_the_end_of_the_table_is_refused():
    data = listed((0, [entry(b"abc")]))
    with pytest.raises(Corrupt, match="past the table's end"):
        entries_of(data, size_bytes=len(data) + 1)


@pytest.mark.parametrize("change", [-1, 1, 12])
def test_a_list_that_does_not_fill_its_directory_is_refused(change):
    data = listed((0, [entry(b"abc"), entry(b"def")])) + bytes(12)
    with pytest.raises(Corrupt, match=r"a directory of the image is (damaged|cut short)"):
        entries_of(data, size_bytes=len(data) - 12 + change)


@pytest.mark.parametrize("count", [2, 100, 2**32])
def test_more_entries_than_there_is_room_for_are_refused(count):
    data = struct.pack("<3I", count - 1, 0, 1) + entry(b"a")
    with pytest.raises(Corrupt, match=r"a directory of the image is (damaged|cut short)"):
        entries_of(data)


def test_an_inode_at_an_invalid_place_is_refused():
    for block, offset in ((1001, 0), (0, METADATA_BYTES)):
        with pytest.raises(Corrupt, match="a place outside"):
            entries_of(listed((block, [entry(b"a", offset)])))

import os
import stat
import struct
import subprocess

import pytest

from bootseer.errors import Corrupt
from bootseer.squashfs.inodes import MetadataTable, SquashfsInode, read_directory
from bootseer.squashfs.superblock import (
    MAX_BLOCK_BYTES,
    MIN_BLOCK_BYTES,
    NO_TABLE,
    SUPERBLOCK_BYTES,
    Superblock,
    decode_superblock,
    find_tables,
)

NONE = 0xFFFFFFFFFFFFFFFF


def superblock(
    bytes_used=5000,
    inode=4000,
    fragment=NONE,
    *,
    directory=4500,
    ids=4900,
    xattrs=NONE,
    export=4800,
    block=(131072, 17),
    version=(4, 0),
):
    tables = (ids, xattrs, inode, directory, fragment, export)
    head = (0x73717368, 11, 22, block[0], 33, 6, block[1], 0, 44, *version, 55)
    return struct.pack("<5I6H8Q", *head, bytes_used, *tables)


def test_the_tables_are_all_that_follows_the_data():
    assert find_tables(superblock(), 8192) == (4000, 5000)
    assert find_tables(superblock(), 5000) == (4000, 5000)
    assert find_tables(superblock(bytes_used=4900), 8192) == (4000, 4900)  # the last is empty
    assert find_tables(superblock(inode=SUPERBLOCK_BYTES), 8192) == (SUPERBLOCK_BYTES, 5000)


@pytest.mark.parametrize("data", [b"", b"x" * 96, superblock()[:95]])
def test_other_files_are_no_squashfs(data):
    assert find_tables(data, 8192) is None


@pytest.mark.parametrize(
    "data",
    [
        superblock(bytes_used=9000),
        superblock(inode=5001),
        superblock(inode=10),
        superblock(inode=NONE, directory=NONE, ids=NONE, export=NONE),
    ],
    ids=["cut file", "tables past the end", "tables in the superblock", "no tables"],
)
def test_tables_outside_the_file_are_refused(data):
    with pytest.raises(Corrupt, match="tables outside"):
        find_tables(data, 8192)


def test_what_a_superblock_says_is_read():
    data = superblock(fragment=4700, xattrs=4950)
    found = decode_superblock(data + b"what follows", 8192)
    assert found == Superblock(
        inodes=11,
        block_size=131072,
        fragments=33,
        compressor=6,
        ids=44,
        root=55,
        id_table=4900,
        xattr_table=4950,
        inode_table=4000,
        directory_table=4500,
        fragment_table=4700,
        export_table=4800,
    )
    assert decode_superblock(superblock(), 8192).xattr_table == NO_TABLE


@pytest.mark.parametrize("block", [(MIN_BLOCK_BYTES, 12), (MAX_BLOCK_BYTES, 20)])
def test_blocks_of_the_least_and_of_the_greatest_length_are_read(block):
    data = superblock(block=block)
    assert decode_superblock(data, 8192).block_size == block[0]


def test_tables_side_by_side_and_empty_ones_are_in_order():
    data = superblock(directory=4500, fragment=4500, export=4500, ids=4500, xattrs=4500)
    assert decode_superblock(data, 8192).directory_table == 4500


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x" * 96, "no squashfs"),
        (superblock()[:95], "no squashfs"),
        (superblock(version=(3, 0)), "version 3.0"),
        (superblock(version=(4, 1)), "version 4.1"),
        (superblock(block=(2048, 11)), "blocks of 2048"),
        (superblock(block=(2 << 20, 21)), "blocks of 2097152"),
        (superblock(block=(131072, 16)), "blocks of 131072"),
        (superblock(block=(131072, 65535)), "blocks of 131072"),
        (superblock(block=(5000, 12)), "blocks of 5000"),
        (superblock(ids=NONE), "no table of owners"),
        (superblock(directory=4000), "out of order"),
        (superblock(directory=3999), "out of order"),
        (superblock(ids=4499), "out of order"),
        (superblock(xattrs=4499), "out of order"),
        (superblock(fragment=4499), "out of order"),
        (superblock(export=4499), "out of order"),
    ],
)
def test_a_superblock_that_cannot_be_is_refused(data, said):
    with pytest.raises(Corrupt, match=said):
        decode_superblock(data, 8192)


@pytest.mark.parametrize("left", [b"", b"\0\0", b"\0" * 7])
def test_a_directory_that_ends_within_an_entry_is_refused(left):
    listed = MetadataTable(struct.pack("<3I", 0, 0, 1) + left, {0: 0})
    inode = SquashfsInode(0, stat.S_IFDIR | 0o755, size=len(listed.data) + 3)
    with pytest.raises(Corrupt, match="directory of the image is cut short"):
        list(read_directory(listed, listed, inode))


def test_a_real_image(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(os.urandom(200_000))
    image = tmp_path / "image.sqsh"
    subprocess.run(["mksquashfs", tmp_path / "tree", image, "-quiet", "-no-progress"], check=True)
    data = image.read_bytes()
    tables = find_tables(data[:SUPERBLOCK_BYTES], len(data))
    assert tables is not None
    assert SUPERBLOCK_BYTES < tables.start < tables.stop <= len(data)
    # mksquashfs pads the file with zeros up to a multiple of 4 KiB.
    assert not any(data[tables.stop :])

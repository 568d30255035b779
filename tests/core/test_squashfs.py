import os
import stat
import struct
import subprocess

import pytest

from bootseer.core.inodes import Inode, Table, read_directory
from bootseer.core.squashfs import SUPERBLOCK_BYTES, find_tables
from bootseer.errors import Corrupt

NONE = 0xFFFFFFFFFFFFFFFF


def superblock(bytes_used=5000, inode=4000, fragment=NONE):
    tables = (4900, NONE, inode, 4500, fragment, 4800)
    head = (0x73717368, 1, 0, 131072, 0, 6, 17, 0, 1, 4, 0, 0)
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
    [superblock(bytes_used=9000), superblock(inode=5001), superblock(inode=10)],
    ids=["cut file", "tables past the end", "tables in the superblock"],
)
def test_tables_outside_the_file_are_refused(data):
    with pytest.raises(Corrupt, match="tables outside"):
        find_tables(data, 8192)


@pytest.mark.parametrize("left", [b"", b"\0\0", b"\0" * 7])
def test_a_directory_that_ends_within_an_entry_is_refused(left):
    listed = Table(struct.pack("<3I", 0, 0, 1) + left, {0: 0})
    inode = Inode(0, False, 1, stat.S_IFDIR | 0o755, 0, 0, 0, size=len(listed.data) + 3)
    with pytest.raises(Corrupt, match="directory of the image"):
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

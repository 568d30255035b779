"""Images read without a mount: where things stand in them, and what is no squashfs after all."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from bootseer_dev.material.images import squash

from bootseer.errors import Corrupt, Unavailable
from bootseer.squashfs import image_file
from bootseer.squashfs import reader as squashfs_module
from bootseer.squashfs.inodes import SquashfsInode
from bootseer.squashfs.reader import Squashfs
from bootseer.squashfs.superblock import (
    BLOCK_RAW,
    METADATA_BYTES,
    METADATA_RAW,
    NO_FRAGMENT,
    NO_TABLE,
    SUPERBLOCK_BYTES,
)

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")

BLOCK_BYTES = 4096
AS_IT_IS = ("-noI", "-noD", "-noF", "-noX", "-noId", "-b", str(BLOCK_BYTES))
"""Nothing is compressed, so that a changed byte is a changed number."""

# Where numbers stand in the superblock, and in an inode of a directory.
INODES, FRAGMENTS, FRAGMENT_TABLE = 4, 16, 80
LIST, LIST_BYTES, LIST_OFFSET = 16, 24, 26

LARGE = random.Random(0).randbytes(BLOCK_BYTES + 904)


PLAIN_NAMES = [
    *(b"/", b"/folder-one", b"/folder-one/x", b"/folder-one/y"),
    *(b"/folder-two", b"/folder-two/z", b"/large", b"/noted"),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of seven names: a file of a block and an end, small ones, and two folders."""
    folder = tmp_path_factory.mktemp("plain")
    tree = folder / "tree"
    (tree / "folder-one").mkdir(parents=True)
    (tree / "folder-two").mkdir()
    (tree / "folder-one/x").write_bytes(b"x" * 100)
    (tree / "folder-one/y").write_bytes(b"y" * 200)
    (tree / "folder-two/z").write_bytes(b"z" * 300)
    (tree / "large").write_bytes(LARGE)
    (tree / "noted").touch()
    os.setxattr(tree / "noted", "user.note", b"value")
    return squash(tree, folder / "image", *AS_IT_IS, "-always-use-fragments", "-no-exports")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image whose tables take several blocks each."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "tree").mkdir()
    for number in range(1100):
        (folder / f"tree/{number:04}").touch()
    return squash(folder / "tree", folder / "image", *AS_IT_IS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of directories only."""
    folder = tmp_path_factory.mktemp("folders")
    for name in ("one/a", "one/b", "two"):
        (folder / "tree" / name).mkdir(parents=True)
    return squash(folder / "tree", folder / "image", *AS_IT_IS)


def edited(source: Path, target: Path, *edits: tuple[int, int, int]) -> Path:
    """Copy an image with other numbers in it: where each begins, how long it is, its value."""
    data = bytearray(source.read_bytes())
    for at, size_bytes, value in edits:
        data[at : at + size_bytes] = value.to_bytes(size_bytes, "little")
    target.write_bytes(data)
    return target


def find(image: Squashfs, path: str) -> SquashfsInode:
    return next(inode for name, inode in image.walk() if name == path.encode())


def in_table(start: int, at: int) -> int:
    """Return where in the file a byte of a table stands."""
    return start + 2 * (at // METADATA_BYTES + 1) + at


def inode_place(source: Path, path: str, field: int) -> int:
    """Return where in the file a number of an inode stands."""
    with Squashfs(source) as image:
        return in_table(image.superblock.inode_table, find(image, path).at + field)


def entry_place(source: Path, name: str) -> int:
    """Return where in the file a directory says where in its block the inode of a name begins."""
    with Squashfs(source) as image:
        at = image.directory_table.data.index(name.encode()) - 8
        return in_table(image.superblock.directory_table, at)


def refuse(image: Path, message: str) -> None:
    with pytest.raises(Corrupt, match=message):
        Squashfs(image)


@pytest.mark.parametrize("compressor", ["gzip", "lz4", "xz", "zstd"])
def test_an_image_of_each_compressor_is_read(tmp_path: Path, compressor: str) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(100):
        (tmp_path / f"tree/file-{number}").touch()
    with Squashfs(squash(tmp_path / "tree", tmp_path / "image", "-comp", compressor)) as opened:
        assert len(list(opened.walk())) == 101


def test_a_files_blocks_are_found_in_the_image(plain: Path) -> None:
    with Squashfs(plain) as opened:
        ((block, size_bytes),) = opened.stored(find(opened, "/large"))
        assert size_bytes == block.size_bytes == BLOCK_BYTES
        assert opened.pread(block.start, block.size_bytes) == LARGE[:BLOCK_BYTES]


def test_close_can_be_called_twice(plain: Path) -> None:
    opened = Squashfs(plain)
    opened.close()
    others = os.listdir("/proc/self/fd")
    opened.close()
    assert os.listdir("/proc/self/fd") == others


def test_an_image_that_cannot_be_opened_is_unavailable(plain: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot open the image .*: Not a directory"):
        Squashfs(plain / "below")


@pytest.mark.parametrize("portion", [1, 7])
def test_a_file_system_may_give_less_at_once(
    plain: Path, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    content, pread = plain.read_bytes(), os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, portion), at))
    with Squashfs(plain) as opened:
        assert opened.pread(10, 20) == content[10:30]
        assert [name for name, _ in opened.walk()] == PLAIN_NAMES


def test_bytes_are_read_up_to_the_end_of_the_file(plain: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    shutil.copy(plain, image)
    size_bytes = image.stat().st_size
    with Squashfs(image) as opened:
        assert opened.pread(size_bytes - 1, 1) == image.read_bytes()[-1:]
        with pytest.raises(Corrupt, match="cut short"):
            opened.pread(size_bytes - 1, 2)
        os.truncate(image, size_bytes - 10)
        with pytest.raises(Corrupt, match="cut short"):
            opened.pread(size_bytes - 11, 2)


def test_a_read_that_fails_is_unavailable(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(Unavailable, match=r"cannot read the image .*: Input/output error"):
        Squashfs(plain)


@pytest.mark.parametrize("most", [7, 6, 5, 3])
def test_an_image_has_no_more_names_than_allowed(
    plain: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Seven, of which four are in the root folder."""
    monkeypatch.setattr(squashfs_module, "MAX_NAMES", most)
    with Squashfs(plain) as opened:
        if most == 7:
            assert [name for name, _ in opened.walk()] == PLAIN_NAMES
            return
        with pytest.raises(Corrupt, match="more than"):
            list(opened.walk())


@pytest.mark.parametrize("other", ["/", "/folder-one"])
def test_a_directory_has_one_place_in_the_tree(plain: Path, tmp_path: Path, other: str) -> None:
    with Squashfs(plain) as opened:
        at = find(opened, other).at
    image = edited(plain, tmp_path / "image", (entry_place(plain, "folder-two"), 2, at))
    with Squashfs(image) as opened, pytest.raises(Corrupt, match="occurs twice in its tree"):
        list(opened.walk())


def test_a_name_has_an_inode(plain: Path, tmp_path: Path) -> None:
    with Squashfs(plain) as opened:
        at = find(opened, "/large").at + 1
    image = edited(plain, tmp_path / "image", (entry_place(plain, "folder-two"), 2, at))
    with Squashfs(image) as opened, pytest.raises(Corrupt, match="an inode that does not exist"):
        list(opened.walk())


def test_tables_of_many_blocks_are_read(many: Path) -> None:
    with Squashfs(many) as opened:
        assert [name for name, _ in opened.walk()][1:] == [b"/%04d" % n for n in range(1100)]


# What is larger than it may be, by a table at least.


def test_tables_are_as_large_as_allowed_and_no_larger(
    plain: Path, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Squashfs(many) as opened:
        blocks = len(opened.inode_table.places)
    assert blocks > 3
    for image, most in ((many, blocks), (plain, 1)):
        monkeypatch.setattr(image_file, "MAX_TABLE_BYTES", most * METADATA_BYTES)
        Squashfs(image).close()
    refuse(many, "unreasonably large")
    monkeypatch.setattr(image_file, "MAX_TABLE_BYTES", (blocks - 1) * METADATA_BYTES)
    refuse(many, "unreasonably large")
    monkeypatch.setattr(image_file, "MAX_TABLE_BYTES", METADATA_BYTES - 1)
    refuse(plain, "unreasonably large")


@pytest.mark.parametrize(("limit", "number"), [("MAX_INODES", 8), ("MAX_BLOCKS", 1)])
def test_files_and_their_blocks_are_as_many_as_allowed(
    plain: Path, monkeypatch: pytest.MonkeyPatch, limit: str, number: int
) -> None:
    monkeypatch.setattr(squashfs_module, limit, number)
    Squashfs(plain).close()
    monkeypatch.setattr(squashfs_module, limit, number - 1)
    refuse(plain, "more")


@pytest.mark.parametrize("number", [7, 9])
def test_a_wrong_number_of_inodes_is_refused(plain: Path, tmp_path: Path, number: int) -> None:
    refuse(edited(plain, tmp_path / "image", (INODES, 4, number)), "than allowed, or fewer")


def test_overlapping_directories_are_refused(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squashfs_module, "MAX_SHARED", 1)
    with Squashfs(folders) as opened:
        one = find(opened, "/one")
    place = inode_place(folders, "/two", 0)
    image = edited(
        folders,
        tmp_path / "image",
        (place + LIST, 4, one.start),
        (place + LIST_BYTES, 2, one.size),
        (place + LIST_OFFSET, 2, one.offset),
    )
    refuse(image, "directories overlap")
    monkeypatch.setattr(squashfs_module, "MAX_SHARED", 2)
    Squashfs(image).close()


# Damaged tables.


def test_tables_out_of_order_are_refused(plain: Path, tmp_path: Path) -> None:
    with Squashfs(plain) as opened:
        index = opened.superblock.id_table
    image = edited(plain, tmp_path / "image", (index, 8, SUPERBLOCK_BYTES))
    refuse(image, "tables are out of order")


def test_an_image_with_fragments_has_a_table_of_them(folders: Path, tmp_path: Path) -> None:
    edits = ((FRAGMENTS, 4, 1), (FRAGMENT_TABLE, 8, NO_TABLE))
    image = edited(folders, tmp_path / "image", *edits)
    refuse(image, "table of fragments is damaged")


def test_a_fragment_is_no_larger_than_a_block(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for name in "ab":
        (tmp_path / "tree" / name).write_bytes(LARGE[:2000] + name.encode() * 48)
    full = squash(tmp_path / "tree", tmp_path / "full", *AS_IT_IS)
    with Squashfs(full) as opened:
        assert opened.fragments[0].length == BLOCK_BYTES | BLOCK_RAW
        ends = b"".join(LARGE[:2000] + name * 48 for name in (b"a", b"b"))
        assert opened.pread(opened.fragments[0].start, BLOCK_BYTES) == ends
        (row,) = opened.index(opened.superblock.fragment_table, 1, 16)
    image = edited(full, tmp_path / "image", (row + 2 + 8, 4, BLOCK_RAW | BLOCK_BYTES + 1))
    refuse(image, "table of fragments is damaged")


@pytest.mark.parametrize("number", [1, 2**31, NO_FRAGMENT - 1])
def test_a_file_ends_in_a_fragment_that_exists(tmp_path: Path, number: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/short").write_bytes(b"content")
    image = squash(tmp_path / "tree", tmp_path / "good", *AS_IT_IS)
    with Squashfs(image) as opened:
        assert (find(opened, "/short").fragment, len(opened.fragments)) == (0, 1)
    place = inode_place(image, "/short", 20)
    refuse(edited(image, tmp_path / "image", (place, 4, number)), "fragment that does not exist")


def test_a_table_with_fewer_rows_than_it_says_is_refused(plain: Path, tmp_path: Path) -> None:
    with Squashfs(plain) as opened:
        rows = len(opened.fragments)
    image = edited(plain, tmp_path / "image", (FRAGMENTS, 4, rows + 1))
    refuse(image, "holds less than it should")


@pytest.mark.parametrize("length", [0, METADATA_BYTES + 1, METADATA_RAW - 1])
def test_a_tables_block_has_a_length_that_is_possible(
    plain: Path, tmp_path: Path, length: int
) -> None:
    with Squashfs(plain) as opened:
        start = opened.superblock.inode_table
    image = edited(plain, tmp_path / "image", (start, 2, METADATA_RAW | length))
    refuse(image, "block of impossible length")


def test_only_a_tables_last_block_is_shorter(many: Path, tmp_path: Path) -> None:
    with Squashfs(many) as opened:
        second = in_table(opened.superblock.inode_table, METADATA_BYTES) - 2
    image = edited(
        many,
        tmp_path / "image",
        (second, 2, METADATA_RAW | 100),
        (second + 102, 2, METADATA_RAW | METADATA_BYTES - 102),
    )
    refuse(image, "has a hole")


def test_a_table_ends_where_the_next_one_begins(plain: Path, tmp_path: Path) -> None:
    with Squashfs(plain) as opened:
        start, size_bytes = opened.superblock.inode_table, len(opened.inode_table.data)
    image = edited(plain, tmp_path / "image", (start, 2, METADATA_RAW | size_bytes + 1))
    refuse(image, "has no end")


def test_a_damaged_table_is_reported_with_the_image(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(100):
        (tmp_path / f"tree/file-{number}").touch()
    whole = squash(tmp_path / "tree", tmp_path / "whole", "-comp", "gzip")
    with Squashfs(whole) as opened:
        start = opened.superblock.inode_table
    image = edited(whole, tmp_path / "image", (start + 2, 4, 0xFFFFFFFF))
    refuse(image, f"^{image}: .* cannot be decompressed")

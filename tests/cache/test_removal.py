"""Removing entries of the block cache: a piece at a time, and nothing that is not theirs."""

import os

import pytest

from bootseer.cache.removal import FILES, cut, disk_bytes, is_mounted, unexpected
from bootseer.units import MIB

BLOCK = 4096
PIECE = 256 * MIB


@pytest.fixture
def entry(tmp_path):
    """An entry whose data are three pieces, with a block at the end of each."""
    (tmp_path / "entry").mkdir()
    for name in FILES:
        (tmp_path / "entry" / name).touch()
    with (tmp_path / "entry" / "data").open("r+b") as data:
        for number in range(3):
            data.seek((number + 1) * PIECE - BLOCK)
            data.write(b"x" * BLOCK)
    return tmp_path / "entry"


def size_of(path):
    return path.stat().st_size


def taken(*paths):
    """What files take up on the disk, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in paths)


def test_disk_bytes_covers_files_and_folder(entry):
    (entry / "manifest").write_bytes(b"x" * 5 * BLOCK)
    (entry / "another").write_bytes(b"x" * BLOCK)
    assert taken(entry / "data") >= 3 * BLOCK and taken(entry / "manifest") >= 5 * BLOCK
    assert disk_bytes(entry) == taken(*(entry / name for name in FILES)) + BLOCK
    for name in FILES:
        (entry / name).unlink()
    assert disk_bytes(entry) == 0


@pytest.mark.parametrize(("pieces", "left"), [(1, 2), (2, 1)])
def test_so_many_pieces_are_removed_and_the_rest_is_accounted_for(entry, pieces, left):
    assert cut(entry, pieces) == 0
    assert size_of(entry / "data") == left * PIECE
    assert size_of(entry / "account") == disk_bytes(entry)
    assert disk_bytes(entry) - BLOCK == taken(entry / "data") > 0
    assert cut(entry, left + 5) == 4
    assert not entry.exists()


def test_an_entry_is_removed_with_its_last_piece(entry):
    assert cut(entry, 3) == 0
    assert not entry.exists()


def test_holes_are_no_work(entry):
    os.truncate(entry / "data", PIECE)
    os.truncate(entry / "data", 100 * PIECE)
    assert cut(entry, 3) == 1
    assert not entry.exists()


def test_zero_pieces_remove_nothing(entry):
    assert cut(entry, 0) == 0
    assert size_of(entry / "data") == 3 * PIECE
    assert size_of(entry / "account") == disk_bytes(entry)


def test_open_files_take_no_space_once_removed(entry):
    (entry / "map").write_bytes(b"x" * BLOCK)
    with (entry / "data").open() as data, (entry / "map").open() as block_map:
        assert cut(entry, 9) == 5
        assert [os.fstat(file.fileno()).st_blocks for file in (data, block_map)] == [0, 0]


def test_an_entry_without_data_is_removed(entry):
    (entry / "data").unlink()
    assert cut(entry, 5) == 4
    assert not entry.exists()
    assert cut(entry, 5) == 4  # another was first


def test_targets_of_links_are_not_changed(entry, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"content")
    for name in ("data", "account"):
        (entry / name).unlink()
        (entry / name).symlink_to(other)
    cut(entry, 5)
    assert other.read_bytes() == b"content"
    assert not entry.exists()


def test_foreign_files_are_listed_in_order(entry, tmp_path):
    assert unexpected(entry) == []
    for name in ("z", "a"):
        (entry / name).touch()
    assert unexpected(entry) == ["a", "z"]
    cut(entry, 9)
    assert sorted(os.listdir(entry)) == ["a", "z"]
    assert unexpected(entry / "a") == ["a"]  # no folder
    assert unexpected(tmp_path / "none") == []


def test_an_entry_without_a_loop_device_is_not_mounted(entry):
    assert not is_mounted(entry)

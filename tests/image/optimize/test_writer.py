"""How a new image is written: what it says of itself, and how each block is stored."""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

import pytest
from bootseer_dev.material.images import squash

from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, Unavailable
from bootseer.image.optimize.optimize import optimize
from bootseer.image.optimize.writer import BlockStorage
from bootseer.squashfs.codec import LZ4, LZ4_OPTIONS, lz4_compress
from bootseer.squashfs.inodes import SquashfsInode
from bootseer.squashfs.reader import Squashfs
from bootseer.squashfs.superblock import (
    BLOCK_RAW,
    IDS_RAW,
    INODES_RAW,
    METADATA_BYTES,
    XATTRS_RAW,
)
from bootseer.units import KIB

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")

BLOCK_BYTES = 128 * KIB
SYMBOLS = bytes(range(32, 96))


def text(seed: int, size_bytes: int) -> bytes:
    """Return bytes that every compressor makes smaller."""
    chance = random.Random(seed)
    words = [chance.randbytes(3).hex().encode() for _ in range(200)]
    return b" ".join(chance.choice(words) for _ in range(size_bytes // 7 + 1))[:size_bytes]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of small files, a larger one, and one that lz4 cannot make smaller."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "tree").mkdir()
    for number in range(3):
        (folder / f"tree/{number}").write_bytes(text(number, 20_000))
    (folder / "tree/large").write_bytes(text(3, 3 * BLOCK_BYTES))
    symbols = random.Random(0).choices(SYMBOLS, k=BLOCK_BYTES)
    (folder / "tree/symbols").write_bytes(bytes(symbols))
    os.setxattr(folder / "tree/large", "user.note", b"value")
    image = squash(folder / "tree", folder / "image", "-comp", "gzip", "-no-fragments")
    image.chmod(0o640)
    return image


def inodes(image: Path) -> dict[bytes, SquashfsInode]:
    with Squashfs(image) as opened:
        return dict(opened.walk())


def first_two(image: Path) -> list[ByteRange]:
    """Return where two small files are."""
    found = inodes(image)
    starts = [(found[name].start, found[name].stored_bytes) for name in (b"/1", b"/0")]
    return [ByteRange(start, start + size_bytes) for start, size_bytes in starts]


@pytest.mark.parametrize("storing", BlockStorage)
def test_a_new_image_says_how_it_is_stored(
    image: Path, tmp_path: Path, storing: BlockStorage
) -> None:
    done = optimize(image, first_two(image), tmp_path / "new", storing=storing)
    with Squashfs(image) as old, Squashfs(tmp_path / "new") as new:
        before, after = old.superblock, new.superblock
        is_lz4 = storing is BlockStorage.LZ4
        assert after.compressor == (LZ4 if is_lz4 else before.compressor)
        assert after.has_options == is_lz4
        assert after.flags & before.flags == before.flags
        raw = INODES_RAW | IDS_RAW | XATTRS_RAW
        assert after.flags & raw == raw
        options = new.pread(96, new.data_start - 96)
        assert options == (LZ4_OPTIONS if is_lz4 else b"")
    assert done.size_bytes == (tmp_path / "new").stat().st_size
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert done.size_bytes % 4096 == 0  # loop devices read no less
    assert done.size_bytes - after.bytes_used < 4096
    assert (done.front_files, done.scattered_files) == (2, 0)


def test_what_a_compressor_is_told_stays(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(text(0, 1000))
    old = squash(tmp_path / "tree", tmp_path / "old", "-comp", "gzip", "-Xcompression-level", "3")
    optimize(old, [], tmp_path / "new", storing=BlockStorage.AS_THEY_ARE)
    with Squashfs(old) as before, Squashfs(tmp_path / "new") as after:
        size_bytes = before.data_start - 96
        assert after.data_start - 96 == size_bytes > 0
        assert after.pread(96, size_bytes) == before.pread(96, size_bytes)


def test_blocks_that_lz4_makes_no_smaller_are_stored_as_they_are(
    image: Path, tmp_path: Path
) -> None:
    assert not inodes(image)[b"/symbols"].blocks[0] & BLOCK_RAW
    optimize(image, [], tmp_path / "new", storing=BlockStorage.LZ4)
    new = inodes(tmp_path / "new")
    assert new[b"/symbols"].blocks == (BLOCK_BYTES | BLOCK_RAW,)
    assert new[b"/0"].blocks == (len(lz4_compress(text(0, 20_000))),)
    assert not any(length & BLOCK_RAW for length in new[b"/large"].blocks)


@pytest.mark.parametrize("room", [0, 1])
def test_what_would_begin_too_far_with_lz4_is_copied_as_it_is(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """What lz4 takes is not known before; where a piece goes on does not matter."""
    optimize(image, [], tmp_path / "near", storing=BlockStorage.LZ4)
    last = max(inode.start for inode in inodes(tmp_path / "near").values() if inode.is_file)
    monkeypatch.setattr("bootseer.image.optimize.writer.NEAR_BYTES", last + room)
    done = optimize(image, [], tmp_path / "new", storing=BlockStorage.LZ4)
    assert done.storing is (BlockStorage.LZ4 if room else BlockStorage.AS_THEY_ARE)


@pytest.mark.parametrize("storing", BlockStorage)
def test_an_image_that_cannot_be_arranged_stays_as_it_is(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storing: BlockStorage
) -> None:
    monkeypatch.setattr("bootseer.image.optimize.layout.NEAR_BYTES", 1000)
    with pytest.raises(Unavailable, match=r"/image cannot be rearranged: .* 4 GiB"):
        optimize(image, [], tmp_path / "new", storing=storing)
    assert os.listdir(tmp_path) == []


def test_a_block_of_another_length_than_its_file_has_is_refused(tmp_path: Path) -> None:
    """It would come out as it is, and both images be damaged alike."""
    content = text(0, 5000)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(content)
    damaged = squash(tmp_path / "tree", tmp_path / "image", "-comp", "lz4", "-noI", "-no-fragments")
    with Squashfs(damaged) as opened:
        inode = next(inode for _, inode in opened.walk() if inode.is_file)
        blocks_at = opened.superblock.inode_table + 2 + inode.blocks_at
        assert inode.blocks_at < METADATA_BYTES
    shorter = lz4_compress(content[:4000])
    data = bytearray(damaged.read_bytes())
    data[inode.start : inode.start + len(shorter)] = shorter
    data[blocks_at : blocks_at + 4] = len(shorter).to_bytes(4, "little")
    damaged.write_bytes(data)
    with pytest.raises(Corrupt, match="another length than its inode says"):
        optimize(damaged, [], tmp_path / "new", storing=BlockStorage.LZ4)
    assert sorted(os.listdir(tmp_path)) == ["image", "tree"]


def test_all_that_is_written_is_told_of(image: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    optimize(image, [], tmp_path / "new", progress=lambda *both: seen.append(both))
    found = inodes(image).values()
    stored_bytes = sum(inode.stored_bytes for inode in found)
    all_bytes = stored_bytes + sum(inode.size for inode in found if inode.is_file)
    assert {total for _, total in seen} == {all_bytes}
    assert [done for done, _ in seen][-1] == all_bytes

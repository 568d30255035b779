"""Two images compared: how far it is told, and what is not looked into."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from bootseer_dev.material.images import squash

from bootseer.image.optimize.equal import TreeDifference, same_tree
from bootseer.squashfs.superblock import SUPERBLOCK_BYTES
from bootseer.units import KIB

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a file of three blocks of 64 KiB, and one of none."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(b"%06d " * 20_000 % tuple(range(20_000)))
    (tmp_path / "tree/small").write_bytes(b"small")
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("compressor", "block_size"), [("gzip", "64K"), ("gzip", "128K"), ("lz4", "64K")]
)
def test_all_content_is_compared_however_it_is_stored(
    tree: Path, tmp_path: Path, compressor: str, block_size: str
) -> None:
    one = squash(tree, tmp_path / "one", "-comp", "gzip", "-b", "64K")
    other = squash(tree, tmp_path / "other", "-comp", compressor, "-b", block_size)
    compared: list[int] = []
    assert same_tree(one, other, compared.append) is None
    assert sum(compared) == 140_000 + 5
    assert len(compared) > 2


@pytest.mark.parametrize("block_size", ["64K", "128K"])
@pytest.mark.parametrize("at", [0, 65_535, 65_536, 139_999])
def test_the_first_byte_that_differs_is_told(
    tree: Path, tmp_path: Path, at: int, block_size: str
) -> None:
    one = squash(tree, tmp_path / "one", "-b", "64K", "-all-time", "0")
    data = bytearray((tree / "file").read_bytes())
    data[at:] = bytes(byte ^ 1 for byte in data[at:])
    (tree / "file").write_bytes(data)
    other = squash(tree, tmp_path / "other", "-b", block_size, "-all-time", "0")
    compared: list[int] = []
    assert same_tree(one, other, compared.append) == TreeDifference(
        "/file", f"content at byte {at}"
    )
    assert sum(compared) <= at


@pytest.mark.parametrize("name", ["a", "zz"])
def test_a_name_that_one_of_them_lacks_is_told(tree: Path, tmp_path: Path, name: str) -> None:
    one = squash(tree, tmp_path / "one", "-all-time", "0")
    (tree / name).touch()
    other = squash(tree, tmp_path / "other", "-all-time", "0")
    assert same_tree(one, other) == TreeDifference(f"/{name}", "missing in the first")
    assert same_tree(other, one) == TreeDifference(f"/{name}", "missing in the second")


def test_what_is_stored_alike_is_not_decompressed(tree: Path, tmp_path: Path) -> None:
    (tree / "file").write_bytes(random.Random(0).randbytes(100) * KIB)
    image = squash(tree, tmp_path / "image", "-comp", "gzip", "-no-fragments")
    data = bytearray(image.read_bytes())
    data[SUPERBLOCK_BYTES : SUPERBLOCK_BYTES + 4] = b"\xff" * 4  # no beginning of a block
    image.write_bytes(data)
    assert same_tree(image, image) is None

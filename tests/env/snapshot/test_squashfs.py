"""Where in a squashfs the content of files is."""

import os
import subprocess

import pytest

from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.snapshot.squashfs import find_content
from bootseer.errors import Corrupt

AS_IT_IS = {"-comp": "lz4", "-b": str(BLOCK_BYTES), "-no-fragments": ""}


@pytest.fixture
def image(tmp_path):
    """Make a squashfs with other options than that of a snapshot has."""
    (tmp_path / "source/lib").mkdir(parents=True)
    (tmp_path / "source/empty").touch()
    (tmp_path / "source/short").write_bytes(b"short")
    (tmp_path / "source/lib/a").write_bytes(os.urandom(BLOCK_BYTES + 1000))

    def make(**changes):
        options = {**AS_IT_IS, **{f"-{name}": value for name, value in changes.items()}}
        words = [word for pair in options.items() if pair[1] is not None for word in pair if word]
        argv = ["mksquashfs", tmp_path / "source", tmp_path / "image", "-quiet", "-no-progress"]
        subprocess.run([*argv, *words], check=True)
        return tmp_path / "image"

    return make


def test_the_blocks_of_all_files_are_found(image):
    path = image()
    found = find_content(path)
    assert list(found) == [b"empty", b"lib/a", b"short"]
    assert found[b"empty"][1] == ()
    start, blocks = found[b"lib/a"]
    stored = sum(length & ~(1 << 24) for length in blocks)
    content = (path.parent / "source/lib/a").read_bytes()
    assert len(blocks) == 2 and path.read_bytes()[start : start + stored] == content


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"comp": "gzip"}, "not compressed as"),
        ({"b": str(BLOCK_BYTES // 2)}, "not compressed as"),
        ({"no-fragments": None}, "has fragments"),
    ],
)
def test_a_squashfs_of_another_kind_is_refused(image, changes, why):
    with pytest.raises(Corrupt, match=why):
        find_content(image(**changes))

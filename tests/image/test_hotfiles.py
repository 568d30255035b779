"""From ranges of an image to the files that have them."""

import os
import random
import subprocess

import pytest

from bootseer.core.ranges import ByteRange
from bootseer.errors import NotFound
from bootseer.image.hotfiles import hot_files
from bootseer.testing.images import TinyImage, write_image

BLOCK = 128 * 1024


def test_hot_files_come_in_the_order_of_first_touch(tmp_path):
    recipe, path = TinyImage(), tmp_path / "tiny.sqsh"
    write_image(recipe, path)
    content = path.read_bytes()
    names = list(reversed(recipe.hot))
    places = [content.index(recipe.content(name)) for name in names]
    hot = [ByteRange(at, at + 4096) for at in places]
    found = hot_files(path, hot)
    assert [f"/{os.fsdecode(file.path)}" for file in found] == names
    assert {file.ranges for file in found} == {(ByteRange(0, recipe.file_bytes),)}
    assert hot_files(path, []) == []


@pytest.mark.parametrize("fragments", [True, False])
def test_ranges_are_those_of_the_files_content(tmp_path, fragments):
    tree = tmp_path / "tree"
    tree.mkdir()
    data = random.Random(1).randbytes(5 * BLOCK + 1000)
    (tree / "large").write_bytes(data)
    (tree / "small").write_bytes(b"small")
    (tree / "other").write_bytes(b"other")
    os.link(tree / "large", tree / "link")
    image = tmp_path / "image.sqsh"
    options = [] if fragments else ["-no-fragments"]
    command = ["mksquashfs", tree, image, "-noD", "-noF", "-always-use-fragments", *options]
    subprocess.run([*command, "-quiet", "-no-progress"], check=True)
    content = image.read_bytes()
    at = content.index(data[2 * BLOCK : 2 * BLOCK + 4096])
    found = hot_files(image, [ByteRange(at + 10, at + BLOCK + 10)])
    assert [file.path for file in found] == [b"large"]
    assert found[0].ranges == (
        ByteRange(2 * BLOCK, 3 * BLOCK),
        ByteRange(3 * BLOCK, 4 * BLOCK),
    )
    end = content.index(data[-1000:])
    tail = {file.path: file.ranges for file in hot_files(image, [ByteRange(end, end + 1)])}
    assert tail[b"large"] == (ByteRange(5 * BLOCK, 5 * BLOCK + 1000),)
    at = content.index(b"small")
    small = {file.path for file in hot_files(image, [ByteRange(at, at + 1)])}
    assert small == ({b"small", b"other"} if fragments else {b"small"})


def test_what_is_not_there(tmp_path):
    with pytest.raises(NotFound):
        hot_files(tmp_path / "none", [])

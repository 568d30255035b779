"""From ranges of an image to the files that have them."""

import os
import random
import subprocess

import pytest

from bootseer.core.budget import Budget
from bootseer.core.ranges import ByteRange
from bootseer.errors import NotFound
from bootseer.image import hotfiles
from bootseer.image.hotfiles import FilesPrefetch, HotFile, hot_files
from bootseer.testing.images import TinyImage, write_image

BLOCK = 128 * 1024
PAGE = 4096


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


def test_files_of_an_image_with_a_long_table_of_fragments(tmp_path):
    """One that takes more than one block of metadata: 512 fragments."""
    tree = tmp_path / "tree"
    tree.mkdir()
    chance = random.Random(2)
    contents = {f"{number:03}": chance.randbytes(3000) for number in range(600)}
    for name, data in contents.items():
        (tree / name).write_bytes(data)
    image = tmp_path / "image.sqsh"
    command = ["mksquashfs", tree, image, "-b", str(PAGE), "-noF", "-quiet", "-no-progress"]
    subprocess.run(command, check=True)
    stored = image.read_bytes()
    for name in ("000", "511", "512", "599"):
        at = stored.index(contents[name])
        found = hot_files(image, [ByteRange(at, at + 1)])
        assert [file.path for file in found] == [name.encode()]


def test_what_is_not_there(tmp_path):
    with pytest.raises(NotFound):
        hot_files(tmp_path / "none", [])


def hot(name, *ranges):
    return HotFile(name.encode(), tuple(ByteRange(*each) for each in ranges))


@pytest.mark.parametrize("can_pin", [True, False])
async def test_files_are_read_and_locked_as_far_as_the_user_may(tmp_path, monkeypatch, can_pin):
    if not can_pin:
        monkeypatch.setattr(hotfiles, "lib", CannotPin(hotfiles.lib))
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(3 * PAGE))
    files = [hot("a", (0, PAGE), (2 * PAGE, 9 * PAGE)), hot("b", (5, 10))]
    prefetch = FilesPrefetch(str(tmp_path), files, 10**9, Budget(0))
    await prefetch.run()
    assert (prefetch.files, prefetch.read_bytes) == (2, 2 * PAGE + 5)
    assert prefetch.pinned_bytes == (2 * PAGE + 10 if can_pin else 0)  # from a page on


class CannotPin:
    """One attempt to lock memory fails, and there is no other in this file or the next."""

    def __init__(self, lib):
        self.lib = lib
        self.attempts = 0

    def bs_window_pin(self, *arguments):
        self.attempts += 1
        assert self.attempts == 1
        return -12

    def __getattr__(self, name):
        return getattr(self.lib, name)


async def test_what_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(hotfiles, "_STREAMS", 1)
    (tmp_path / "b").write_bytes(bytes(100))
    (tmp_path / "link").symlink_to("b")
    os.mkfifo(tmp_path / "fifo")
    files = [hot(name, (0, 100)) for name in ("gone", "link", "fifo", "b")]
    prefetch = FilesPrefetch(str(tmp_path), files, 10**9, Budget(0))
    await prefetch.run()
    assert (prefetch.files, prefetch.read_bytes) == (1, 100)


async def test_no_more_files_are_begun_when_the_limit_is_reached(tmp_path, monkeypatch):
    monkeypatch.setattr(hotfiles, "_STREAMS", 1)
    for name in "abc":
        (tmp_path / name).write_bytes(bytes(100))
    files = [hot(name, (0, 100)) for name in "abc"]
    prefetch = FilesPrefetch(str(tmp_path), files, 150, Budget(0))
    await prefetch.run()
    assert prefetch.read_bytes == 200

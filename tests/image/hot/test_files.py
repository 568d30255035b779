"""From ranges of an image to the files that have them."""

import errno
import os
import random
import subprocess
import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
from bootseer_dev.material.images import TinyImage, write_image
from hypothesis import example, given
from hypothesis import strategies as st

from bootseer.core.ranges import ByteRange
from bootseer.errors import NotFound
from bootseer.image.hot import files as hotfiles
from bootseer.image.hot.files import FilesPrefetch, HotFile, HotRanges, hot_files
from bootseer.rate_limit import RateLimit
from bootseer.squashfs.reader import Squashfs
from bootseer.squashfs.superblock import BLOCK_RAW

BLOCK = 128 * 1024
PAGE = 4096


@st.composite
def hot_ranges(draw):
    """Ranges that do not overlap, in any order."""
    places = sorted(draw(st.sets(st.integers(0, 40))))
    ranges = [ByteRange(*pair) for pair in pairwise(places)]
    return [one for one in draw(st.permutations(ranges)) if draw(st.booleans())]


@given(hot_ranges(), st.integers(0, 41), st.integers(0, 20))
@example([ByteRange(0, 5)], 5, 3)
@example([ByteRange(5, 8)], 0, 5)
def test_what_touches_a_part_first_is_found(hot, start, size_bytes):
    part = ByteRange(start, start + size_bytes)
    numbers = [n for n, r in enumerate(hot) if r.start < part.stop and r.stop > part.start]
    assert HotRanges(hot).first(part) == min(numbers, default=None)


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


def test_a_file_that_has_nothing_in_its_fragment_is_not_hot_with_it(tmp_path):
    tree, image = tmp_path / "tree", tmp_path / "image.sqsh"
    tree.mkdir()
    (tree / "whole").write_bytes(random.Random(3).randbytes(BLOCK))
    (tree / "small").write_bytes(b"small")
    command = ["mksquashfs", tree, image, "-noI", "-noD", "-noF", "-quiet", "-no-progress"]
    subprocess.run(command, check=True)
    with Squashfs(image) as opened:
        inode = next(inode for path, inode in opened.walk() if path == b"/whole")
        place = opened.superblock.inode_table + 2 + inode.at + 20
        (start, length) = opened.fragments[0]
    data = bytearray(image.read_bytes())
    data[place : place + 8] = bytes(8)  # the first fragment, from its beginning on
    image.write_bytes(data)
    with Squashfs(image) as opened:
        assert {inode.fragment for _, inode in opened.walk() if inode.is_file} == {0}
    found = hot_files(image, [ByteRange(start, start + (length & ~BLOCK_RAW))])
    assert found == [HotFile(b"small", (ByteRange(0, 5),))]


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
    prefetch = FilesPrefetch(str(tmp_path), files, 10**9, RateLimit(0))
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
        return -errno.EPERM

    def __getattr__(self, name):
        return getattr(self.lib, name)


async def test_what_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(hotfiles, "_STREAMS", 1)
    (tmp_path / "b").write_bytes(bytes(100))
    (tmp_path / "link").symlink_to("b")
    os.mkfifo(tmp_path / "fifo")
    files = [hot(name, (0, 100)) for name in ("gone", "link", "fifo", "b")]
    prefetch = FilesPrefetch(str(tmp_path), files, 10**9, RateLimit(0))
    await prefetch.run()
    assert (prefetch.files, prefetch.read_bytes) == (1, 100)


async def test_what_has_become_shorter_is_passed_over(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(bytes(100))
    files = [hot("empty", (0, 100)), hot("short", (0, 50), (100, 200)), hot("short", (200, 300))]
    prefetch = FilesPrefetch(str(tmp_path), files, 10**9, RateLimit(0))
    await prefetch.run()
    assert (prefetch.files, prefetch.read_bytes) == (0, 50)


@pytest.mark.parametrize("limit", [101, 150, 200])
async def test_no_more_files_are_begun_when_the_limit_is_reached(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(hotfiles, "_STREAMS", 1)
    for name in "abc":
        (tmp_path / name).write_bytes(bytes(100))
    files = [hot(name, (0, 100)) for name in "abc"]
    prefetch = FilesPrefetch(str(tmp_path), files, limit, RateLimit(0))
    await prefetch.run()
    assert prefetch.read_bytes == 200


async def test_files_are_opened_as_the_caller_says(tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    prefetch = FilesPrefetch(
        str(tmp_path), [hot("a", (0, 100))], 10**9, RateLimit(0), flags=os.O_DIRECTORY
    )
    await prefetch.run()
    assert prefetch.files == 0


class Held(RateLimit):
    """Has the first who asks wait until it is let go, and then another for a while."""

    def __init__(self):
        super().__init__(0)
        self.asked, self.go = threading.Event(), threading.Event()
        self.taken = []

    def take(self, size_bytes, now_s):
        self.taken.append(size_bytes)
        self.asked.set()
        assert self.go.wait(10)
        return 7.5


async def test_each_file_waits_until_the_budget_has_it(tmp_path, monkeypatch):
    waited = []
    clock = SimpleNamespace(sleep=waited.append, monotonic=lambda: 0.0)
    monkeypatch.setattr(hotfiles, "time", clock)
    monkeypatch.setattr(hotfiles, "_STREAMS", 1)
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(100))
    budget = Held()
    budget.go.set()
    files = [hot("a", (0, 20), (40, 50)), hot("b", (0, 100))]
    await FilesPrefetch(str(tmp_path), files, 10**9, budget).run()
    assert (budget.taken, waited) == ([30, 100], [7.5, 7.5])


async def test_who_gives_up_waits_for_no_file_and_no_other_is_begun(tmp_path, monkeypatch):
    clock = SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: 0.0)
    monkeypatch.setattr(hotfiles, "time", clock)
    monkeypatch.setattr(hotfiles, "_STREAMS", 1)
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(100))
    threads = trio.to_thread.current_default_thread_limiter()
    threads.total_tokens = 1
    budget = Held()
    files = [hot(name, (0, 100)) for name in "ab"]
    prefetch = FilesPrefetch(str(tmp_path), files, 10**9, budget)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefetch.run)
        await trio.to_thread.run_sync(budget.asked.wait, 5, limiter=trio.CapacityLimiter(1))
        nursery.cancel_scope.cancel()
    assert threads.borrowed_tokens == 1  # it waits still
    budget.go.set()
    async with threads:  # it has ended
        assert (prefetch.files, budget.taken) == (1, [100])

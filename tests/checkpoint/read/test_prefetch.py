"""What a start is going to read of its checkpoint is read ahead: in order, and no more."""

import os
import threading
from contextlib import suppress

import pytest
import trio
import trio.testing

from bootseer.checkpoint.read import prefetch
from bootseer.checkpoint.read.prefetch import CheckpointPrefetch
from bootseer.core.access_log import FileReads
from bootseer.core.ranges import ByteRange
from bootseer.rate_limit import RateLimit

PIECE = 1000


@pytest.fixture
def reads(monkeypatch):
    """What is read, as path, offset and length."""
    found, preadv = [], os.preadv

    def read(fd, buffers, at):
        got = preadv(fd, buffers, at)
        found.append((os.path.basename(os.readlink(f"/proc/self/fd/{fd}")), at, got))
        return got

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(prefetch, "_READ_BYTES", PIECE)
    monkeypatch.setattr(prefetch, "_FILES_AT_ONCE", 1)
    return found


@pytest.fixture
def ran(tmp_path):
    async def ran(*files, limit_bytes=10**9, rate=0.0):
        told = []

        async def tell(path, ranges):
            told.append((path, ranges))

        reader = CheckpointPrefetch(str(tmp_path), RateLimit(rate), limit_bytes, tell)
        await reader.run(files)
        return reader, told

    return ran


def whole(path, size_bytes, newest=()):
    return FileReads(path, newest, (ByteRange(0, size_bytes),))


async def test_ranges_are_read_in_order_and_told_before(tmp_path, reads, ran):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(10 * PIECE))
    ranges = (ByteRange(100, 2500), ByteRange(9000, 9500))
    reader, told = await ran(FileReads("b", (), ranges), whole("a", 1500))
    assert reads == [
        *(("b", 100, 1000), ("b", 1100, 1000), ("b", 2100, 400), ("b", 9000, 500)),
        *(("a", 0, 1000), ("a", 1000, 500)),
    ]
    assert told == [("b", ranges), ("a", (ByteRange(0, 1500),))]
    assert (reader.files, reader.read_bytes, reader.want_bytes) == (2, 4400, 4400)
    assert reader.error == ""


async def test_the_newest_of_a_kind_is_read_once(tmp_path, reads, ran):
    for name in ("step_9", "step_10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").write_bytes(bytes(10))
    reader, _ = await ran(whole("step_8/model", 10, (0,)), whole("step_9/model", 7, (0,)))
    assert reads == [("model", 0, 10)]
    assert (reader.files, reader.want_bytes) == (1, 10)


async def test_no_more_than_the_limit_is_read(tmp_path, reads, ran):
    (tmp_path / "a").write_bytes(bytes(10 * PIECE))
    reader, _ = await ran(whole("a", 10 * PIECE), limit_bytes=3 * PIECE)
    assert reader.read_bytes == 3 * PIECE == sum(got for _, _, got in reads)


async def test_what_is_shorter_or_gone_is_left_and_the_first_is_told(tmp_path, reads, ran):
    (tmp_path / "short").write_bytes(bytes(1500))
    (tmp_path / "folder").mkdir()
    files = [whole("gone", 10), whole("folder/none", 10), whole("short", 5000)]
    reader, _ = await ran(*files)
    assert reads == [("short", 0, 1000), ("short", 1000, 500), ("short", 1500, 0)]
    assert reader.error == "gone: No such file or directory"
    assert (reader.files, reader.read_bytes) == (1, 1500)


async def test_a_rate_is_kept(tmp_path, reads, ran, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(3 * PIECE))
    slept = []
    monkeypatch.setattr(prefetch.time, "sleep", slept.append)
    monkeypatch.setattr(prefetch.time, "monotonic", lambda: 5.0)
    await ran(whole("a", 3 * PIECE), rate=100.0)
    assert slept == [0.0, 10.0, 20.0]


async def test_several_files_are_read_at_once(tmp_path):
    """Each is told before it is opened, whatever becomes of those before it."""
    for name in "abcdef":
        (tmp_path / name).write_bytes(bytes(10))
    busy, most = 0, []

    async def tell(path, ranges):
        nonlocal busy
        busy += 1
        await trio.testing.wait_all_tasks_blocked()
        most.append(busy)
        busy -= 1

    reader = CheckpointPrefetch(str(tmp_path), RateLimit(0), 10**9, tell)
    await reader.run([whole(name, 10) for name in "abcdef"])
    assert max(most) == 4
    assert (reader.files, reader.read_bytes) == (6, 60)


async def test_no_piece_is_read_by_half_for_the_limit(tmp_path, reads, ran):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(10 * PIECE))
    reader, _ = await ran(whole("a", 1500), whole("b", 1500), limit_bytes=2500)
    assert reads == [("a", 0, 1000), ("a", 1000, 500), ("b", 0, 1000)]
    assert reader.read_bytes == 2500
    reader, _ = await ran(whole("a", 1500), limit_bytes=1499)
    assert reader.read_bytes == 1000


async def test_a_folder_is_looked_into_once(tmp_path, reads, ran, monkeypatch):
    for name in ("step_1", "step_2"):
        (tmp_path / name).mkdir()
        for shard in ("a", "b"):
            (tmp_path / name / shard).write_bytes(bytes(10))
    listed, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    reader, _ = await ran(whole("step_1/a", 10, (0,)), whole("step_1/b", 10, (0,)))
    assert listed == [str(tmp_path) + "/"]
    assert (reader.files, reader.error) == (2, "")


async def test_a_folder_that_is_gone_has_nothing_newer(tmp_path, reads, ran):
    (tmp_path / "a").write_bytes(bytes(10))
    reader, told = await ran(whole("gone/step_1/x", 10, (1,)), whole("a", 10))
    assert [path for path, _ in told] == ["gone/step_1/x", "a"]
    assert reader.error == "gone/step_1/x: No such file or directory"
    assert (reader.files, reader.want_bytes) == (1, 20)


async def test_no_file_stays_open(tmp_path, reads, ran):
    (tmp_path / "a").write_bytes(bytes(10))
    await ran(whole("a", 10), whole("a", 5))
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    assert str(tmp_path / "a") not in links


async def test_who_is_cancelled_does_not_wait_for_a_read_and_none_follows_it(
    tmp_path, reads, monkeypatch
):
    (tmp_path / "a").write_bytes(bytes(10 * PIECE))
    returned, ended = threading.Event(), threading.Event()
    asked, preadv, close = [], os.preadv, os.close

    def hang(fd, buffers, at):
        asked.append(fd)
        trio.from_thread.run_sync(scope.cancel)
        assert returned.wait(10)
        return preadv(fd, buffers, at)

    def close_last(fd):
        close(fd)
        if fd in asked:
            ended.set()

    async def tell(path, ranges):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(os, "preadv", hang)
    monkeypatch.setattr(os, "close", close_last)
    reader = CheckpointPrefetch(str(tmp_path), RateLimit(0), 10**9, tell)
    with trio.CancelScope() as scope:
        await reader.run([whole("a", 10 * PIECE)])
    assert scope.cancelled_caught
    returned.set()
    assert ended.wait(10)
    assert len(asked) == 1

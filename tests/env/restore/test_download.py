"""Frames of a snapshot as they are read out of a store, and places to unpack them to."""

import os

import pytest
import trio
from trio import to_thread

from bootseer.env.restore.download import opened_places, unpack
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.frame_source import FrameSource
from bootseer.errors import Unavailable
from bootseer.store.open_parts import OpenParts
from bootseer.testing.fault_store import FlakyStore


class Hanging(FlakyStore):
    """Never gives what frames are stored in."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.reached = trio.Event()

    async def around(self, operation, name, call):
        if operation == "open" and name.endswith("frames-0000"):
            self.reached.set()
            await trio.sleep_forever()
        return await call()


@pytest.fixture
def snapshot(installed):
    return installed.run("head -c 200000 /dev/urandom >TARGET/a")


@pytest.fixture
def part(installed, snapshot):
    return installed.root / repository.frames_object(snapshot.key, snapshot.capture, 0)


async def test_frames_are_read_as_they_are_stored_and_counted(
    installed, snapshot, part, monkeypatch
):
    whole = part.read_bytes()
    monkeypatch.setattr(repository, "PART_BYTES", len(whole) // 3)
    for number in range(4):
        name = repository.frames_object(snapshot.key, snapshot.capture, number)
        start = number * repository.PART_BYTES
        (installed.root / name).write_bytes(whole[start : start + repository.PART_BYTES])
    [frame] = await repository.read_frames(installed.store, snapshot)
    async with FrameSource(installed.store, snapshot) as source:
        for times in (1, 2):
            assert await to_thread.run_sync(source.read, frame) == whole
            assert source.read_bytes == times * len(whole)


async def test_of_a_frame_that_is_cut_short_what_there_is_is_read(installed, snapshot, part):
    [frame] = await repository.read_frames(installed.store, snapshot)
    os.truncate(part, 1000)
    async with FrameSource(installed.store, snapshot) as source:
        assert await to_thread.run_sync(source.read, frame) == part.read_bytes()
        assert source.read_bytes == 1000


async def test_after_a_stop_nothing_more_is_read(installed, snapshot):
    [frame] = await repository.read_frames(installed.store, snapshot)
    async with FrameSource(installed.store, snapshot) as source:
        await to_thread.run_sync(source.stop)
        with pytest.raises(Unavailable, match="given up"):
            await to_thread.run_sync(source.read, frame)
        assert source.read_bytes == 0


async def test_a_stop_ends_reads_that_hang(installed, snapshot):
    async def read():
        with pytest.raises(Unavailable, match="given up"):
            await to_thread.run_sync(source.read, frame)

    [frame] = await repository.read_frames(installed.store, snapshot)
    store = Hanging(installed.store, None)
    source = FrameSource(store, snapshot)
    async with source, trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await store.reached.wait()
        source.stop()


async def test_who_is_cancelled_does_not_wait_for_a_store_that_hangs(installed, snapshot, tmp_path):
    store = Hanging(installed.store, None)
    with opened_places([str(tmp_path / "new")]) as places:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(unpack, store, snapshot, places)
            await store.reached.wait()
            nursery.cancel_scope.cancel()
    assert not (tmp_path / "new").exists()


async def test_what_is_open_is_closed_for_who_is_cancelled(installed, snapshot, monkeypatch):
    """Even if that takes a while."""

    async def close(parts):
        await trio.lowlevel.checkpoint()
        await real(parts)
        closed.append(parts)

    closed, real = [], OpenParts.close
    monkeypatch.setattr(OpenParts, "close", close)
    [frame] = await repository.read_frames(installed.store, snapshot)
    with trio.CancelScope() as scope:
        async with FrameSource(installed.store, snapshot) as source:
            await to_thread.run_sync(source.read, frame)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught and closed


async def test_what_the_store_has_given_is_counted_when_it_is_unpacked(
    installed, snapshot, tmp_path
):
    counted = []
    with opened_places([str(tmp_path / "new")]) as places:
        read_bytes = await unpack(installed.store, snapshot, places, counted.append)
    assert read_bytes == snapshot.frames_bytes
    assert sum(counted) > snapshot.content_bytes
    assert (tmp_path / "new/a").read_bytes() == (installed.target / "a").read_bytes()


def test_the_folders_of_targets_are_made_and_open_for_a_while(tmp_path):
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "there").mkdir()
    paths = [tmp_path / "a/b/new", tmp_path / "link/other"]
    with opened_places(list(map(str, paths))) as places:
        assert [place.name for place in places] == ["new", "other"]
        for place, folder in zip(places, (tmp_path / "a/b", tmp_path / "there"), strict=True):
            assert os.path.samestat(os.fstat(place.parent), folder.stat())
    for place in places:
        with pytest.raises(OSError):
            os.fstat(place.parent)


def test_a_target_that_cannot_be_reached_is_named(tmp_path):
    (tmp_path / "file").touch()
    places = opened_places([str(tmp_path / "a"), str(tmp_path / "file/new/a")])
    with pytest.raises(Unavailable, match="file/new/a cannot be reached"), places:
        pass

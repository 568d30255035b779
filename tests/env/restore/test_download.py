"""Read chunks of a snapshot from a store, and open the places to unpack them to."""

import os

import pytest
import trio
from trio import to_thread

from bootseer.core import image_manifest
from bootseer.env.restore.download import opened_places, unpack
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.chunk_source import ChunkSource
from bootseer.env.snapshot.chunks import Chunk, split
from bootseer.errors import Corrupt, Unavailable
from bootseer.image.library import catalog as images
from bootseer.store.open_parts import OpenParts
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import MIB


class Hanging(FlakyStore):
    """Never gives a part of an image."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.reached = trio.Event()

    async def around(self, operation, name, call):
        if operation == "open" and name.endswith("part-0000"):
            self.reached.set()
            await trio.sleep_forever()
        return await call()


@pytest.fixture
def snapshot(installed, monkeypatch):
    """A snapshot whose squashfs is stored in four parts."""
    monkeypatch.setattr(image_manifest, "PART_BYTES", MIB)
    return installed.run("head -c 3200000 /dev/urandom >TARGET/a")


@pytest.fixture
def chunk(installed, snapshot):
    [chunk] = split(trio.run(repository.read_index, installed.store, snapshot))
    return chunk


def parts_of(installed, snapshot):
    names = [images.part_object(snapshot.image, number) for number in range(4)]
    return [installed.root / name for name in names]


async def test_a_chunk_is_read_across_parts_and_counted(installed, snapshot, chunk):
    whole = b"".join(part.read_bytes() for part in parts_of(installed, snapshot))
    async with ChunkSource(installed.store, snapshot) as source:
        for times in (1, 2):
            stored = await to_thread.run_sync(source.read, chunk)
            assert stored == whole[chunk.start : chunk.stop]
            assert times * len(stored) <= source.read_bytes <= times * len(whole)


@pytest.mark.parametrize("number", range(4))
async def test_damage_is_found(installed, snapshot, chunk, number):
    installed.damage(images.part_object(snapshot.image, number), 200)
    async with ChunkSource(installed.store, snapshot) as source:
        with pytest.raises(Corrupt, match=f"part-000{number}.* is damaged"):
            await to_thread.run_sync(source.read, chunk)


async def test_a_part_that_is_cut_short_is_damaged(installed, snapshot, chunk):
    os.truncate(parts_of(installed, snapshot)[1], 1000)
    async with ChunkSource(installed.store, snapshot) as source:
        with pytest.raises(Corrupt, match=r"part-0001.* is damaged"):
            await to_thread.run_sync(source.read, chunk)


async def test_a_chunk_behind_the_end_is_refused(installed, snapshot):
    async with ChunkSource(installed.store, snapshot) as source:
        with pytest.raises(Corrupt, match=f"ends at byte {snapshot.image_bytes}"):
            await to_thread.run_sync(source.read, Chunk(snapshot.image_bytes - 1, stored_bytes=2))


async def test_after_a_stop_nothing_more_is_read(installed, snapshot, chunk):
    async with ChunkSource(installed.store, snapshot) as source:
        await to_thread.run_sync(source.stop)
        with pytest.raises(Unavailable, match="given up"):
            await to_thread.run_sync(source.read, chunk)
        assert source.read_bytes == 0


async def test_a_stop_ends_reads_that_hang(installed, snapshot, chunk):
    async def read():
        with pytest.raises(Unavailable, match="given up"):
            await to_thread.run_sync(source.read, chunk)

    store = Hanging(installed.store, None)
    source = ChunkSource(store, snapshot)
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


async def test_what_is_open_is_closed_for_who_is_cancelled(installed, snapshot, chunk, monkeypatch):
    """Even if that takes a while."""

    async def close(parts):
        await trio.lowlevel.checkpoint()
        await real(parts)
        closed.append(parts)

    closed, real = [], OpenParts.close
    monkeypatch.setattr(OpenParts, "close", close)
    with trio.CancelScope() as scope:
        async with ChunkSource(installed.store, snapshot) as source:
            await to_thread.run_sync(source.read, chunk)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught and closed


async def test_what_the_store_has_given_is_counted_when_it_is_unpacked(
    installed, snapshot, tmp_path
):
    counted = []
    with opened_places([str(tmp_path / "new")]) as places:
        read_bytes = await unpack(installed.store, snapshot, places, counted.append)
    assert snapshot.content_bytes < read_bytes <= snapshot.image_bytes
    assert sum(counted) == snapshot.content_bytes
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

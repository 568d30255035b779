"""The bytes of an image, from the store or the file that it was added from: all are checked."""

import itertools
import os
import random
import threading

import pytest
import trio
from bootseer_dev.material.stored_image import manifest_of, store_image

from bootseer.core import image_manifest
from bootseer.core.speed import SpeedMeter
from bootseer.errors import Corrupt, NotFound, Unavailable
from bootseer.image.identity import OpenImage
from bootseer.image.library import catalog
from bootseer.image.library import source as source_module
from bootseer.image.library.source import ImageSource
from bootseer.store.api.base import publish
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import SlowStore
from bootseer.units import MIB

BLOCK = 4096
CONTENT = random.Random(21).randbytes(MIB + 9 * BLOCK + 5)
MANIFEST = manifest_of(CONTENT)
DIGEST = image_manifest.image_digest(MANIFEST.encode())


class Counting(SlowStore):
    """Counts what is opened and read."""

    def __init__(self, store, latency_s=0.0):
        super().__init__(store, latency_s)
        self.calls = []

    async def around(self, operation, name, call):
        self.calls.append(operation)
        return await super().around(operation, name, call)


@pytest.fixture
async def store():
    memory = MemoryStore()
    await store_image(memory, CONTENT, "test")
    return Counting(memory)


@pytest.fixture
async def source(store):
    source = ImageSource(store, DIGEST)
    yield source
    await source.close()


@pytest.fixture
def file(tmp_path):
    """The file that the image was added from, open."""
    path = tmp_path / "image.sqsh"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    yield OpenImage(str(path), fd, len(CONTENT), path.stat().st_mtime_ns)
    os.close(fd)


def content(blocks):
    return CONTENT[blocks.start * BLOCK : blocks.stop * BLOCK]


async def test_who_opens_it_is_told_what_the_store_says_of_its_beginning(source, store):
    info = await source.open_first()
    name = catalog.part_object(DIGEST, 0)
    assert info == await store.stat(name) and info.name == name
    missing = ImageSource(store, "0" * 64)
    with pytest.raises(NotFound):
        await missing.open_first()


async def test_blocks_of_any_part_are_read(source, store):
    for blocks in (range(3, 7), range(256, 258), range(260, 266), range(0, 256)):
        assert await source.read(MANIFEST, blocks) == content(blocks)
    assert store.calls.count("open") == 2 and store.calls.count("pread") == 4


async def test_a_source_that_was_closed_is_not_read_any_more(source):
    await source.close()
    with pytest.raises(Unavailable):
        await source.read(MANIFEST, range(1))


async def test_the_stores_speed_is_that_of_its_reads_not_of_opening(store, autojump_clock):
    source = ImageSource(Counting(store, 0.25), DIGEST)
    source.speed = SpeedMeter(trio.current_time)
    await source.read(MANIFEST, range(2))
    assert source.speed.speed(1).latency_us == 250_000
    assert source.file_speed.speed(1).latency_us == 0
    await source.close()


async def test_the_rate_is_that_of_the_bytes_read(store, autojump_clock):
    """Of so many reads at once that they take all that there is."""
    source = ImageSource(Counting(store, 1.0), DIGEST)
    source.speed = SpeedMeter(trio.current_time)
    await source.open_first()
    for _ in range(20):
        async with trio.open_nursery() as nursery:
            for _ in range(32):
                nursery.start_soon(source.read, MANIFEST, range(5, 37))
    rate = source.speed.speed(1).bytes_per_s
    assert 24 * 32 * BLOCK <= rate <= 32 * 32 * BLOCK
    await source.close()


async def test_the_file_is_read_instead_as_long_as_it_is_the_image(source, store, file):
    said = []
    source.file_speed = SpeedMeter(itertools.count().__next__)
    source.use_file(file, 60.0, said.append)
    for blocks in (range(3, 7), range(250, 266)):
        assert await source.read(MANIFEST, blocks) == content(blocks)
    assert not store.calls and not said and source.file is file
    assert source.file_speed.speed(1).latency_us == 1_000_000
    assert source.speed.speed(1).latency_us == 0
    with open(file.path, "r+b") as other:
        other.seek(5 * BLOCK)
        other.write(b"?")
    assert await source.read(MANIFEST, range(6, 9)) == content(range(6, 9))
    assert not store.calls
    assert await source.read(MANIFEST, range(3, 7)) == content(range(3, 7))
    assert store.calls == ["open", "pread"] and source.file is None
    assert said == [
        f"{file.path} is not read any more, but the store: block 5 of the image is another there"
    ]


async def test_a_file_that_cannot_be_read_is_told_once_and_done_without(source, store, tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    said = []
    source.use_file(OpenImage("/i.sqsh", fd, len(CONTENT), 0), 60.0, said.append)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(source.read, MANIFEST, range(3))
    assert said == ["/i.sqsh is not read any more, but the store: Is a directory"]
    assert store.calls.count("pread") == 4
    os.close(fd)


async def test_a_file_that_does_not_answer_is_done_without(source, file, monkeypatch):
    may_end, said = threading.Event(), []
    monkeypatch.setattr(source_module, "read_fully", lambda *where: may_end.wait(5) and b"")
    source.use_file(file, 0.01, said.append)
    assert await source.read(MANIFEST, range(3, 7)) == content(range(3, 7))
    assert said == [f"{file.path} is not read any more, but the store: no answer within 0.01 s"]
    may_end.set()


async def test_the_files_rate_is_that_of_the_bytes_read(source, file):
    """By a clock that goes on whenever it is looked at: so many times while many are under way."""
    source.use_file(file, 60.0, lambda reason: None)
    source.file_speed = SpeedMeter(itertools.count().__next__)
    for _ in range(6):
        async with trio.open_nursery() as nursery:
            for _ in range(32):
                nursery.start_soon(source.read, MANIFEST, range(5, 37))
    assert source.file_speed.speed(1).bytes_per_s == round(25 * 32 * BLOCK / (24 + 2 * 25))


@pytest.mark.parametrize(("part", "blocks"), [(1, range(259, 264)), (0, range(3, 60))])
async def test_a_damaged_block_is_named(source, store, part, blocks):
    """A short read is checked where it is, a long one in a thread."""
    damaged = bytearray(CONTENT[part * MIB :][:MIB])
    damaged[5 * BLOCK + 100] ^= 1
    await publish(store, catalog.part_object(DIGEST, part), damaged)
    block = part * MIB // BLOCK + 5
    with pytest.raises(Corrupt, match=rf"at byte {5 * BLOCK}: block {block} of the image"):
        await source.read(MANIFEST, blocks)

"""Objects that are opened when they are first read, and closed together."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from bootseer.errors import Conflict, Unavailable
from bootseer.store.api.base import publish
from bootseer.store.memory import MemoryStore
from bootseer.store.open_parts import OpenParts


class SlowStore:
    """Opens an object once it is let, and knows how many are open."""

    def __init__(self, inner):
        self.inner = inner
        self.may_open = trio.Event()
        self.open_now = 0

    @asynccontextmanager
    async def open(self, name):
        await self.may_open.wait()
        async with self.inner.open(name) as reader:
            self.open_now += 1
            try:
                yield reader
            finally:
                self.open_now -= 1


@pytest.fixture
async def slow():
    memory = MemoryStore()
    for index in range(3):
        await publish(memory, f"part-{index}", bytes([index]))
    return SlowStore(memory)


async def test_each_is_opened_once_and_all_are_closed_together(slow):
    slow.may_open.set()
    parts = OpenParts(slow, "part-{}".format)
    for index in (1, 0, 1):
        reader = await parts.part(index)
        assert bytes(await reader.pread(0, 1)) == bytes([index])
    assert slow.open_now == 2
    await parts.close()
    assert slow.open_now == 0


async def test_one_that_is_being_opened_meanwhile_is_closed_too(slow, nursery):
    """Else it would stay open for as long as the process lives."""
    parts = OpenParts(slow, "part-{}".format)
    ended = []

    async def read():
        with pytest.raises(Unavailable, match="'part-2' is not read any more"):
            await parts.part(2)
        ended.append(slow.open_now)

    nursery.start_soon(read)
    await trio.testing.wait_all_tasks_blocked()
    await parts.close()
    slow.may_open.set()
    await trio.testing.wait_all_tasks_blocked()
    assert ended == [0]


class Pinned(SlowStore):
    """What was replaced cannot be read on, as with HDFS, NFS and S3."""

    @asynccontextmanager
    async def open(self, name):
        async with super().open(name) as reader:
            yield PinnedReader(self.inner, name, reader)


class PinnedReader:
    def __init__(self, store, name, reader):
        self.store, self.name, self.reader = store, name, reader

    async def pread(self, offset, size):
        if not (await self.store.stat(self.name)).is_version(self.reader.info):
            raise Conflict(f"{self.name!r} was replaced")
        return await self.reader.pread(offset, size)


async def test_one_that_is_replaced_is_opened_anew(slow):
    """Who mends an image in the store sends its parts again, while jobs have it open."""
    store = Pinned(slow.inner)
    store.may_open.set()
    parts = OpenParts(store, "part-{}".format)
    assert await parts.read(0, 0, 1) == await parts.read(0, 0, 1) == bytes([0])
    for _ in range(2):
        await publish(slow.inner, "part-0", bytes([0]))
        read = []

        async def read_it(read=read):
            read.append(await parts.read(0, 0, 1))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read_it)
        assert read == [bytes([0])] * 3
    assert store.open_now == 3, "once for each version"
    await parts.close()
    assert store.open_now == 0

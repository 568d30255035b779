"""Many nodes that read checkpoints from one store at once ask for each byte once."""

from contextlib import asynccontextmanager

import pytest
import trio

from bootseer.checkpoint.files.source import PlainSource
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.core.ranges import ByteRange
from bootseer.parallel import for_each
from bootseer.store.api.base import ObjectInfo
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.limit import LimitStore
from bootseer.store.wrappers.retry import RetryStore
from bootseer.units import MIB

FILE_BYTES = 128 * MIB
RATE = 100 * MIB
CONTENT = bytes(4 * MIB)
INFO = ObjectInfo("file", FILE_BYTES, 0)


class FullLink(MemoryStore):
    """Sends one piece after the other, also those that nobody waits for any more."""

    def __init__(self):
        super().__init__()
        self.free_s = 0.0
        self.sent_bytes = 0

    @asynccontextmanager
    async def open(self, name, **_):
        yield Reader(self)


class Reader:
    def __init__(self, link):
        self.info = INFO
        self.link = link

    async def pread(self, offset, size):
        self.link.sent_bytes += size
        self.link.free_s = max(self.link.free_s, trio.current_time()) + size / RATE
        await trio.sleep_until(self.link.free_s)
        return CONTENT[:size]


@pytest.mark.parametrize("nodes", [1, 16, 128])
async def test_each_piece_is_asked_for_once(nodes, autojump_clock):
    """With 24 streams of each of 128 nodes, a piece would take longer than its deadline."""
    link = FullLink()

    async def read(_):
        limit = trio.CapacityLimiter(64)
        store = RetryStore(LimitStore(link, deadline_s=10, operations=limit))
        async with trio.open_nursery() as nursery:
            file = Fetcher(nursery, FetchLimits()).open(PlainSource(store, INFO), ignore)
            file.read_ahead(ByteRange(0, FILE_BYTES))
            await file.drained()
            await file.close()

    await for_each(range(nodes), read, nodes)
    need_bytes = nodes * FILE_BYTES
    assert need_bytes <= link.sent_bytes <= 1.1 * need_bytes
    assert trio.current_time() <= 1.15 * need_bytes / RATE


async def ignore(offset, data):
    pass

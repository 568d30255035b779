"""Reading through a page cache: what it answers is not seen, and it loses what it had."""

import random

import pytest
import trio
import trio.testing

from bootseer.checkpoint.files.source import PLAIN_PIECE_BYTES
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.view import CheckpointView
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.checkpoint.read.recorder import ReadRecorder
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.core.access_log import MARK_BYTES
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.memory import MemoryStore
from bootseer.units import MIB

PAGE = 4096
REQUEST = MIB
SIZE = 5 * MARK_BYTES // 2 + 12_345
CONTENT = random.Random(1).randbytes(SIZE)


class PageCache:
    """The kernel's side: has pages, and asks for those that it has not."""

    def __init__(self, view, fetcher, inode):
        self.view, self.fetcher, self.inode = view, fetcher, inode
        self.pages = set()
        self.asked = 0
        self.handle = None
        view.attach(self)

    async def open(self):
        self.handle = (await self.view.open(self.inode, 0)).handle

    async def close(self):
        await self.view.close(self.handle)

    async def store(self, inode, offset, data):
        assert inode == self.inode
        await trio.lowlevel.checkpoint()
        self._keep(offset, len(data))

    def _keep(self, offset, size):
        self.pages.update(range(offset // PAGE, -(-(offset + size) // PAGE)))

    async def read(self, start, stop):
        """Read in sequence, as a program does."""
        at = start - start % PAGE
        while at < min(stop, SIZE):
            if at // PAGE in self.pages:
                at += PAGE
                continue
            end = at
            while end < at + REQUEST and end // PAGE not in self.pages:
                end += PAGE
            self.asked += 1
            got = await self.view.read(self.handle, at, end - at)
            assert got == CONTENT[at:end]
            self._keep(at, len(got))
            # The reader is slow, so that there is much ahead of it.
            await trio.sleep(0.01)


@pytest.fixture
async def opened(nursery, request):
    """Read one file whose content comes fast; the parameter says how much may be held."""
    store = MemoryStore()
    store.put("shard", CONTENT, 0o644, overwrite=False)
    tree = CheckpointTree(store)
    fetcher = Fetcher(
        nursery, FetchLimits(memory_bytes=getattr(request, "param", 64 * MIB), streams=4)
    )
    drafts = Drafts(tree, nursery, WriteOptions())
    reads = ReadRecorder(store)
    view = CheckpointView(tree, fetcher, drafts, OwnerNames(1000, 1000, "user"), reads=reads)
    node = await view.lookup(ROOT_INODE, b"shard")
    cache = PageCache(view, fetcher, node.inode)
    await cache.open()
    yield cache, reads
    await cache.close()


async def recorded(reads):
    (file,) = await reads.close()
    return [tuple(found) for found in file.ranges]


async def test_a_file_read_to_its_end_is_recorded_as_a_whole(opened):
    cache, reads = opened
    await cache.read(0, SIZE)
    assert await recorded(reads) == [(0, SIZE)]


@pytest.mark.parametrize("opened", [2 * PLAIN_PIECE_BYTES], indirect=True)
async def test_what_was_pushed_far_ahead_of_the_last_read_is_not_recorded(opened):
    cache, reads = opened
    await cache.read(0, MARK_BYTES // 2)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(cache.pages) >= 2 * MARK_BYTES // PAGE
    recordings = await recorded(reads)
    assert recordings[0][0] == 0
    assert recordings[0][1] >= MARK_BYTES // 2
    assert recordings[-1][1] <= MARK_BYTES


@pytest.mark.parametrize("again", [True, False])
async def test_holes_cost_no_more_than_the_pieces_that_they_are_in(opened, again):
    cache, _ = opened
    await cache.read(0, SIZE)
    assert cache.fetcher.fetched.size_bytes == SIZE
    if again:
        await cache.close()
        await cache.open()
    # Two in the same piece, two in neighbours, and one in the mark's.
    holes = [5 * MIB, 6 * MIB, 40 * MIB - PAGE, 40 * MIB, MARK_BYTES]
    cache.pages -= {at // PAGE for at in holes}
    await cache.read(0, SIZE)
    await trio.testing.wait_all_tasks_blocked(0.05)
    piece_bytes = PLAIN_PIECE_BYTES
    pieces = {at // piece_bytes for at in holes}
    fetched = cache.fetcher.fetched.size_bytes - SIZE
    assert fetched <= len(pieces) * piece_bytes


async def test_a_file_that_the_page_cache_has_dropped_is_read_ahead_again(opened):
    cache, _ = opened
    for _ in range(3):
        cache.asked = 0
        await cache.read(0, SIZE)
        assert cache.asked < 0.75 * SIZE / REQUEST
        cache.pages.clear()
        await cache.close()
        await cache.open()

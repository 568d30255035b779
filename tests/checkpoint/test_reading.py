"""What is noted of reads that the page cache answers, which are not seen."""

import pytest
import trio

from bootseer.checkpoint.fetch import Fetcher, FetchLimits
from bootseer.checkpoint.identity import Owners
from bootseer.checkpoint.pipelines import WriteOptions
from bootseer.checkpoint.reads import Reads
from bootseer.checkpoint.tree import CheckpointTree
from bootseer.checkpoint.view import CheckpointView
from bootseer.checkpoint.write import Drafts
from bootseer.core.reads import MARK_BYTES
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.memory import MemoryStore
from bootseer.units import MIB

PAGE = 4096
REQUEST = MIB
SIZE = 5 * MARK_BYTES // 2 + 12_345


class PageCache:
    """The kernel's side: has pages, and asks for those that it has not."""

    def __init__(self, view, inode, handle):
        self.view, self.inode, self.handle = view, inode, handle
        self.pages = set()
        view.attach(self)

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
            got = await self.view.read(self.handle, at, end - at)
            assert len(got) == min(SIZE, end) - at
            self._keep(at, len(got))
            # The reader is slow, so that there is much ahead of it.
            await trio.sleep(0.01)


@pytest.fixture
async def opened(nursery):
    """Read one file whose content comes fast, of which little may be held."""
    store = MemoryStore()
    store.put("shard", bytes(SIZE), 0o644, overwrite=False)
    tree = CheckpointTree(store)
    fetcher = Fetcher(nursery, FetchLimits(memory_bytes=16 * MIB, streams=4))
    drafts = Drafts(tree, nursery, WriteOptions())
    reads = Reads(store)
    view = CheckpointView(tree, fetcher, drafts, Owners(1000, 1000, "user"), reads=reads)
    node = await view.lookup(ROOT_INODE, b"shard")
    handle = (await view.open(node.inode, 0)).handle
    cache = PageCache(view, node.inode, handle)
    yield cache, reads
    await view.close(handle)


async def recorded(reads):
    (file,) = await reads.close()
    return [tuple(found) for found in file["ranges"]]


async def test_a_file_read_to_its_end_is_recorded_as_a_whole(opened):
    cache, reads = opened
    await cache.read(0, SIZE)
    assert await recorded(reads) == [(0, SIZE)]


async def test_what_was_pushed_far_ahead_of_the_last_read_is_not_recorded(opened):
    cache, reads = opened
    await cache.read(0, MARK_BYTES // 2)
    with trio.move_on_after(5):
        while len(cache.pages) < 2 * MARK_BYTES // PAGE:
            await trio.sleep(0.01)
    assert len(cache.pages) >= 2 * MARK_BYTES // PAGE
    assert await recorded(reads) == [(0, MARK_BYTES)]

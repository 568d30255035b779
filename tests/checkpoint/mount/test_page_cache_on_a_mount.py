"""What of a file is put into the page cache unasked, and what of it is read for how long."""

import errno
import os
import random

import pytest
import trio
import trio.testing

from bootseer.checkpoint.files import source
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount import page_pushes
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.view import CheckpointView
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.checkpoint.read.recorder import ReadRecorder
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.api.base import BlockLocation, publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore

PAGE = 4096
PIECE = 4 * PAGE
MARK = 4 * PIECE
SIZE = 2 * MARK + PAGE
CONTENT = random.Random(1).randbytes(SIZE)


class Pages:
    """The kernel's side: notes what it is given, and may refuse it."""

    def __init__(self):
        self.given = []
        self.refuses = False

    async def store(self, inode, offset, data):
        await trio.lowlevel.checkpoint()
        if self.refuses:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        assert bytes(data) == CONTENT[offset : offset + len(data)]
        self.given.append((offset, len(data)))


class Counted(WrappedStore):
    """Counts what is opened, and notes where it is asked for what is kept."""

    opens = 0

    def __init__(self, inner):
        super().__init__(inner)
        self.looked = []

    async def around(self, operation, name, call):
        self.opens += operation == "open"
        return await call()

    async def block_locations(self, name):
        await trio.lowlevel.checkpoint()
        self.looked.append(name)
        return [BlockLocation(0, SIZE, ("a",))]


class Mounted:
    """A view of a store with one file that has little memory, so that it gives pages away."""

    def __init__(self, nursery, inner):
        self.store = Counted(inner)
        tree = CheckpointTree(self.store)
        self.fetcher = Fetcher(nursery, FetchLimits(memory_bytes=2 * PIECE, streams=1))
        drafts = Drafts(tree, nursery, WriteOptions(unit_bytes=PAGE, width=2, streams=4))
        self.reads = ReadRecorder(self.store)
        owners = OwnerNames(1000, 1000, "user")
        self.view = CheckpointView(tree, self.fetcher, drafts, owners, reads=self.reads)
        self.pages = Pages()
        self.view.attach(self.pages)

    async def lookup(self, name=b"file"):
        return (await self.view.lookup(ROOT_INODE, name)).inode

    async def open(self, flags=os.O_RDONLY):
        opened = await self.view.open(await self.lookup(), flags, os.getpid())
        return opened.handle

    async def read(self, handle, offset, size):
        """Read, and wait until all that follows from it is done."""
        found = bytes(await self.view.read(handle, offset, size))
        await trio.testing.wait_all_tasks_blocked()
        return found

    async def write(self, content, name=b"file"):
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        _, opened = await self.view.create(ROOT_INODE, name, 0o600, flags, os.getpid())
        await self.view.write(opened.handle, 0, content)
        await self.view.flush(opened.handle)
        await self.view.close(opened.handle)


@pytest.fixture
async def mounted(nursery, monkeypatch):
    monkeypatch.setattr(source, "PLAIN_PIECE_BYTES", PIECE)
    monkeypatch.setattr(page_pushes, "MARK_BYTES", MARK)
    store = MemoryStore()
    await publish(store, "file", CONTENT)
    return Mounted(nursery, store)


async def recorded(mounted):
    (file,) = await mounted.reads.close()
    return [tuple(found) for found in file.ranges]


# What is given to the page cache


async def test_all_that_comes_ahead_is_given_but_a_page_at_each_mark(mounted):
    """One piece is held until it is asked for, and the last is a page alone."""
    handle = await mounted.open()
    assert await mounted.read(handle, 0, PAGE) == CONTENT[:PAGE]
    assert sorted(mounted.pages.given) == [
        *((at, PIECE) for at in range(2 * PIECE, MARK, PIECE)),
        (MARK + PAGE, PIECE - PAGE),
        *((at, PIECE) for at in range(MARK + PIECE, 2 * MARK, PIECE)),
        (2 * MARK, PAGE),
    ]
    await mounted.view.close(handle)


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (MARK, PAGE),
        (MARK, 1),
        (MARK + 5, 10),
        (MARK + 10, PAGE),
        (MARK - 5, 10),
        (MARK - PAGE, 2 * PAGE),
        (MARK - 1, PAGE + 1),
        (MARK - 1, PAGE + 2),
    ],
)
async def test_the_page_at_a_mark_is_answered_once_without_fetching(mounted, offset, size):
    handle = await mounted.open()
    await mounted.read(handle, 0, PAGE)
    before = mounted.fetcher.fetched.size_bytes
    assert await mounted.read(handle, offset, size) == CONTENT[offset : offset + size]
    last_page = (offset + size - 1) // PAGE * PAGE
    if offset >= last_page == MARK:
        assert mounted.fetcher.fetched.size_bytes == before
    assert await mounted.read(handle, MARK, PAGE) == CONTENT[MARK : MARK + PAGE]
    await mounted.view.close(handle)


async def test_nothing_is_given_of_what_somebody_may_be_changing(mounted):
    writer = await mounted.open(os.O_RDWR)
    handle = await mounted.open()
    assert await mounted.read(handle, 0, PAGE) == CONTENT[:PAGE]
    assert mounted.pages.given == []
    await mounted.view.close(writer)
    await mounted.view.close(handle)


async def test_a_file_is_read_and_cut_though_the_kernel_takes_nothing_of_it(mounted):
    mounted.pages.refuses = True
    handle = await mounted.open()
    for offset in range(0, SIZE, PAGE):
        assert await mounted.read(handle, offset, PAGE) == CONTENT[offset : offset + PAGE]
    with trio.fail_after(10):
        await mounted.view.truncate(await mounted.lookup(), None, PAGE)
    assert await mounted.read(handle, 0, SIZE) == CONTENT[:PAGE]


async def test_no_more_than_there_is_counts_as_read(mounted):
    handle = await mounted.open()
    assert await mounted.read(handle, SIZE - 10, 100) == CONTENT[-10:]
    assert await mounted.read(handle, SIZE, 100) == b""
    assert await recorded(mounted) == [(SIZE - 10, SIZE)]


async def test_where_a_large_file_is_kept_is_asked_before_it_is_read_ahead(mounted, monkeypatch):
    monkeypatch.setattr(source, "_LARGE_BYTES", SIZE)
    handle = await mounted.open()
    assert await mounted.read(handle, 0, PAGE) == CONTENT[:PAGE]
    assert mounted.store.looked == ["file"]
    assert len(mounted.pages.given) == 7
    await mounted.view.close(handle)


# How long a version is read


async def test_a_file_is_opened_once_for_all_who_read_it(mounted):
    first = await mounted.open()
    second = await mounted.open()
    for handle in (first, second):
        assert await mounted.read(handle, 0, PAGE) == CONTENT[:PAGE]
    assert mounted.store.opens == 1
    await mounted.view.close(first)
    assert await mounted.read(second, PAGE, PAGE) == CONTENT[PAGE : 2 * PAGE]
    assert mounted.store.opens == 1
    await mounted.view.close(second)
    third = await mounted.open()
    assert mounted.store.opens == 2
    await mounted.view.close(third)


@pytest.mark.parametrize("content", [CONTENT, CONTENT[:PAGE]], ids=["striped", "ordinary"])
async def test_a_removed_file_is_read_on_until_it_is_closed(mounted, content):
    await mounted.write(content)
    handle = await mounted.open()
    await mounted.view.remove(ROOT_INODE, b"file")
    for offset in range(0, len(content), PIECE):
        stop = min(len(content), offset + PIECE)
        assert await mounted.read(handle, offset, PIECE) == content[offset:stop]
    assert any("making-" in name for name in mounted.store._inner._entries)
    await mounted.view.close(handle)
    assert not any("making-" in name for name in mounted.store._inner._entries)


async def test_a_file_that_is_changed_is_read_on_after_it_was_removed(mounted):
    await mounted.write(CONTENT)
    handle = await mounted.open(os.O_RDWR)
    await mounted.view.write(handle, 0, b"changed")
    await mounted.view.remove(ROOT_INODE, b"file")
    assert await mounted.read(handle, 0, SIZE) == b"changed" + CONTENT[7:]
    await mounted.view.close(handle)


async def test_a_file_that_was_removed_while_nobody_had_it_open_is_stale(mounted):
    inode = await mounted.lookup()
    await mounted.view.remove(ROOT_INODE, b"file")
    with pytest.raises(OSError, match="Stale file handle"):
        await mounted.view.open(inode, os.O_RDONLY)

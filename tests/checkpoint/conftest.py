import math
import os
from functools import partial
from itertools import count, cycle
from pathlib import Path

import pytest
import trio
from bootseer_dev.files.fsx_rounds import USER, small_hdfs

from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.view import CheckpointView, ViewOptions
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.checkpoint.read.recorder import ReadRecorder
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.errors import BootseerError
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.api.base import BlockLocation
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore

BUILD = Path(__file__).parents[2] / "build"
UNIT = 4096
CONTENT = bytes(range(256)) * 100  # some units
_numbers = count()


@pytest.fixture(scope="session")
def hdfs():
    """A real HDFS, three DataNodes, two copies of a file; who stops a daemon starts it again."""
    with small_hdfs(f"ckpt-{os.getpid()}", BUILD) as started:
        yield started


@pytest.fixture
def folder(hdfs):
    """The path of an empty folder of its user for each test."""
    path = f"/user/{USER}/{next(_numbers)}"
    hdfs.fs("-mkdir", path, user=USER)
    return path


@pytest.fixture
def tree(hdfs, folder):
    """The same as a URL."""
    return hdfs.url + folder


class Placed(WrappedStore):
    """Has all on one machine, and notes of which objects that is asked."""

    def __init__(self, inner):
        super().__init__(inner)
        self.asked = []

    async def around(self, operation, name, call):
        return await call()

    async def block_locations(self, name):
        await trio.lowlevel.checkpoint()
        self.asked.append(name)
        return [BlockLocation(0, UNIT, ("a",))]


@pytest.fixture
def placed(store):
    """The store of the test, which can be asked where it is."""
    return Placed(store)


class Away(WrappedStore):
    """A store that cannot be reached while there is an error, which takes its time each time."""

    error: BootseerError | None = None
    pause_s = 0.0
    pauses_s = cycle((0.1, 0.2, 0.3, 0.4, 0.5))

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = []

    async def around(self, operation, name, call):
        self.calls.append((operation, name))
        await trio.sleep(self.pause_s)
        if self.error is not None and operation != "open":
            error = self.error
            await trio.sleep(next(self.pauses_s))
            raise error.again()
        done = await call()
        await trio.sleep(self.pause_s)
        return done


class Served:
    """A view without a mount, and what is lost of it."""

    def __init__(self, nursery, inner=None, **options):
        self.nursery = nursery
        self.inner = inner or MemoryStore()
        self.store = Away(self.inner)
        self.lost = []
        tree = CheckpointTree(self.store)
        write = WriteOptions(unit_bytes=UNIT, width=4, streams=8, memory_bytes=64 * UNIT)
        fetcher = Fetcher(nursery, FetchLimits(memory_bytes=8 * UNIT, streams=4))
        self.drafts = Drafts(tree, nursery, write)
        owners = OwnerNames(1000, 1000, "user")
        self.reads = ReadRecorder(self.store)
        self.view = CheckpointView(
            tree,
            fetcher,
            self.drafts,
            owners,
            ViewOptions(**options),
            reads=self.reads,
            on_lost=self.lost.append,
        )

    async def write(self, name=b"file", thread=None, content=CONTENT, parent=ROOT_INODE):
        """Write a file up to its close(2); by this process, which then has it open no more."""
        thread = os.getpid() if thread is None else thread
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        _, opened = await self.view.create(parent, name, 0o600, flags, thread)
        await self.view.write(opened.handle, 0, content)
        return opened.handle

    async def put(self, name=b"file", content=CONTENT, parent=ROOT_INODE):
        """Write a file and close it; returns its number."""
        handle = await self.write(name, content=content, parent=parent)
        await self.view.flush(handle)
        await self.view.close(handle)
        return (await self.view.lookup(parent, name)).inode

    async def content(self, name=b"file"):
        """Read what is stored, with a view of its own."""
        tree = CheckpointTree(self.inner)
        entry = await tree.find(name.decode())
        if entry is None:
            return None
        async with trio.open_nursery() as nursery:
            fetch = Fetcher(nursery, FetchLimits(memory_bytes=8 * UNIT, streams=4)).open(
                tree.source(entry)
            )
            found = b"".join(
                [bytes(await fetch.read(at, UNIT)) for at in range(0, entry.size_bytes, UNIT)]
            )
            await fetch.close()
            return found

    def in_the_making(self):
        """Name what is stored and has not got its name, or has lost it."""
        return [name for name in self.inner._entries if "making-" in name]


@pytest.fixture
async def serve(nursery, monkeypatch):
    """Make views, of a store of one's own if one likes, and with options."""
    # The clock would jump over the thread that looks.
    monkeypatch.setattr("bootseer.checkpoint.mount.open_writers._SCAN_S", math.inf)
    return partial(Served, nursery)


@pytest.fixture
async def served(serve):
    return serve()

"""A reader is of one version of a file, whoever replaces it meanwhile."""

import dataclasses
import os
from contextlib import asynccontextmanager, suppress

import pytest

from bootseer.checkpoint.files import source as source_module
from bootseer.checkpoint.files.source import READERS, PlainSource
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.view import CheckpointView
from bootseer.checkpoint.read.fetcher import Fetcher
from bootseer.checkpoint.write.draft import Drafts
from bootseer.errors import Conflict, Transient
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.api.base import publish
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.store.wrappers.retry import RetryStore

PIECE = 4096
PIECES = 2 * READERS
SIZE = PIECES * PIECE


class Lossy(WrappedStore):
    """Readers fail once in a while, and those of a version that is gone for good, as in S3."""

    reads = 0

    async def around(self, operation, name, call):
        if operation == "pread":
            self.reads += 1
            if self.reads % 3 == 0:
                raise Transient("the connection is lost")
        return await call()

    @asynccontextmanager
    async def open(self, name, *, known=None, version=None):
        async with super().open(name, known=known, version=version) as reader:
            read, info = reader.pread, reader.info

            async def pread(offset, size):
                if not info.is_version(await self._inner.stat(name)):
                    raise Conflict("replaced")
                return await read(offset, size)

            reader.pread = pread
            yield reader


class Bucket(WrappedStore):
    """Has versions, but tells only who has opened an object: the ETag, in S3."""

    async def around(self, operation, name, call):
        found = await call()
        return dataclasses.replace(found, version="") if operation == "stat" else found


@pytest.fixture(params=["memory", "local", "lossy"])
def store(request, tmp_path, monkeypatch):
    # So that several readers are opened of a file that is soon made.
    monkeypatch.setattr(source_module, "PLAIN_PIECE_BYTES", PIECE)
    monkeypatch.setattr(source_module, "_LARGE_BYTES", SIZE)
    if request.param == "local":
        return RetryStore(LocalStore(tmp_path))
    return RetryStore(Lossy(MemoryStore()) if request.param == "lossy" else MemoryStore())


async def replace(store, name, fill):
    """Replace an object by one of the same length and time."""
    before = await store.stat(name)
    await publish(store, name, fill * SIZE)
    await store.set_mtime(name, before.mtime_ns)


@pytest.mark.parametrize("after", range(PIECES))
async def test_what_is_read_is_of_the_version_that_was_opened(store, after, autojump_clock):
    await publish(store, "file", b"1" * SIZE)
    source = PlainSource(store, await store.stat("file"))
    read = []
    try:
        for piece in range(PIECES):
            if piece == after:
                await replace(store, "file", b"2")
            read.append(await source.read(piece * PIECE, 1))
    except Conflict:
        pass
    finally:
        await source.close()
    assert set(read) <= {b"1"}
    assert len(read) >= after


@pytest.mark.parametrize("piece", [0, 1])
async def test_what_is_read_is_of_one_version_where_only_a_reader_tells_it(
    store, piece, autojump_clock
):
    await publish(store, "file", b"1" * SIZE)
    bucket = Bucket(store)
    source = PlainSource(bucket, await bucket.stat("file"))
    read = [await source.read(piece * PIECE, 1)]
    await replace(store, "file", b"2")
    with suppress(Conflict):
        for later in range(PIECES):
            read.append(await source.read(later * PIECE, 1))
    await source.close()
    assert set(read) == {b"1"}


async def test_what_was_replaced_before_it_is_opened_is_not_read(store, autojump_clock):
    await publish(store, "file", b"1" * SIZE)
    source = PlainSource(store, await store.stat("file"))
    await replace(store, "file", b"2")
    with pytest.raises(Conflict):
        await source.open()
    await source.close()


async def test_what_is_written_to_in_place_is_not_read(tmp_path):
    store = LocalStore(tmp_path)
    await publish(store, "file", b"1" * SIZE)
    source = PlainSource(store, await store.stat("file"))
    assert await source.read(0, 1) == b"1"
    os.utime(tmp_path / "file", ns=(0, 0))
    with (tmp_path / "file").open("r+b") as file:
        file.write(b"2" * SIZE)
    with pytest.raises(Conflict, match="in place"):
        await source.read(PIECE, 1)
    await source.close()


async def test_one_of_the_same_length_and_time_is_another_file(store, nursery, autojump_clock):
    """What the kernel has of the one is not shown as the other's."""
    tree = CheckpointTree(store)
    owners = OwnerNames(os.getuid(), os.getgid(), "user")
    view = CheckpointView(tree, Fetcher(nursery), Drafts(tree, nursery), owners)
    await publish(store, "file", b"1" * SIZE)
    first = await view.lookup(ROOT_INODE, b"file")
    await store.set_mode("file", 0o600)
    assert (await view.lookup(ROOT_INODE, b"file")).inode == first.inode
    opened = await view.open(first.inode, os.O_RDONLY)
    assert bytes(await view.read(opened.handle, 0, 1)) == b"1"
    await replace(store, "file", b"2")
    second = await view.lookup(ROOT_INODE, b"file")
    assert second.inode != first.inode
    opened = await view.open(second.inode, os.O_RDONLY)
    assert bytes(await view.read(opened.handle, PIECE, 1)) == b"2"


async def test_who_is_told_that_a_file_was_replaced_finds_the_new_one(
    store, nursery, autojump_clock
):
    """As the kernel does, which looks once more when it cannot open what it knows."""
    tree = CheckpointTree(store)
    owners = OwnerNames(os.getuid(), os.getgid(), "user")
    view = CheckpointView(tree, Fetcher(nursery), Drafts(tree, nursery), owners)
    await publish(store, "file", b"1" * SIZE)
    await view.entries(ROOT_INODE)
    first = await view.lookup(ROOT_INODE, b"file")
    await replace(store, "file", b"2")
    with pytest.raises(Conflict):
        await view.open(first.inode, os.O_RDONLY)
    second = await view.lookup(ROOT_INODE, b"file")
    opened = await view.open(second.inode, os.O_RDONLY)
    assert bytes(await view.read(opened.handle, 0, 1)) == b"2"

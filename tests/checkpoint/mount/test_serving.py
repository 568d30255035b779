"""The end of a mount: how long it takes, and what comes of what was written by then."""

import math
import os

import pytest
import trio

from bootseer.checkpoint.mount import serve as mount_module
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.serve import CheckpointOptions, serve_checkpoint
from bootseer.checkpoint.mount.view import ViewOptions
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.errors import Unavailable
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore

UNIT = 4096
CONTENT = bytes(range(256)) * 100  # some units
OPTIONS = CheckpointOptions(write=WriteOptions(unit_bytes=UNIT))


class Slow(WrappedStore):
    """Takes its time for each operation, and may be away."""

    pause_s = 0.0
    is_away = False

    async def around(self, operation, name, call):
        await trio.sleep(self.pause_s)
        if self.is_away:
            raise Unavailable("no NameNode")
        return await call()


class Mount:
    """A mount without a kernel, which lasts until it is ended."""

    def __init__(self, nursery):
        self.nursery = nursery
        self.inner = MemoryStore()
        self.store = Slow(self.inner)
        self.unmounted = trio.Event()
        self.has_ended = trio.Event()
        self.kept_buffers = 0
        self.scope = trio.CancelScope()

    async def start(self, options=OPTIONS):
        """Begin to serve."""
        self.service = await self.nursery.start(self._serve, options)
        self.began_s = trio.current_time()
        return self.service

    async def _serve(self, options, task_status):
        owners = OwnerNames(1000, 1000, "user")
        with self.scope:
            await serve_checkpoint(self.store, 7, owners, options, task_status=task_status)
        self.took_s = trio.current_time() - self.began_s
        self.has_ended.set()

    async def serve_fd(self, view, connection, *, task_status):
        assert connection == 7
        self.view = view
        task_status.started()
        async with trio.open_nursery() as self.requests:
            await self.unmounted.wait()

    def keep_large_buffers(self):
        self.kept_buffers += 1

    async def write(self, name, thread=0):
        """Write a file up to its close(2); with 0, nothing is known of the process."""
        flags = os.O_CREAT | os.O_WRONLY
        _, opened = await self.view.create(ROOT_INODE, name, 0o600, flags, thread)
        await self.view.write(opened.handle, 0, CONTENT)
        return opened.handle

    async def end(self):
        """End it as the supervisor does, and wait for that."""
        self.began_s = trio.current_time()
        self.scope.cancel()
        await self.has_ended.wait()


@pytest.fixture
async def mount(nursery, monkeypatch):
    mount = Mount(nursery)
    monkeypatch.setattr(mount_module, "serve_fd", mount.serve_fd)
    monkeypatch.setattr(mount_module, "keep_large_buffers", mount.keep_large_buffers)
    return mount


async def test_a_mount_where_nothing_is_under_way_ends_soon(mount, autojump_clock):
    service = await mount.start()
    await mount.end()
    assert service.lost == []
    assert mount.took_s < service.settle_s / 4


async def test_an_unmount_ends_it(mount, autojump_clock):
    await mount.start()
    mount.unmounted.set()
    await mount.has_ended.wait()
    assert mount.service.lost == []


async def test_it_is_what_it_was_told_to_be(mount, autojump_clock):
    options = CheckpointOptions(write=WriteOptions(unit_bytes=UNIT), view=ViewOptions(valid_s=7))
    service = await mount.start(options)
    assert (mount.view.valid_s, mount.kept_buffers) == (7, 1)
    handle = await mount.write(b"file")
    await mount.view.flush(handle)
    await mount.view.close(handle)
    assert service.writes.written.size_bytes == len(CONTENT)
    inode = (await mount.view.lookup(ROOT_INODE, b"file")).inode
    assert (await mount.view.attributes(inode)).uid == 1000
    opened = await mount.view.open(inode, os.O_RDONLY)
    await mount.view.read(opened.handle, 0, 10)
    assert service.fetcher.fetched.size_bytes >= 10
    await mount.view.close(opened.handle)
    assert await service.reads.close() == []  # what was written here does not count
    await mount.end()


async def test_what_was_closed_has_most_of_the_time(mount, autojump_clock):
    service = await mount.start()
    handle = await mount.write(b"file")
    await mount.view.flush(handle)
    mount.store.pause_s = service.settle_s / 30
    mount.requests.start_soon(mount.view.close, handle)
    await mount.end()
    assert service.settle_s / 4 < mount.took_s < service.settle_s
    assert service.lost == []
    assert (await mount.inner.stat("file")).size_bytes


async def test_what_waits_for_its_store_is_tried_once_more_at_the_end(mount, autojump_clock):
    service = await mount.start()
    handle = await mount.write(b"file")
    mount.store.is_away = True
    with pytest.raises(Unavailable):
        await mount.view.flush(handle)
    mount.store.is_away = False
    await mount.end()
    assert service.lost == []
    assert (await mount.inner.stat("file")).size_bytes


async def test_what_is_still_written_is_lost(mount, autojump_clock, caplog):
    service = await mount.start()
    await mount.write(b"file")
    await mount.end()
    assert [lost.name for lost in service.lost] == ["file"]
    assert mount.took_s < service.settle_s / 4


@pytest.mark.parametrize(
    ("names", "closing", "share"),
    [
        ([b"waits"], [], 7 / 8),
        ([b"closes"], [b"closes"], 7 / 8),
        ([b"waits", b"closes"], [b"closes"], 1),
    ],
)
async def test_a_store_that_does_not_answer_is_not_waited_for_longer_than_said(
    mount, autojump_clock, caplog, names, closing, share
):
    """Most of the time is for what was closed; the rest for what is closing, and what waits."""
    service = await mount.start()
    handles = {name: await mount.write(name) for name in names}
    for handle in handles.values():
        await mount.view.flush(handle)
    mount.store.pause_s = math.inf
    for name in closing:
        mount.requests.start_soon(mount.view.close, handles[name])
    await mount.end()
    assert mount.took_s == service.settle_s * share
    reason = "the mount ended before it could be published"
    assert {(lost.name.encode(), lost.reason) for lost in service.lost} == {
        (name, reason) for name in names
    }
    assert len(service.lost) == len(names)

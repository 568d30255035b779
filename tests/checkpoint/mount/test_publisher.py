"""Publishing while the store is away for a while, or for good."""

import math
import os
import time
from functools import partial

import pytest
import trio
import trio.testing

from bootseer.checkpoint.admin.gc import find_orphans, remove_orphans
from bootseer.checkpoint.files.publication import Publication
from bootseer.checkpoint.files.source import StripedSource
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.open_writers import CloseKind, OpenWriters
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.serve import CheckpointOptions, serve_checkpoint
from bootseer.errors import Closed, Conflict, NoSpace, Unavailable
from bootseer.fuse.view import RENAME_NOREPLACE, ROOT_INODE
from bootseer.store.local.store import LocalStore

UNIT = 4096
CONTENT = bytes(range(256)) * 100  # some units
CREATE = os.O_CREAT | os.O_WRONLY


async def close_without_store(served, handle, error, *, synced=True):
    """Have all parts stored, or not, and the store go away before the file is published."""
    if synced:
        await served.view.sync(handle)
    served.store.error = error
    with pytest.raises(type(error)):
        await served.view.flush(handle)
    await served.view.close(handle)


@pytest.mark.parametrize("synced", [True, False])
async def test_a_close_says_that_it_failed_and_the_file_comes_later(served, autojump_clock, synced):
    handle = await served.write()
    await close_without_store(served, handle, Unavailable("no NameNode"), synced=synced)
    node = await served.view.lookup(ROOT_INODE, b"file")
    state = await served.view.extended(node.inode, b"user.bootseer.state")
    assert state == b"waiting: no NameNode"
    assert await served.content() is None
    await trio.sleep(600)
    assert await served.content() is None
    served.store.error = None
    with trio.fail_after(60):
        await served.view.publisher.settled()
    assert await served.content() == CONTENT
    assert served.lost == []


async def test_a_folder_that_the_kernel_forgets_is_needed_by_what_waits_in_it(
    served, autojump_clock
):
    folder = await served.view.make_folder(ROOT_INODE, b"folder", 0o755)
    below = await served.view.make_folder(folder.inode, b"below", 0o755)
    handle = await served.write(parent=below.inode)
    await close_without_store(served, handle, Unavailable("no NameNode"))
    waiting = await served.view.lookup(below.inode, b"file")
    # In whatever order: requests of the kernel are many at once.
    for inode in (folder.inode, below.inode, waiting.inode):
        served.view.forget(inode)
    served.store.error = None
    found = await served.view.lookup(ROOT_INODE, b"folder")
    assert found.inode == folder.inode
    served.view.forget(found.inode)
    with trio.fail_after(60):
        await served.view.publisher.settled()
    assert await served.content(b"folder/below/file") == CONTENT
    assert served.lost == []
    await trio.sleep(1)
    for inode in (folder.inode, below.inode, waiting.inode):
        with pytest.raises(KeyError):
            await served.view.attributes(inode)


@pytest.mark.parametrize("after_s", range(30))
@pytest.mark.parametrize("synced", [False, True])
async def test_a_folder_moves_with_what_is_being_written_in_it(
    served, autojump_clock, synced, after_s
):
    folder = await served.view.make_folder(ROOT_INODE, b"old", 0o755)
    handle = await served.write(parent=folder.inode)
    if synced:
        await served.view.sync(handle)
    above = await served.view.make_folder(ROOT_INODE, b"above", 0o755)

    async def write_on():
        await trio.sleep(after_s)
        await served.view.write(handle, len(CONTENT), CONTENT)
        await served.view.sync(handle)

    served.store.pause_s = 0.7
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.view.rename, ROOT_INODE, b"old", above.inode, b"new", 0)
        nursery.start_soon(write_on)
    served.store.pause_s = 0.0
    await served.view.write(handle, 2 * len(CONTENT), CONTENT)
    await served.view.flush(handle)
    await served.view.close(handle)
    assert await served.content(b"above/new/file") == CONTENT * 3
    assert [info.name for info in await served.inner.list()] == ["above"]
    assert await served.content(b"old/file") is None
    assert served.lost == []


@pytest.mark.parametrize("after_s", [tenths / 10 for tenths in range(0, 60, 2)])
async def test_what_is_open_can_be_read_while_its_folder_moves(served, autojump_clock, after_s):
    folder = await served.view.make_folder(ROOT_INODE, b"old", 0o755)
    handle = await served.write(parent=folder.inode)
    await served.view.flush(handle)
    await served.view.close(handle)
    node = await served.view.lookup(folder.inode, b"file")
    opened = await served.view.open(node.inode, os.O_RDONLY)
    served.store.pause_s = 0.7
    found = []

    async def read():
        await trio.sleep(after_s)
        for at in range(0, len(CONTENT), UNIT):
            found.append(bytes(await served.view.read(opened.handle, at, UNIT)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.view.rename, ROOT_INODE, b"old", ROOT_INODE, b"new", 0)
        nursery.start_soon(read)
    assert b"".join(found) == CONTENT


@pytest.mark.parametrize("fails", [False, True])
async def test_who_reads_a_file_that_is_published_meanwhile_gets_what_it_is_then(
    served, monkeypatch, fails
):
    """Also when what was read has gone already, before that is known."""
    handle = await served.write()
    await served.view.flush(handle)
    await served.view.close(handle)
    node = await served.view.lookup(ROOT_INODE, b"file")
    opened = await served.view.open(node.inode, os.O_RDONLY)
    begun, published = trio.Event(), trio.Event()
    fetch, publish = StripedSource.fetch, Publication.publish_striped
    found = []

    async def fetch_late(source, piece, attempt=0):
        if piece or begun.is_set():
            return await fetch(source, piece, attempt)
        begun.set()
        await published.wait()
        raise Conflict("replaced")

    async def publish_and_wait(*arguments):
        entry = await publish(*arguments)
        if fails:
            published.set()
            await trio.testing.wait_all_tasks_blocked()
        return entry

    async def read():
        found.append(await served.view.read(opened.handle, 0, 100))

    monkeypatch.setattr(StripedSource, "fetch", fetch_late)
    monkeypatch.setattr(Publication, "publish_striped", publish_and_wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await begun.wait()
        handle = await served.write(content=CONTENT[::-1])
        await served.view.flush(handle)
    assert found == [CONTENT[::-1][:100]]


@pytest.mark.parametrize("content", [CONTENT, b"plain"])
async def test_a_file_is_read_on_when_its_time_is_changed(served, tmp_path, content):
    served.store._inner = LocalStore(tmp_path)
    handle = await served.write(content=content)
    await served.view.flush(handle)
    await served.view.close(handle)
    node = await served.view.lookup(ROOT_INODE, b"file")
    opened = await served.view.open(node.inode, os.O_RDONLY)
    await served.view.change(node.inode, mtime_ns=10**18)
    assert await served.view.read(opened.handle, 0, UNIT) == content[:UNIT]
    assert (await served.view.lookup(ROOT_INODE, b"file")).inode == node.inode


async def test_a_write_that_failed_is_not_left_out_of_a_file(served, autojump_clock, caplog):
    handle = await served.write()
    served.store.error = Unavailable("no NameNode")
    with pytest.raises(Unavailable):
        await served.view.sync(handle)
    served.store.error = None
    with pytest.raises(Unavailable):
        await served.view.write(handle, len(CONTENT), b"more")
    with pytest.raises(Unavailable):
        await served.view.flush(handle)
    await served.view.close(handle)
    await served.view.publisher.settled()
    assert await served.content() is None
    assert [lost.name for lost in served.lost] == ["file"]


async def test_what_could_not_be_synced_is_at_the_next_attempt(served, autojump_clock):
    handle = await served.write()
    served.store.error = Unavailable("no NameNode")
    with pytest.raises(Unavailable):
        await served.view.sync(handle)
    served.store.error = None
    await served.view.flush(handle)
    assert await served.content() == CONTENT
    await served.view.close(handle)


async def test_a_file_that_is_published_and_forgotten_while_it_is_listed(served, monkeypatch):
    handle = await served.write()
    inode = (await served.view.lookup(ROOT_INODE, b"file")).inode
    listed, forgotten, around = {}, trio.Event(), served.store.around

    async def late(operation, name, call):
        if (operation, name) == ("list", ""):
            await forgotten.wait()
        return await around(operation, name, call)

    async def list_folder():
        listed.update(await served.view.entries(ROOT_INODE))

    monkeypatch.setattr(served.store, "around", late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(list_folder)
        await trio.testing.wait_all_tasks_blocked()
        await served.view.flush(handle)
        await served.view.close(handle)
        served.view.forget(inode)
        forgotten.set()
    opened = await served.view.open(listed[b"file"].inode, os.O_RDONLY)
    assert await served.view.read(opened.handle, 0, UNIT) == CONTENT[:UNIT]


async def test_a_look_that_is_held_up_holds_nobody_up(autojump_clock):
    looks = trio.CapacityLimiter(1)
    looks.acquire_on_behalf_of_nowait("a look that is held up")
    assert (await OpenWriters(os.getpid(), looks).scan(7)).closing is CloseKind.UNKNOWN
    assert trio.current_time() < 10


async def test_who_opens_it_was_not_told_and_it_comes_later(served, autojump_clock):
    handle = await served.write(thread=0)  # nothing is known of the process
    await served.view.flush(handle)
    served.store.error = Unavailable("no NameNode")
    await served.view.close(handle)
    served.store.error = None
    with trio.fail_after(60):
        await served.view.publisher.settled()
    assert await served.content() == CONTENT


async def test_a_file_that_waits_goes_on_or_begins_again(served, autojump_clock):
    for flags, expected in ((0, CONTENT[:-1] + b"!"), (os.O_TRUNC, b"!")):
        handle = await served.write()
        await close_without_store(served, handle, Unavailable("no NameNode"))
        node = await served.view.lookup(ROOT_INODE, b"file")
        served.store.error = None
        opened = await served.view.open(node.inode, os.O_WRONLY | flags, os.getpid())
        await served.view.write(opened.handle, 0 if flags else len(CONTENT) - 1, b"!")
        await served.view.flush(opened.handle)
        await served.view.close(opened.handle)
        assert await served.content() == expected
    assert served.lost == []


async def test_a_file_that_waits_is_removed(served, autojump_clock):
    handle = await served.write()
    await close_without_store(served, handle, Unavailable("no NameNode"))
    served.store.error = None
    await served.view.remove(ROOT_INODE, b"file")
    await served.view.publisher.settled()
    await trio.sleep(100)
    assert await served.content() is None
    assert served.lost == []


@pytest.mark.parametrize("renamed", [False, True])
async def test_a_file_without_its_name_is_not_published_over_what_has_it(
    served, autojump_clock, renamed
):
    other = await served.write(b"other", content=b"new")
    await served.view.flush(other)
    await served.view.close(other)
    handle = await served.write()
    served.store.error = Unavailable("no NameNode")
    with pytest.raises(Unavailable):
        await served.view.flush(handle)
    served.store.error = None
    if not renamed:
        await served.view.remove(ROOT_INODE, b"file")
    await served.view.rename(ROOT_INODE, b"other", ROOT_INODE, b"file", 0)
    with pytest.raises(Unavailable):
        await served.view.write(handle, 0, b"x")
    await served.view.flush(handle)
    await served.view.close(handle)
    assert await served.content() == b"new"


async def test_a_removed_file_is_not_truncated_by_who_does_not_write_it(served):
    for content in (CONTENT, b"new"):
        handle = await served.write(content=content)
        await served.view.flush(handle)
        await served.view.close(handle)
        if content is CONTENT:
            node = await served.view.lookup(ROOT_INODE, b"file")
            await served.view.open(node.inode, os.O_RDONLY)
            await served.view.remove(ROOT_INODE, b"file")
    with pytest.raises(OSError, match="Stale file handle"):
        await served.view.truncate(node.inode, None, 10)
    assert await served.content() == b"new"


async def test_what_cannot_be_published_is_named_once(served, autojump_clock, caplog):
    handle = await served.write()
    await close_without_store(served, handle, NoSpace("no names left"))
    served.store.error = None
    assert [lost.name for lost in served.lost] == ["file"]
    assert "no names left" in served.lost[0].reason
    node = await served.view.lookup(ROOT_INODE, b"file")
    with pytest.raises(NoSpace):
        await served.view.open(node.inode, os.O_RDONLY)
    await served.view.publisher.end(10)
    assert len(served.lost) == 1
    handle = await served.write()  # another attempt of the program
    await served.view.flush(handle)
    assert await served.content() == CONTENT
    await served.view.close(handle)


async def test_the_end_of_the_mount_publishes_what_it_can(served, autojump_clock, caplog):
    handle = await served.write(b"closed")
    await close_without_store(served, handle, Unavailable("no NameNode"))
    served.store.error = None
    await served.write(b"open")
    await served.view.publisher.end(10)
    assert await served.content(b"closed") == CONTENT
    assert await served.content(b"open") is None
    assert [lost.name for lost in served.lost] == ["open"]
    assert "still being written" in served.lost[0].reason


async def test_the_end_of_the_mount_names_what_it_cannot(served, autojump_clock, caplog):
    handle = await served.write()
    await close_without_store(served, handle, Unavailable("no NameNode"))
    await served.view.publisher.end(10)
    assert [lost.name for lost in served.lost] == ["file"]
    assert "no NameNode" in served.lost[0].reason


async def test_the_end_of_the_mount_waits_for_no_store_that_does_not_answer(
    served, autojump_clock, monkeypatch
):
    ended = trio.Event()

    async def serve(view, connection, *, task_status):
        task_status.started()
        _, opened = await view.create(ROOT_INODE, b"file", 0o600, CREATE, os.getpid())
        await view.write(opened.handle, 0, CONTENT)
        served.store.pause_s = math.inf

        async def close():
            with pytest.raises(Closed, match="before it could be published"):
                await view.flush(opened.handle)
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            await trio.sleep(math.inf)

    monkeypatch.setattr("bootseer.checkpoint.mount.serve.serve_fd", serve)
    async with trio.open_nursery() as nursery:
        owners = OwnerNames(1000, 1000, "user")
        serving = partial(serve_checkpoint, served.store, -1, owners, CheckpointOptions())
        service = await nursery.start(serving)
        await trio.sleep(1)
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began <= service.settle_s
    assert ended.is_set()
    assert [lost.name for lost in service.lost] == ["file"]


async def test_an_owner_s_mode_is_kept_to_and_others_are_the_store_s(served):
    handle = await served.write()
    await served.view.flush(handle)
    await served.view.close(handle)
    node = await served.view.lookup(ROOT_INODE, b"file")
    await served.view.change(node.inode, mode=0o400)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        with pytest.raises(PermissionError):
            await served.view.open(node.inode, flags)
    opened = await served.view.open(node.inode, os.O_RDONLY)
    await served.view.close(opened.handle)


async def test_reading_what_was_written_here_is_not_what_a_start_reads(served):
    handle = await served.write()
    await served.view.flush(handle)
    await served.view.close(handle)
    node = await served.view.lookup(ROOT_INODE, b"file")
    opened = await served.view.open(node.inode, os.O_RDONLY)
    assert await served.view.read(opened.handle, 0, 100) == CONTENT[:100]
    await served.view.close(opened.handle)
    assert await served.reads.close() == []


async def test_a_name_that_turns_out_to_be_taken_is_found(served):
    assert await served.view.entries(ROOT_INODE) == []
    await served.inner.mkdir("folder")  # by another node
    with pytest.raises(FileExistsError):
        await served.view.make_folder(ROOT_INODE, b"folder", 0o755)
    assert (await served.view.lookup(ROOT_INODE, b"folder")).inode


async def test_what_is_open_for_days_is_kept(served, autojump_clock, monkeypatch):
    """`bootseer ckpt gc` takes what has had nothing new for two days for given up."""
    now_ns = time.time_ns()
    began = trio.current_time()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + int((trio.current_time() - began) * 1e9))
    handle = await served.write()
    await served.view.sync(handle)
    await trio.sleep(10 * 86400)
    tree = CheckpointTree(served.inner)
    await remove_orphans(tree, "", await find_orphans(tree, ""))
    await served.view.write(handle, 0, b"new")
    await served.view.flush(handle)
    await served.view.close(handle)
    assert await served.content() == b"new" + CONTENT[3:]


async def test_a_rename_that_replaces_nothing(served):
    """The kernel knows what it has seen; another node may have made a file since."""
    for name in (b"old", b"there"):
        handle = await served.write(name)
        await served.view.flush(handle)
        await served.view.close(handle)
    with pytest.raises(FileExistsError):
        await served.view.rename(ROOT_INODE, b"old", ROOT_INODE, b"there", RENAME_NOREPLACE)
    await served.view.rename(ROOT_INODE, b"old", ROOT_INODE, b"new", RENAME_NOREPLACE)
    assert await served.content(b"old") is None and await served.content(b"new") == CONTENT
    await served.view.rename(ROOT_INODE, b"new", ROOT_INODE, b"there", 0)
    assert await served.content(b"new") is None


async def test_a_rename_over_what_is_being_written_is_not_done_by_halves(served, monkeypatch):
    """What is replaced may not be kept, but it is not published over what has its name now."""
    for name, content in ((b"new", CONTENT), (b"file", bytes(len(CONTENT)))):
        handle = await served.write(name, content=content)
        await served.view.flush(handle)
        await served.view.close(handle)
    node = await served.view.lookup(ROOT_INODE, b"file")
    opened = await served.view.open(node.inode, os.O_RDWR, os.getpid())
    await served.view.write(opened.handle, 0, b"x" * len(CONTENT))

    async def move_away(name, layout, target):
        raise Unavailable("no NameNode")

    monkeypatch.setattr(served.view._tree.parts, "move_away", move_away)
    await served.view.rename(ROOT_INODE, b"new", ROOT_INODE, b"file", 0)
    await served.view.flush(opened.handle)
    await served.view.close(opened.handle)
    assert await served.content() == CONTENT
    assert await served.content(b"new") is None


async def test_a_folder_lists_what_is_written_in_it_and_nothing_else(served):
    folder = await served.view.make_folder(ROOT_INODE, b"folder", 0o755)
    for parent, name in ((ROOT_INODE, b"a"), (folder.inode, b"b")):
        await served.write(name, parent=parent)
    listed = [
        [name for name, _ in await served.view.entries(inode)]
        for inode in (ROOT_INODE, folder.inode)
    ]
    assert listed == [[b"a", b"folder"], [b"b"]]


async def test_a_listing_that_began_before_a_publication_is_not_believed(served, monkeypatch):
    handle = await served.write(content=b"old")
    await served.view.flush(handle)
    await served.view.close(handle)
    handle = await served.write()
    node = await served.view.lookup(ROOT_INODE, b"file")
    answered, published = trio.Event(), trio.Event()
    ask = served.view._tree.show_folder
    listed = []

    async def answer_late(folder):
        found = await ask(folder)
        answered.set()
        await published.wait()
        return found

    async def list_folder():
        listed.extend(await served.view.entries(ROOT_INODE))

    monkeypatch.setattr(served.view._tree, "show_folder", answer_late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(list_folder)
        await answered.wait()
        await served.view.flush(handle)
        await served.view.close(handle)
        published.set()
    ((_, found),) = listed
    assert (found.inode, found.size_bytes) == (node.inode, len(CONTENT))
    opened = await served.view.open(found.inode, os.O_RDONLY)
    assert await served.view.read(opened.handle, 0, 100) == CONTENT[:100]


async def test_a_file_that_is_emptied_keeps_its_name_though_somebody_looks(served, autojump_clock):
    """What was written before is removed, which takes its time, while others ask for the name."""
    handle = await served.write()
    await served.view.sync(handle)
    node = await served.view.lookup(ROOT_INODE, b"file")
    served.store.pause_s = 0.3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.view.truncate, node.inode, handle, 0)
        for _ in range(5):
            await trio.sleep(0.1)
            assert (await served.view.lookup(ROOT_INODE, b"file")).inode == node.inode
    await served.view.write(handle, 0, b"again")
    await served.view.flush(handle)
    await served.view.close(handle)
    assert await served.content() == b"again"


async def test_a_folder_goes_though_a_file_that_was_removed_from_it_is_open(served):
    top = await served.view.make_folder(ROOT_INODE, b"top", 0o755)
    folder = await served.view.make_folder(top.inode, b"folder", 0o755)
    handle = await served.write(parent=folder.inode)
    await served.view.sync(handle)
    await served.view.remove(folder.inode, b"file")
    served.store.error = Unavailable("no NameNode")
    with pytest.raises(Unavailable):
        await served.view.remove_folder(top.inode, b"folder")
    served.store.error = None
    await served.view.remove_folder(top.inode, b"folder")
    await served.view.rename(ROOT_INODE, b"top", ROOT_INODE, b"other", 0)
    await served.view.write(handle, 0, b"new")
    await served.view.sync(handle)
    assert await served.view.read(handle, 0, UNIT) == (b"new" + CONTENT[3:])[:UNIT]
    await served.view.flush(handle)
    await served.view.close(handle)
    assert [info.name for info in await served.inner.list("other")] == []
    assert not [name for name in served.inner._entries if "making-" in name]


class Pages:
    """A page cache that takes a page when a read in progress has ended."""

    def __init__(self):
        self.begun = trio.Event()
        self.read = trio.Event()
        self.under_way = 0

    async def store(self, inode, offset, data):
        self.begun.set()
        self.under_way += 1
        await self.read.wait()
        self.under_way -= 1


async def reading_far(served):
    """Begin to read a file; returns the page cache to which more is on its way, file and reader."""
    served.view.attach(pages := Pages())
    handle = await served.write(content=bytes(20 * UNIT))
    await served.view.flush(handle)
    await served.view.close(handle)
    node = await served.view.lookup(ROOT_INODE, b"file")
    reader = await served.view.open(node.inode, os.O_RDONLY)
    await served.view.read(reader.handle, 0, UNIT)
    await pages.begun.wait()
    return pages, node, reader


async def test_a_file_is_emptied_while_it_is_read(served, autojump_clock):
    """Pages on their way into the page cache wait for those that a read in progress has locked."""
    pages, node, reader = await reading_far(served)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.view.open, node.inode, os.O_WRONLY | os.O_TRUNC)
            await trio.testing.wait_all_tasks_blocked()
            assert await served.view.read(reader.handle, UNIT, UNIT) == b""
            pages.read.set()


async def test_no_pages_of_what_a_file_was_come_after_it_is_cut(served, autojump_clock):
    pages, node, reader = await reading_far(served)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.view.truncate, node.inode, None, UNIT)
        await trio.testing.wait_all_tasks_blocked()
        assert len(await served.content()) == 20 * UNIT
        pages.read.set()
    assert pages.under_way == 0
    assert await served.content() == bytes(UNIT)
    assert await served.view.read(reader.handle, UNIT, UNIT) == b""

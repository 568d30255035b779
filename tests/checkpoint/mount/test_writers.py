"""What the close(2) of each writer means for a file, without the processes that do it."""

import os
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from bootseer.checkpoint.mount.open_writers import CloseKind, OpenWriters, ProcessScan
from bootseer.errors import Closed, NoSpace, Unavailable
from bootseer.fuse.view import ROOT_INODE
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import HangingStore

CONTENT = bytes(range(256)) * 100  # some units
LAST, KILLED, UNKNOWN = (
    ProcessScan(each) for each in (CloseKind.LAST, CloseKind.KILLED, CloseKind.UNKNOWN)
)
HELD, PASSED_ON = ProcessScan(CloseKind.HELD), ProcessScan(CloseKind.HELD, by_opener=True)


@pytest.fixture
def looks(monkeypatch):
    """What is found out at each close(2), in turn."""
    found = []

    async def look(self, inode):
        await trio.lowlevel.checkpoint()
        return found.pop(0)

    monkeypatch.setattr(OpenWriters, "scan", look)
    return found


async def settled(served, ended):
    """Wait until all is settled, and note what is in the store then."""
    await served.view.publisher.settled()
    ended.append(await served.content())


async def waiting(served, error=None):
    """Write a file that cannot be published when it is closed."""
    handle = await served.write()
    await served.view.sync(handle)
    served.store.error = error or Unavailable("no NameNode")
    with pytest.raises(Unavailable):
        await served.view.flush(handle)
    await served.view.close(handle)
    return (await served.view.lookup(ROOT_INODE, b"file")).inode


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([LAST], CONTENT),
        ([KILLED], None),
        ([HELD, LAST], CONTENT),
        ([PASSED_ON, KILLED], CONTENT),
        ([LAST, KILLED], CONTENT),
        ([HELD, KILLED], None),
    ],
)
async def test_what_one_has_closed_who_was_not_killed_is_published(
    served, looks, caplog, found, expected
):
    looks += found
    handle = await served.write()
    while looks:
        await served.view.flush(handle)
    assert await served.content() == expected
    assert [lost.name for lost in served.lost] == ([] if expected else ["file"])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([LAST, LAST], CONTENT),
        ([LAST, KILLED], CONTENT),
        ([KILLED, LAST], CONTENT),
        ([KILLED, KILLED], None),
        ([HELD, LAST], None),
        ([UNKNOWN, LAST], None),
    ],
)
async def test_of_two_who_opened_a_file_one_is_enough_and_both_have_to_close(
    served, looks, caplog, found, expected
):
    looks += found
    first = await served.write()
    inode = (await served.view.lookup(ROOT_INODE, b"file")).inode
    second = (await served.view.open(inode, os.O_WRONLY, os.getpid())).handle
    await served.view.flush(first)
    assert await served.content() is None
    await served.view.flush(second)
    assert await served.content() == expected
    assert bool(served.lost) == (found == [KILLED, KILLED])


async def test_what_is_written_after_one_has_closed_is_not_vouched_for(served, looks, caplog):
    looks += [PASSED_ON, KILLED]
    handle = await served.write()
    await served.view.flush(handle)
    await served.view.write(handle, 0, b"more")
    await served.view.flush(handle)
    assert await served.content() is None
    assert [lost.name for lost in served.lost] == ["file"]
    await served.view.close(handle)


async def test_what_was_there_before_a_killed_writer_is_there_still(served, looks, caplog):
    looks += [LAST, KILLED]
    inode = await served.put(content=b"old")
    forgotten = []
    kernel = SimpleNamespace(forget_entry=lambda parent, name: forgotten.append((parent, name)))
    served.view.attach(kernel)
    handle = await served.write()
    assert (await served.view.lookup(ROOT_INODE, b"file")).inode == inode
    before = await served.view.attributes(ROOT_INODE)
    await served.view.flush(handle)
    assert forgotten == [(ROOT_INODE, b"file")]
    assert "file is lost: its writer was killed" in caplog.text
    assert (await served.view.attributes(ROOT_INODE)).mtime_ns > before.mtime_ns
    found = await served.view.lookup(ROOT_INODE, b"file")
    assert (found.inode != inode, found.size_bytes) == (True, 3)
    assert (await served.view.attributes(inode)).links == 0
    state = await served.view.extended(inode, b"user.bootseer.state")
    assert state.startswith(b"lost: its writer was killed")
    with pytest.raises(OSError, match="Stale"):
        await served.view.open(inode, os.O_RDONLY)
    for use in (
        lambda: served.view.read(handle, 0, 100),
        lambda: served.view.write(handle, 0, b"x"),
        lambda: served.view.sync(handle),
    ):
        with pytest.raises(Closed, match="killed"):
            await use()
    assert await served.content() == b"old"
    assert served.drafts.context.open == 0
    await served.view.close(handle)
    assert not served.in_the_making()


async def test_a_close_before_the_last_says_that_what_was_written_is_not_stored(
    served, looks, autojump_clock
):
    looks += [HELD, LAST]
    handle = await served.write()
    served.store.error = Unavailable("no NameNode")
    with pytest.raises(Unavailable):
        await served.view.flush(handle)
    served.store.error = None
    await served.view.flush(handle)
    assert await served.content() == CONTENT


# Who waits for it


async def test_a_file_that_somebody_has_open_is_not_waited_for(served, looks):
    looks += [HELD]
    handle = await served.write()
    await served.view.publisher.settled()
    await served.view.flush(handle)
    await served.view.publisher.settled()
    assert await served.content() is None


async def test_a_close_that_is_under_way_is_waited_for(served, looks, monkeypatch):
    looks += [LAST]
    handle = await served.write()
    go_on, around, ended = trio.Event(), served.store.around, []

    async def late(operation, name, call):
        await go_on.wait()
        return await around(operation, name, call)

    monkeypatch.setattr(served.store, "around", late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.view.sync, handle)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(served.view.flush, handle)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(settled, served, ended)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        go_on.set()
    assert ended == [CONTENT]


async def test_a_file_that_is_published_when_nobody_has_it_open_is_waited_for(served):
    handle = await served.write(thread=0)  # nothing is known of the process
    await served.view.flush(handle)
    ended = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settled, served, ended)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        await served.view.close(handle)
    assert ended == [CONTENT]


async def test_a_file_that_is_removed_is_waited_for_no_longer(served, autojump_clock):
    await waiting(served)
    served.store.error = None
    ended = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settled, served, ended)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        began = trio.current_time()
        await served.view.remove(ROOT_INODE, b"file")
        await trio.testing.wait_all_tasks_blocked()
        assert ended == [None]
        assert trio.current_time() == began


async def test_a_file_that_is_written_on_is_not_waited_for(served, autojump_clock, caplog):
    handle = await served.write(thread=0)  # nothing is known of the process
    await served.view.flush(handle)
    await served.view.write(handle, 0, b"more")
    await served.view.publisher.settled()
    await served.view.publisher.end(10)
    assert await served.content() is None
    assert "still being written" in served.lost[0].reason


# Trying again


@pytest.mark.parametrize("end", ["published", "removed", "lost", "opened", "emptied", "replaced"])
async def test_nobody_goes_on_trying_when_there_is_no_need(served, autojump_clock, caplog, end):
    await served.put(b"other", b"other")
    tasks = len(served.nursery.child_tasks)
    inode = await waiting(served)
    await trio.sleep(100)
    assert len(served.nursery.child_tasks) == tasks + 1
    served.store.error = NoSpace("no names left") if end == "lost" else None
    if end == "removed":
        await served.view.remove(ROOT_INODE, b"file")
    elif end == "replaced":
        await served.view.rename(ROOT_INODE, b"other", ROOT_INODE, b"file", 0)
    elif end in ("opened", "emptied"):
        flags = os.O_WRONLY | (os.O_TRUNC if end == "emptied" else 0)
        opened = await served.view.open(inode, flags, os.getpid())
    await trio.sleep(100)
    assert len(served.nursery.child_tasks) == tasks
    assert [lost.name for lost in served.lost] == (["file"] if end == "lost" else [])
    contents = {"published": CONTENT, "replaced": b"other"}
    assert await served.content() == contents.get(end)
    if end in ("opened", "emptied"):
        await served.view.close(opened.handle)
        assert await served.content() == (b"" if end == "emptied" else CONTENT)
        assert (await served.view.open(inode, os.O_RDONLY)).keep_cache
        assert not served.in_the_making()


async def test_it_is_tried_again_soon_and_then_not_often(served, autojump_clock):
    await waiting(served)
    served.store.calls.clear()
    await trio.sleep(3)
    assert served.store.calls
    await trio.sleep(600)
    assert 20 < len(served.store.calls) < 100


async def test_what_is_published_is_not_tried_again(served):
    tasks = len(served.nursery.child_tasks)
    handle = await served.write(thread=0)
    await served.view.flush(handle)
    await served.view.close(handle)
    assert await served.content() == CONTENT
    assert len(served.nursery.child_tasks) == tasks


async def test_what_waits_is_not_written_before_it_is_published(served, autojump_clock):
    inode = await waiting(served)
    opened = await served.view.open(inode, os.O_WRONLY, os.getpid())
    with pytest.raises(Unavailable):
        await served.view.write(opened.handle, 0, b"x")
    served.store.error = None
    await served.view.write(opened.handle, 0, b"x")
    assert await served.content() == CONTENT
    await served.view.flush(opened.handle)
    assert await served.content() == b"x" + CONTENT[1:]


async def test_a_new_file_that_waits_is_there_though_it_cannot_be_emptied(served, autojump_clock):
    inode = await waiting(served)
    with pytest.raises(Unavailable):
        await served.view.truncate(inode, None, 0)
    found = await served.view.lookup(ROOT_INODE, b"file")
    assert (found.inode, found.size_bytes) == (inode, 0)
    served.store.error = None
    await served.view.truncate(inode, None, 0)
    assert await served.content() == b""


async def test_a_file_that_was_lost_can_be_emptied(served, autojump_clock, caplog):
    inode = await waiting(served, NoSpace("no names left"))
    served.store.error = None
    with pytest.raises(NoSpace):
        await served.view.truncate(inode, None, 1)
    assert (await served.view.truncate(inode, None, 0)).size_bytes == 0
    assert await served.content() == b""
    opened = await served.view.open(inode, os.O_RDONLY)
    assert await served.view.read(opened.handle, 0, 10) == b""


async def test_what_is_lost_is_named_once(served, autojump_clock, caplog):
    await waiting(served, NoSpace("no names left"))
    served.store.error = None
    await trio.sleep(100)
    await served.view.publisher.end(10)
    assert [(lost.name, lost.reason) for lost in served.lost] == [("file", "no names left")]


async def test_a_folder_is_left_by_what_is_lost_in_it(served, autojump_clock, caplog):
    """It neither moves with the folder nor keeps it."""
    top = (await served.view.make_folder(ROOT_INODE, b"top", 0o755)).inode
    folder = (await served.view.make_folder(top, b"folder", 0o755)).inode
    handle = await served.write(parent=folder)
    await served.view.sync(handle)
    await served.view.write(handle, len(CONTENT), CONTENT)
    served.store.error = NoSpace("no blocks left")
    with pytest.raises(NoSpace):
        await served.view.sync(handle)
    with pytest.raises(NoSpace):
        await served.view.flush(handle)
    served.store.error = None
    await served.view.rename(ROOT_INODE, b"top", ROOT_INODE, b"new", 0)
    await served.view.remove(folder, b"file")
    await served.view.remove_folder(top, b"folder")
    assert not served.in_the_making()
    with pytest.raises(NoSpace):
        await served.view.write(handle, 0, b"x")
    await served.view.close(handle)


# The end


async def test_a_close_is_not_cut_short(served):
    handle = await served.write()
    with trio.CancelScope() as scope:
        scope.cancel()
        await served.view.flush(handle)
    assert await served.content() == CONTENT


async def test_a_close_after_the_end_has_no_time(served, caplog):
    handle = await served.write()
    served.view.publisher.interrupt()
    with pytest.raises(Closed, match="before it could be published"):
        await served.view.flush(handle)
    assert [lost.name for lost in served.lost] == ["file"]
    assert await served.content() is None
    await served.view.close(handle)
    assert len(served.lost) == 1


async def test_what_has_no_name_is_not_lost_at_the_end(served):
    handle = await served.write()
    await served.view.remove(ROOT_INODE, b"file")
    served.view.publisher.interrupt()
    await served.view.close(handle)
    await served.view.publisher.end(10)
    assert served.lost == []


async def test_at_the_end_what_was_closed_comes_before_what_is_open(serve, autojump_clock, caplog):
    inner = MemoryStore()
    served = serve(hanging := HangingStore(inner, ()))
    opened = await served.write(b"open")
    await served.view.sync(opened)
    await served.view.flush(await served.write(thread=0))
    hanging.operations = ("delete_tree",)  # of what is given up, which takes all the time there is
    await served.view.publisher.end(1)
    assert [lost.name for lost in served.lost] == ["open"]
    assert (await inner.stat("file")).size_bytes
    assert trio.current_time() <= 6


async def test_at_the_end_nothing_is_left_of_what_is_open(served, caplog):
    handle = await served.write()
    await served.view.sync(handle)
    await served.view.publisher.end(10)
    assert "still being written" in served.lost[0].reason
    assert not served.in_the_making()


@pytest.mark.parametrize("has_failed", [False, True])
async def test_at_the_end_there_is_a_reason_for_what_took_too_long(
    serve, autojump_clock, caplog, has_failed
):
    served = serve(hanging := HangingStore(MemoryStore(), ()))
    if has_failed:
        await waiting(served)
        served.store.error = None
    else:
        await served.view.flush(await served.write(thread=0))
    hanging.operations = None
    await served.view.publisher.end(1)
    (lost,) = served.lost
    reason = "the mount ended before it could be published"
    assert (lost.name, lost.reason) == ("file", reason + ": no NameNode" * has_failed)

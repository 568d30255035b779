"""What a view of a tree answers, and what it refuses, without a kernel that keeps much from it."""

import errno
import os
import stat
import time
from dataclasses import replace

import pytest
import trio
import trio.testing

from bootseer.checkpoint.files.size_marks import sizes_of
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import Conflict, Corrupt, NoSpace, NotFound, Unavailable
from bootseer.fuse.view import ROOT_INODE, Attributes
from bootseer.fuse.view import FilesystemSpace as Shown
from bootseer.store.api.base import FolderListing, StoreSpace, publish
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore

UNIT = 4096
CONTENT = bytes(range(256)) * 100  # some units
CREATE = os.O_CREAT | os.O_WRONLY
NO_SPACE_KNOWN = 2**50


def refused(number):
    """Expect an error that the kernel passes on as it is."""
    return pytest.raises(OSError, match=os.strerror(number))


async def read(served, inode, flags=os.O_RDONLY):
    """Read a file as somebody does who opens it."""
    opened = await served.view.open(inode, flags)
    found = await served.view.read(opened.handle, 0, 1 << 20)
    await served.view.close(opened.handle)
    return bytes(found)


async def names(served, inode=ROOT_INODE):
    return [name for name, _ in await served.view.entries(inode)]


# What is shown


async def test_a_new_folder_is_shown_as_it_is(served):
    before = time.time_ns()
    folder = await served.view.make_folder(ROOT_INODE, b"folder", 0o4750)
    assert folder == Attributes(
        folder.inode,
        stat.S_IFDIR | 0o750,
        0,
        folder.mtime_ns,
        folder.mtime_ns,
        1000,
        1000,
        links=2,
    )
    assert before <= folder.mtime_ns <= time.time_ns()
    assert folder.inode >= 2**32, "Other file systems of the node have such numbers"
    assert (await served.inner.stat("folder")).mode == 0o750


async def test_a_file_in_the_making_is_shown_as_it_is(served):
    before = time.time_ns()
    file, opened = await served.view.create(ROOT_INODE, b"file", 0o4640, CREATE, os.getpid())
    assert file == Attributes(
        file.inode, stat.S_IFREG | 0o640, 0, file.mtime_ns, file.mtime_ns, 1000, 1000, links=1
    )
    assert before <= file.mtime_ns <= time.time_ns()
    assert (await served.view.attributes(ROOT_INODE)).mtime_ns >= before
    await served.view.write(opened.handle, 0, b"content")
    assert (await served.view.attributes(file.inode)).size_bytes == 7
    await served.view.flush(opened.handle)
    assert (await served.inner.stat("file")).mode == 0o640


async def test_the_root_need_not_be_there(served):
    root = await served.view.attributes(ROOT_INODE)
    assert root == Attributes(ROOT_INODE, stat.S_IFDIR | 0o755, 0, 0, 0, 1000, 1000, links=2)
    assert await names(served) == []


class Modeless(WrappedStore):
    """Has no modes, and another's files."""

    async def around(self, operation, name, call):
        found = await call()
        if operation == "stat":
            return self._bare(found)
        if operation == "list":
            return FolderListing(self._bare(info) for info in found)
        return found

    def _bare(self, info):
        return replace(info, mode=None, owner="4321", group="5432")


async def test_where_a_store_has_no_modes_all_may_read(serve):
    served = serve(Modeless(MemoryStore()))
    await served.inner.mkdir("folder")
    await publish(served.inner, "file", b"content")
    shown = dict(await served.view.entries(ROOT_INODE))
    assert shown[b"folder"].mode == stat.S_IFDIR | 0o755
    assert shown[b"file"].mode == stat.S_IFREG | 0o644
    assert [(each.uid, each.gid) for each in shown.values()] == [(4321, 5432)] * 2


async def test_how_a_file_is_stored_is_told(served):
    async def told(inode):
        names = await served.view.extended_names(inode)
        assert names == sorted(names)
        return {
            name.removeprefix(b"user.bootseer.").decode(): (
                await served.view.extended(inode, name)
            ).decode()
            for name in names
        }

    assert await told(ROOT_INODE) == {}
    plain = await served.put(b"plain", b"content")
    assert await told(plain) == {"state": "complete", "layout": "plain"}
    striped = await served.put()
    layout = (await CheckpointTree(served.inner).stat("file")).layout
    assert await told(striped) == {
        "state": "complete",
        "layout": f"striped unit={UNIT} parts={layout.parts}",
        "digest": f"sha256:{layout.digest}",
    }
    opened = await served.view.open(striped, os.O_WRONLY | os.O_TRUNC)
    assert await told(striped) == {"state": "being written"}
    await served.view.close(opened.handle)
    manifest = layout.encode()
    await publish(served.inner, "damaged", manifest[:-1] + bytes([manifest[-1] ^ 1]))
    damaged = await told((await served.view.lookup(ROOT_INODE, b"damaged")).inode)
    assert damaged["state"].startswith("damaged: ") and damaged["layout"] == "plain"
    with refused(errno.ENODATA):
        await served.view.extended(plain, b"user.bootseer.digest")


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (StoreSpace(3000, 1000), Shown(3000, 1000)),
        (StoreSpace(0, 0), Shown(0, 0)),
        (StoreSpace(3000, None), Shown(NO_SPACE_KNOWN, NO_SPACE_KNOWN)),
        (StoreSpace(None, 1000), Shown(NO_SPACE_KNOWN, NO_SPACE_KNOWN)),
        (None, Shown(NO_SPACE_KNOWN, NO_SPACE_KNOWN)),
    ],
)
async def test_the_space_is_what_the_store_tells(serve, told, shown):
    class Telling(WrappedStore):
        async def around(self, operation, name, call):
            await call()
            if told is None:
                raise Unavailable("it does not say")
            return told

    assert await serve(Telling(MemoryStore())).view.space() == shown


async def test_a_listing_is_sorted(served):
    for name in (b"c", b"a", b"d", b"b"):
        await served.write(name)
    await publish(served.inner, "bb", b"content")
    assert await names(served) == [b"a", b"b", b"bb", b"c", b"d"]


async def test_what_the_kernel_has_of_a_file_stays_unless_it_is_being_written(served):
    inode = await served.put()
    assert (await served.view.open(inode, os.O_RDONLY)).keep_cache
    writer = await served.view.open(inode, os.O_WRONLY, os.getpid())
    await served.view.write(writer.handle, 0, b"new")
    assert not (await served.view.open(inode, os.O_RDONLY)).keep_cache
    await served.view.flush(writer.handle)


# Names


async def test_names_that_no_store_has_are_not_there(served):
    served.store.error = Unavailable("it must not be asked")
    with trio.testing.assert_checkpoints(), pytest.raises(FileNotFoundError):
        await served.view.lookup(ROOT_INODE, b"a\nb")
    with refused(errno.EILSEQ):
        await served.view.lookup(ROOT_INODE, b"\xff")


@pytest.mark.parametrize(("name", "number"), [(b"a\nb", errno.EINVAL), (b"\xff", errno.EILSEQ)])
async def test_names_that_no_store_has_cannot_be_given(served, name, number):
    await served.put()
    with refused(number):
        await served.view.make_folder(ROOT_INODE, name, 0o755)
    with refused(number):
        await served.view.create(ROOT_INODE, name, 0o644, CREATE)
    with refused(number):
        await served.view.rename(ROOT_INODE, b"file", ROOT_INODE, name, 0)
    assert await names(served) == [b"file"]


async def test_there_are_no_links(served):
    inode = await served.put()
    with trio.testing.assert_checkpoints(), refused(errno.EINVAL):
        await served.view.link_target(inode)


async def test_questions_that_need_no_store_let_others_go_on(served):
    with trio.testing.assert_checkpoints():
        assert await served.view.extended_names(ROOT_INODE) == []
    with trio.testing.assert_checkpoints(), refused(errno.ENODATA):
        await served.view.extended(ROOT_INODE, b"user.bootseer.state")


async def test_what_is_no_folder_and_what_is_one_is_told_apart(served):
    await served.put()
    folder = (await served.view.make_folder(ROOT_INODE, b"folder", 0o755)).inode
    await served.view.make_folder(ROOT_INODE, b"other", 0o755)
    await served.put(b"below", parent=folder)
    view = served.view
    with pytest.raises(IsADirectoryError):
        await view.remove(ROOT_INODE, b"folder")
    with pytest.raises(NotADirectoryError):
        await view.remove_folder(ROOT_INODE, b"file")
    with pytest.raises(IsADirectoryError):
        await view.rename(ROOT_INODE, b"file", ROOT_INODE, b"folder", 0)
    with pytest.raises(NotADirectoryError):
        await view.rename(ROOT_INODE, b"folder", ROOT_INODE, b"file", 0)
    with pytest.raises(IsADirectoryError):
        await view.create(ROOT_INODE, b"folder", 0o644, CREATE)
    with pytest.raises(FileExistsError):
        await view.create(ROOT_INODE, b"file", 0o644, CREATE | os.O_EXCL)
    with refused(errno.ENOTEMPTY):
        await view.remove_folder(ROOT_INODE, b"folder")
    with refused(errno.ENOTEMPTY):
        await view.rename(ROOT_INODE, b"other", ROOT_INODE, b"folder", 0)
    for change in (view.remove, view.remove_folder):
        with pytest.raises(FileNotFoundError):
            await change(ROOT_INODE, b"none")
    with pytest.raises(FileNotFoundError):
        await view.rename(ROOT_INODE, b"none", ROOT_INODE, b"file", 0)
    assert await names(served) == [b"file", b"folder", b"other"]
    assert await served.content() == CONTENT


async def test_a_folder_goes_over_one_that_is_empty(served):
    for name in (b"one", b"other"):
        folder = await served.view.make_folder(ROOT_INODE, name, 0o755)
    inode = (await served.view.lookup(ROOT_INODE, b"one")).inode
    await served.put(parent=inode)
    await served.view.rename(ROOT_INODE, b"one", ROOT_INODE, b"other", 0)
    assert await names(served) == [b"other"]
    found = await served.view.lookup(ROOT_INODE, b"other")
    assert found.inode == inode != folder.inode
    assert await served.content(b"other/file") == CONTENT


async def test_a_folder_that_had_to_go_for_another_is_gone_though_that_has_not_come(
    served, monkeypatch
):
    for name in (b"one", b"other"):
        folder = await served.view.make_folder(ROOT_INODE, name, 0o755)

    async def fail(*_, **__):
        raise Unavailable("no NameNode")

    monkeypatch.setattr(served.view._namespace, "rename", fail)
    with pytest.raises(Unavailable):
        await served.view.rename(ROOT_INODE, b"one", ROOT_INODE, b"other", 0)
    with pytest.raises(FileNotFoundError):
        await served.view.create(folder.inode, b"file", 0o644, CREATE)
    assert await names(served) == [b"one"]


async def test_a_folder_goes_while_a_file_elsewhere_is_written(served):
    folder = (await served.view.make_folder(ROOT_INODE, b"folder", 0o755)).inode
    below = await served.put(b"below", b"small", parent=folder)
    await served.write()
    other = (await served.view.make_folder(ROOT_INODE, b"other", 0o755)).inode
    removed = await served.write(b"removed", parent=other)
    await served.view.sync(removed)
    await served.view.remove(other, b"removed")
    await served.inner.delete("folder/below")  # by another node
    assert (await served.view.attributes(below)).links == 1
    await served.view.remove_folder(ROOT_INODE, b"folder")
    assert await names(served) == [b"file", b"other"]
    assert all(name.startswith(("other/", ".")) for name in served.in_the_making())
    assert any(name.startswith("other/") for name in served.in_the_making())


async def test_a_folder_in_which_somebody_writes_stays(served):
    folder = (await served.view.make_folder(ROOT_INODE, b"folder", 0o755)).inode
    await served.write(parent=folder)
    with refused(errno.ENOTEMPTY):
        await served.view.remove_folder(ROOT_INODE, b"folder")


async def test_nothing_is_made_in_a_folder_that_was_removed(served):
    folder = (await served.view.make_folder(ROOT_INODE, b"folder", 0o755)).inode
    await served.put()
    await served.view.remove_folder(ROOT_INODE, b"folder")
    with pytest.raises(FileNotFoundError):
        await served.view.create(folder, b"file", 0o644, CREATE)
    with pytest.raises(FileNotFoundError):
        await served.view.make_folder(folder, b"below", 0o755)
    with pytest.raises(FileNotFoundError):
        await served.view.rename(ROOT_INODE, b"file", folder, b"file", 0)
    assert await names(served) == [b"file"]


# What others do


async def test_a_file_that_others_remove_is_gone(served):
    inode = await served.put()
    await served.inner.delete_tree("file")
    with pytest.raises(FileNotFoundError):
        await served.view.lookup(ROOT_INODE, b"file")
    assert (await served.view.attributes(inode)).links == 0
    with pytest.raises(FileNotFoundError):
        await served.view.remove(ROOT_INODE, b"file")


OF_A_NUMBER = {
    "attributes": lambda view, inode: view.attributes(inode),
    "extended": lambda view, inode: view.extended(inode, b"user.bootseer.state"),
    "extended_names": lambda view, inode: view.extended_names(inode),
    "open to read": lambda view, inode: view.open(inode, os.O_RDONLY),
    "open to write": lambda view, inode: view.open(inode, os.O_RDWR),
    "open with nothing": lambda view, inode: view.open(inode, os.O_WRONLY | os.O_TRUNC),
    "cut": lambda view, inode: view.truncate(inode, None, 1),
    "empty": lambda view, inode: view.truncate(inode, None, 0),
    "change": lambda view, inode: view.change(inode, mode=0o600),
}


@pytest.mark.parametrize("operation", OF_A_NUMBER)
async def test_of_a_file_that_was_removed_before_it_was_published_nothing_is_left(
    served, operation
):
    """Who has looked it up before may come late."""
    handle = await served.write()
    inode = (await served.view.lookup(ROOT_INODE, b"file")).inode
    await served.view.remove(ROOT_INODE, b"file")
    await served.view.flush(handle)
    await served.view.close(handle)
    with refused(errno.ESTALE):
        await OF_A_NUMBER[operation](served.view, inode)
    assert await served.content() is None


@pytest.mark.parametrize("change", ["remove", "create", "rename"])
async def test_a_change_of_a_file_that_others_have_removed_finds_that_out(served, change):
    inode = await served.put(content=b"what it was")
    await served.inner.delete("file")
    if change == "remove":
        with pytest.raises(FileNotFoundError):
            await served.view.remove(ROOT_INODE, b"file")
    elif change == "create":
        assert await served.put(content=b"what it is") != inode
    else:
        other = await served.put(b"other", b"what it is")
        await served.view.rename(ROOT_INODE, b"other", ROOT_INODE, b"file", 0)
        assert (await served.view.lookup(ROOT_INODE, b"file")).inode == other
    assert (await served.view.attributes(inode)).links == 0


async def test_what_others_have_put_in_the_place_of_a_file_has_another_number(served):
    await served.put(content=b"content")
    folder = await served.view.make_folder(ROOT_INODE, b"folder", 0o755)
    first = await served.view.lookup(ROOT_INODE, b"file")
    await publish(served.inner, "file", b"CONTENT")
    second = await served.view.lookup(ROOT_INODE, b"file")
    assert second.inode != first.inode
    assert (await served.view.attributes(first.inode)).links == 0
    await served.inner.delete("file")
    await served.inner.mkdir("file")
    third = await served.view.lookup(ROOT_INODE, b"file")
    assert stat.S_ISDIR(third.mode) and third.inode != second.inode
    await publish(served.inner, "folder/below", b"")  # which is another time of it
    found = await served.view.lookup(ROOT_INODE, b"folder")
    assert found.inode == folder.inode
    assert found.mtime_ns > folder.mtime_ns


async def test_what_others_have_changed_is_seen_when_a_listing_is_no_longer_believed(
    served, autojump_clock
):
    await served.put()
    await names(served)
    began = trio.current_time()
    await publish(served.inner, "new", b"content")
    await trio.sleep(1.0)
    with pytest.raises(FileNotFoundError):
        await served.view.lookup(ROOT_INODE, b"new")
    assert trio.current_time() == began + 1.0
    await trio.sleep(0.001)
    assert (await served.view.lookup(ROOT_INODE, b"new")).size_bytes == 7


class TestAListing:
    """Names are looked for in it, as programs do after they have listed a folder."""

    @pytest.fixture
    async def listed(self, served):
        """Have a folder listed in which there are some files, and forget what that has cost."""
        for number in range(3):
            await publish(served.inner, f"file{number}", b"content of it")
        await names(served)
        served.store.calls.clear()
        return served

    async def test_answers_for_its_names_and_for_others(self, listed, autojump_clock):
        assert (await listed.view.lookup(ROOT_INODE, b"file1")).size_bytes == 13
        with pytest.raises(FileNotFoundError):
            await listed.view.lookup(ROOT_INODE, b"file9")
        assert listed.store.calls == []

    async def test_is_made_anew_for_who_lists_once_more(self, listed, autojump_clock):
        await publish(listed.inner, "new", b"content of it")
        assert b"new" in await names(listed)
        assert listed.store.calls == [("list", "")]

    async def test_is_handed_out_again_to_who_has_looked_at_its_names(self, listed, autojump_clock):
        await listed.view.lookup(ROOT_INODE, b"file1")
        assert len(await names(listed)) == 3
        assert listed.store.calls == []
        await publish(listed.inner, "new", b"content of it")
        await trio.sleep(1.5)
        assert b"new" in await names(listed)

    async def test_is_made_anew_when_many_names_are_asked_for_after_its_time(
        self, listed, autojump_clock
    ):
        await trio.sleep(1.5)
        for _ in range(7):
            await listed.view.lookup(ROOT_INODE, b"file1")
        assert listed.store.calls == [("stat", "file1")] * 7
        await listed.view.lookup(ROOT_INODE, b"file1")
        assert listed.store.calls[7:] == [("list", "")]
        await listed.view.lookup(ROOT_INODE, b"file2")
        assert len(listed.store.calls) == 8

    async def test_is_believed_when_a_file_of_it_is_opened_to_be_written(
        self, listed, autojump_clock
    ):
        flags = CREATE | os.O_APPEND
        await listed.view.create(ROOT_INODE, b"file1", 0o644, flags, os.getpid())
        listed.store.calls.clear()
        await listed.view.lookup(ROOT_INODE, b"file2")
        assert listed.store.calls == []

    async def test_that_changes_all_the_time_ends(self, listed, autojump_clock, monkeypatch):
        """It is not believed afterwards."""
        ask = listed.view._tree.show_folder

        async def change_and_ask(folder):
            await listed.view.remove(ROOT_INODE, f"file{len(lists)}".encode())
            lists.append(folder)
            return await ask(folder)

        for number in range(3, 6):
            await publish(listed.inner, f"file{number}", b"content of it")
        lists = []
        monkeypatch.setattr(listed.view._tree, "show_folder", change_and_ask)
        assert await names(listed) == [b"file5"]
        assert lists == [""] * 5
        monkeypatch.undo()
        listed.store.calls.clear()
        await listed.view.lookup(ROOT_INODE, b"file5")
        assert listed.store.calls == [("stat", "file5")]


CHANGES = {
    "make_folder": lambda view, a, b: view.make_folder(a, b"new", 0o755),
    "create": lambda view, a, b: view.create(a, b"new", 0o644, CREATE),
    "remove": lambda view, a, b: view.remove(a, b"file"),
    "remove_folder": lambda view, a, b: view.remove_folder(a, b"folder"),
    "rename here": lambda view, a, b: view.rename(a, b"file", a, b"new", 0),
    "rename out": lambda view, a, b: view.rename(a, b"file", b, b"new", 0),
    "rename in": lambda view, a, b: view.rename(b, b"other", a, b"new", 0),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_listed_before_a_change_is_not_believed_after_it(served, change):
    a, b = [(await served.view.make_folder(ROOT_INODE, name, 0o755)).inode for name in (b"a", b"b")]
    await served.put(parent=a)
    await served.put(b"other", parent=b)
    await served.view.make_folder(a, b"folder", 0o755)
    for folder in (a, b):
        listed = await names(served, folder)
        await served.view.lookup(folder, listed[0])
    before = [await served.view.attributes(folder) for folder in (a, b)]
    await CHANGES[change](served.view, a, b)
    after = [await served.view.attributes(folder) for folder in (a, b)]
    assert after[0].mtime_ns > before[0].mtime_ns
    assert (after[1].mtime_ns > before[1].mtime_ns) == (change in ("rename out", "rename in"))
    for folder in (a, b):
        found = []
        for name in (b"file", b"other", b"folder", b"new"):
            try:
                await served.view.lookup(folder, name)
            except FileNotFoundError:
                continue
            found.append(name)
        assert await names(served, folder) == sorted(found)
    expected = [{b"file", b"folder"}, {b"other"}]
    if change in ("make_folder", "create", "rename here", "rename in"):
        expected[0].add(b"new")
    if change in ("remove", "rename here", "rename out"):
        expected[0].discard(b"file")
    if change == "remove_folder":
        expected[0].discard(b"folder")
    if change == "rename out":
        expected[1].add(b"new")
    if change == "rename in":
        expected[1].clear()
    assert [set(await names(served, folder)) for folder in (a, b)] == expected


@pytest.mark.parametrize("change", ["remove", "rename"])
async def test_a_file_that_leaves_a_folder_while_it_is_listed_is_not_in_it(
    served, monkeypatch, change
):
    folder = (await served.view.make_folder(ROOT_INODE, b"folder", 0o755)).inode
    await served.write()
    go_on, around = trio.Event(), served.store.around

    async def late(operation, name, call):
        if (operation, name) == ("list", ""):
            await go_on.wait()
        return await around(operation, name, call)

    listed = []

    async def list_folder():
        listed.extend(await names(served))

    monkeypatch.setattr(served.store, "around", late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(list_folder)
        await trio.testing.wait_all_tasks_blocked()
        if change == "remove":
            await served.view.remove(ROOT_INODE, b"file")
        else:
            await served.view.rename(ROOT_INODE, b"file", folder, b"file", 0)
        go_on.set()
    assert listed == [b"folder"]


async def test_a_file_keeps_its_name_though_somebody_looks_for_the_old_one(served, monkeypatch):
    """What is found out meanwhile, the change itself knows already."""
    inode = await served.put()
    rename = served.view._namespace.rename

    async def rename_and_look(*arguments, **options):
        done = await rename(*arguments, **options)
        with pytest.raises(FileNotFoundError):
            await served.view.lookup(ROOT_INODE, b"file")
        early.append((await served.view.lookup(ROOT_INODE, b"new")).inode)
        return done

    early = []
    monkeypatch.setattr(served.view._namespace, "rename", rename_and_look)
    await served.view.rename(ROOT_INODE, b"file", ROOT_INODE, b"new", 0)
    found = await served.view.lookup(ROOT_INODE, b"new")
    assert (found.inode, found.links) == (inode, 1)
    assert (await served.view.attributes(early[0])).links == (early[0] == inode)


# What the kernel forgets


async def test_the_root_is_never_forgotten(served):
    served.view.forget(ROOT_INODE)
    served.view.forget(12345)
    assert await names(served) == []


async def test_an_open_file_is_forgotten_when_it_is_closed(served):
    inode = await served.put()
    opened = await served.view.open(inode, os.O_RDONLY)
    served.view.forget(inode)
    assert await served.view.read(opened.handle, 0, 10) == CONTENT[:10]
    await served.view.close(opened.handle)
    with pytest.raises(KeyError):
        await served.view.attributes(inode)


async def test_a_file_that_is_looked_up_again_is_not_forgotten(served):
    inode = await served.put()
    opened = await served.view.open(inode, os.O_RDONLY)
    served.view.forget(inode)
    assert (await served.view.lookup(ROOT_INODE, b"file")).inode == inode
    await served.view.close(opened.handle)
    assert (await served.view.attributes(inode)).size_bytes == len(CONTENT)


async def test_a_folder_is_kept_for_what_has_moved_into_it_and_no_longer_for_what_has_left(served):
    a, b = [(await served.view.make_folder(ROOT_INODE, name, 0o755)).inode for name in (b"a", b"b")]
    await served.put(parent=a)
    inode = (await served.view.lookup(a, b"file")).inode
    await served.view.rename(a, b"file", b, b"file", 0)
    opened = await served.view.open(inode, os.O_RDWR, os.getpid())
    for folder in (a, b):
        served.view.forget(folder)
    with pytest.raises(KeyError):
        await served.view.attributes(a)
    await served.view.write(opened.handle, 0, b"new")
    await served.view.flush(opened.handle)
    await served.view.close(opened.handle)
    assert await served.content(b"b/file") == b"new" + CONTENT[3:]
    served.view.forget(inode)
    for number in (inode, b):
        with pytest.raises(KeyError):
            await served.view.attributes(number)


async def test_a_folder_that_is_forgotten_goes_when_what_was_in_it_has_left(served):
    a = (await served.view.make_folder(ROOT_INODE, b"a", 0o755)).inode
    await served.put(parent=a)
    async with served.view._inodes.locks.using(a):
        served.view.forget(a)
        await served.view.rename(a, b"file", ROOT_INODE, b"file", 0)
        assert (await served.view.attributes(ROOT_INODE)).inode
    with pytest.raises(KeyError):
        await served.view.attributes(a)


# Modes and times


@pytest.mark.parametrize(
    ("mode", "flags", "may"),
    [
        (0o400, os.O_RDONLY, True),
        (0o400, os.O_WRONLY, False),
        (0o400, os.O_RDWR, False),
        (0o400, os.O_RDONLY | os.O_TRUNC, False),
        (0o200, os.O_RDONLY, False),
        (0o200, os.O_WRONLY, True),
        (0o200, os.O_WRONLY | os.O_TRUNC, True),
        (0o200, os.O_RDWR, False),
        (0o600, os.O_RDWR, True),
        (0o600, os.O_RDONLY | os.O_TRUNC, True),
        (0o177, os.O_WRONLY, False),
    ],
)
async def test_an_owner_may_what_the_mode_says(served, mode, flags, may):
    inode = await served.put()
    await served.view.change(inode, mode=mode)
    if may:
        opened = await served.view.open(inode, flags, os.getpid())
        await served.view.close(opened.handle)
    else:
        with pytest.raises(PermissionError):
            await served.view.open(inode, flags, os.getpid())
    emptied = may and flags & os.O_TRUNC
    assert await served.content() == (b"" if emptied else CONTENT)


class Another(Modeless):
    """Has files of somebody else, which nobody may use."""

    def _bare(self, info):
        return replace(info, mode=0, owner="4321")


async def test_what_is_another_s_the_store_knows(serve):
    served = serve(Another(MemoryStore()))
    await publish(served.inner, "file", b"content")
    inode = (await served.view.lookup(ROOT_INODE, b"file")).inode
    opened = await served.view.open(inode, os.O_RDWR, os.getpid())
    await served.view.write(opened.handle, 0, b"C")
    await served.view.flush(opened.handle)
    assert await served.content() == b"Content"


async def test_a_file_that_only_its_owner_may_write_is_not_read_to_be_opened(served, monkeypatch):
    inode = await served.put(content=b"content")
    served.store.calls.clear()
    opened = await served.view.open(inode, os.O_WRONLY, os.getpid())
    assert not [call for call in served.store.calls if call[0] in ("open", "pread")]
    await served.view.close(opened.handle)


async def test_nothing_is_made_in_a_folder_that_may_not_be_written(served):
    folder = (await served.view.make_folder(ROOT_INODE, b"folder", 0o500)).inode
    with pytest.raises(PermissionError):
        await served.view.create(folder, b"file", 0o644, CREATE)
    assert await names(served, folder) == []


async def test_a_file_that_may_not_be_written_is_cut_by_who_has_it_open_alone(served):
    inode = await served.put()
    opened = await served.view.open(inode, os.O_WRONLY, os.getpid())
    await served.view.change(inode, mode=0o400)
    with pytest.raises(PermissionError):
        await served.view.truncate(inode, None, 10)
    assert (await served.view.truncate(inode, opened.handle, 10)).size_bytes == 10
    await served.view.flush(opened.handle)
    assert await served.content() == CONTENT[:10]


@pytest.mark.parametrize("content", [b"", b"plain", CONTENT])
async def test_a_mode_and_a_time_that_are_given_before_the_end_are_those_of_the_file(
    served, content
):
    handle = await served.write(content=content)
    inode = (await served.view.lookup(ROOT_INODE, b"file")).inode
    await served.view.sync(handle)
    changed = await served.view.change(inode, mode=0o4640, mtime_ns=10**18)
    assert (changed.mode, changed.mtime_ns) == (stat.S_IFREG | 0o640, 10**18)
    await served.view.flush(handle)
    await served.view.close(handle)
    assert await served.view.lookup(ROOT_INODE, b"file") == changed
    info = await served.inner.stat("file")
    assert (info.mode, info.mtime_ns) == (0o640, 10**18)


async def test_a_mode_is_not_set_once_more(served):
    await served.put()
    assert "set_mode" not in {operation for operation, _ in served.store.calls}


@pytest.mark.parametrize("content", [b"plain", CONTENT])
async def test_a_mode_is_shown_while_the_file_is_rewritten(served, content):
    inode = await served.put(content=content)
    opened = await served.view.open(inode, os.O_WRONLY, os.getpid())
    await served.view.write(opened.handle, 0, b"new")
    assert (await served.view.change(inode, mode=0o640)).mode == stat.S_IFREG | 0o640
    assert (await served.view.attributes(inode)).mode == stat.S_IFREG | 0o640
    await served.view.flush(opened.handle)
    assert (await served.inner.stat("file")).mode == 0o640


@pytest.mark.parametrize("change", ["write", "truncate"])
async def test_a_file_is_of_the_time_of_its_last_change(served, change):
    """Not of the one that was given to it before."""
    handle = await served.write()
    inode = (await served.view.lookup(ROOT_INODE, b"file")).inode
    before = time.time_ns()
    await served.view.change(inode, mtime_ns=10**18)
    if change == "write":
        await served.view.write(handle, 0, b"new")
    else:
        await served.view.truncate(inode, handle, 10)
    assert (await served.view.attributes(inode)).mtime_ns >= before
    await served.view.flush(handle)
    assert (await served.inner.stat("file")).mtime_ns >= before


async def test_a_file_that_is_emptied_when_it_is_opened_is_of_that_time(served):
    inode = await served.put()
    before = time.time_ns()
    await served.view.change(inode, mtime_ns=10**18)
    opened = await served.view.open(inode, os.O_WRONLY | os.O_TRUNC, os.getpid())
    assert (await served.view.attributes(inode)).mtime_ns >= before
    await served.view.close(opened.handle)


async def test_a_change_of_a_published_file_is_stored_and_shown(served):
    inode = await served.put()
    await names(served)
    await served.view.lookup(ROOT_INODE, b"file")
    changed = await served.view.change(inode, mode=0o4604)
    assert changed.mode == stat.S_IFREG | 0o604
    assert await served.view.lookup(ROOT_INODE, b"file") == changed
    changed = await served.view.change(inode, mtime_ns=10**18)
    assert (changed.mode, changed.mtime_ns) == (stat.S_IFREG | 0o604, 10**18)
    info = await served.inner.stat("file")
    assert (info.mode, info.mtime_ns) == (0o604, 10**18)


async def test_a_folder_has_the_time_that_it_is_given(served):
    """Though something was made in it since."""
    folder = (await served.view.make_folder(ROOT_INODE, b"folder", 0o755)).inode
    await served.put(parent=folder)
    assert (await served.view.change(folder, mtime_ns=10**18)).mtime_ns == 10**18


async def test_what_has_no_name_in_the_store_is_not_changed_there(served):
    before = await served.view.attributes(ROOT_INODE)
    assert await served.view.change(ROOT_INODE, mode=0o700, mtime_ns=10**18) == before
    inode = await served.put()
    opened = await served.view.open(inode, os.O_RDONLY)
    await served.view.remove(ROOT_INODE, b"file")
    await served.view.change(inode, mode=0o700, mtime_ns=10**18)
    assert await served.view.read(opened.handle, 0, 10) == CONTENT[:10]


async def test_owners_stay_who_they_are(served):
    inode = await served.put()
    for owner in ({"uid": 1001}, {"gid": 1001}, {"uid": 1000, "gid": 1001}):
        with pytest.raises(PermissionError):
            await served.view.change(inode, mode=0o400, **owner)
    assert (await served.view.change(inode, uid=1000, gid=1000)).mode == stat.S_IFREG | 0o600


# A view that only shows


async def test_nothing_is_changed_where_nothing_may_be(serve, served):
    await served.put()
    await served.inner.mkdir("folder")
    shown = serve(served.inner, read_only=True)
    view, inode = shown.view, (await shown.view.lookup(ROOT_INODE, b"file")).inode
    for change in (
        lambda: view.open(inode, os.O_WRONLY),
        lambda: view.open(inode, os.O_RDWR),
        lambda: view.open(inode, os.O_RDONLY | os.O_TRUNC),
        lambda: view.create(ROOT_INODE, b"new", 0o644, CREATE),
        lambda: view.make_folder(ROOT_INODE, b"new", 0o755),
        lambda: view.remove(ROOT_INODE, b"file"),
        lambda: view.remove_folder(ROOT_INODE, b"folder"),
        lambda: view.rename(ROOT_INODE, b"file", ROOT_INODE, b"new", 0),
        lambda: view.truncate(inode, None, 10),
        lambda: view.change(inode, mode=0o400),
    ):
        with refused(errno.EROFS):
            await change()
    assert await names(shown) == [b"file", b"folder"]
    assert await read(shown, inode) == CONTENT


# Removed and replaced while open


@pytest.mark.parametrize("content", [b"plain", CONTENT])
async def test_a_removed_file_is_read_on_by_all_who_have_it_open(served, content):
    inode = await served.put(content=content)
    handles = [(await served.view.open(inode, os.O_RDONLY)).handle for _ in range(2)]
    await served.view.remove(ROOT_INODE, b"file")
    assert (await served.view.attributes(inode)).links == 0
    for handle in handles:
        assert await served.view.read(handle, 0, 1 << 20) == content
        assert served.in_the_making()
        await served.view.close(handle)
    assert not served.in_the_making()


async def test_a_file_that_is_renamed_over_is_read_on_and_goes_then(served):
    await served.put(b"new", b"new")
    inode = await served.put()
    opened = await served.view.open(inode, os.O_RDONLY)
    await served.view.rename(ROOT_INODE, b"new", ROOT_INODE, b"file", 0)
    assert await served.view.read(opened.handle, 0, 1 << 20) == CONTENT
    assert (await served.view.attributes(inode)).links == 0
    assert served.in_the_making()
    await served.view.close(opened.handle)
    assert not served.in_the_making()
    assert await served.content() == b"new"


@pytest.mark.parametrize(("old", "is_open"), [(CONTENT, False), (b"old", False), (b"old", True)])
async def test_nothing_is_left_of_a_file_that_is_renamed_over(served, old, is_open):
    inode = await served.put(content=old)
    await served.put(b"new")
    if is_open:
        opened = await served.view.open(inode, os.O_RDONLY)
    await served.view.rename(ROOT_INODE, b"new", ROOT_INODE, b"file", 0)
    if is_open:
        await served.view.close(opened.handle)
    assert await served.content() == CONTENT
    layout = (await CheckpointTree(served.inner).stat("file")).layout
    parts = [info.name for info in await served.inner.list(".bootseer-parts")]
    assert parts == [f".bootseer-parts/{layout.parts_id}", sizes_of("")]
    assert len(await served.inner.list(sizes_of(""))) == 1


async def test_what_is_written_of_a_file_that_is_renamed_over_is_still_read(served):
    await served.put(b"new")
    inode = await served.put(content=b"old")
    opened = await served.view.open(inode, os.O_RDWR, os.getpid())
    await served.view.write(opened.handle, 0, b"changed")
    await served.view.rename(ROOT_INODE, b"new", ROOT_INODE, b"file", 0)
    assert await served.view.read(opened.handle, 0, 100) == b"changed"
    await served.view.truncate(inode, opened.handle, 4)
    assert await served.view.read(opened.handle, 0, 100) == b"chan"
    await served.view.flush(opened.handle)
    await served.view.close(opened.handle)
    assert await served.content() == CONTENT


@pytest.mark.parametrize("written", [False, True])
async def test_a_removed_file_is_read_on_when_its_folder_moves(served, written):
    """Of what has no name any more, the parts are not in the folder."""
    folder = (await served.view.make_folder(ROOT_INODE, b"folder", 0o755)).inode
    inode = await served.put(parent=folder)
    opened = await served.view.open(inode, os.O_RDWR if written else os.O_RDONLY, os.getpid())
    if written:
        await served.view.write(opened.handle, 0, CONTENT[:1])
    await served.view.read(opened.handle, 0, 1)
    await served.view.remove(folder, b"file")
    await served.view.rename(ROOT_INODE, b"folder", ROOT_INODE, b"new", 0)
    assert await served.view.read(opened.handle, 0, 1 << 20) == CONTENT
    await served.view.close(opened.handle)
    assert not served.in_the_making()


async def test_a_reader_of_a_file_in_the_making_goes_on_when_its_writer_has_closed_it(served):
    handle = await served.write()
    inode = (await served.view.lookup(ROOT_INODE, b"file")).inode
    opened = await served.view.open(inode, os.O_RDONLY)
    await served.view.remove(ROOT_INODE, b"file")
    await served.view.flush(handle)
    await served.view.close(handle)
    assert await served.view.read(opened.handle, 0, 1 << 20) == CONTENT
    await served.view.close(opened.handle)
    assert not served.in_the_making()
    assert await served.content() is None
    assert await served.reads.close() == []


async def test_a_file_is_published_though_somebody_still_reads_it(served):
    handle = await served.write(thread=0)  # nothing is known of the process
    inode = (await served.view.lookup(ROOT_INODE, b"file")).inode
    await served.view.open(inode, os.O_RDONLY)
    await served.view.flush(handle)
    assert await served.content() is None
    await served.view.close(handle)
    assert await served.content() == CONTENT


async def test_a_file_that_is_being_written_moves_with_what_is_in_it(served):
    handle = await served.write()
    await served.view.rename(ROOT_INODE, b"file", ROOT_INODE, b"new", 0)
    assert await served.content(b"new") == CONTENT
    await served.view.rename(ROOT_INODE, b"new", ROOT_INODE, b"new", 0)
    await served.view.write(handle, 0, b"x")
    await served.view.flush(handle)
    assert await served.content(b"new") == b"x" + CONTENT[1:]
    assert await served.content() is None


# Cutting


@pytest.mark.parametrize("size", [0, 1, UNIT, len(CONTENT), len(CONTENT) + 1])
async def test_a_file_that_nobody_has_open_is_cut(served, size):
    inode = await served.put()
    assert (await served.view.truncate(inode, None, size)).size_bytes == size
    assert await served.content() == CONTENT[:size].ljust(size, b"\0")
    assert not served.in_the_making()


async def test_what_was_written_stays_when_it_cannot_be_extended(served):
    inode = await served.put()
    opened = await served.view.open(inode, os.O_RDWR, os.getpid())
    await served.view.write(opened.handle, 0, b"new")
    with pytest.raises(NoSpace):
        await served.view.truncate(inode, opened.handle, 1 << 60)
    await served.view.flush(opened.handle)
    assert await served.content() == b"new" + CONTENT[3:]


@pytest.mark.parametrize("size", [10, 1 << 60])
async def test_a_file_that_cannot_be_cut_is_as_it_was(served, autojump_clock, size):
    inode = await served.put()
    if size == 10:
        served.store.error = Unavailable("no NameNode")
    with pytest.raises(Unavailable):
        await served.view.truncate(inode, None, size)
    served.store.error = None
    assert (await served.view.attributes(inode)).size_bytes == len(CONTENT)
    assert await read(served, inode) == CONTENT
    assert not served.in_the_making()


async def test_pages_are_pushed_again_after_a_file_was_cut(served):
    class Pages:
        def __init__(self):
            self.offsets = set()

        async def store(self, inode, offset, data):
            await trio.lowlevel.checkpoint()
            self.offsets.add(offset)

    inode = await served.put(content=bytes(20 * UNIT))
    await served.view.truncate(inode, None, 10 * UNIT)
    served.view.attach(pages := Pages())
    opened = await served.view.open(inode, os.O_RDONLY)
    await served.view.read(opened.handle, 0, UNIT)
    await trio.testing.wait_all_tasks_blocked()
    assert pages.offsets


@pytest.mark.parametrize("error", [Conflict("replaced"), NotFound("gone")])
async def test_a_file_that_cannot_be_opened_any_more_is_looked_for_again(
    served, monkeypatch, error
):
    inode = await served.put()
    await names(served)
    await publish(served.inner, "new", b"content")

    async def fail(node):
        raise error

    monkeypatch.setattr(served.view._reader, "open", fail)
    with pytest.raises(type(error)):
        await served.view.open(inode, os.O_RDONLY)
    assert (await served.view.lookup(ROOT_INODE, b"new")).size_bytes == 7


# Lengths of files that nobody has opened


@pytest.fixture
async def many(served, serve):
    """A view of another node, of a folder of striped files whose marks it has not seen."""
    for number in range(20):
        await served.put(b"file%02d" % number, CONTENT + bytes(number))
    return serve(served.inner)


async def test_a_listing_with_attributes_of_striped_files_opens_none(many):
    shown = await many.view.entries(ROOT_INODE)
    assert [attributes.size_bytes for _, attributes in shown] == [
        len(CONTENT) + number for number in range(20)
    ]
    for name, attributes in shown:
        assert (await many.view.lookup(ROOT_INODE, name)).inode == attributes.inode
        assert await many.view.extended_names(attributes.inode) == [
            b"user.bootseer.digest",
            b"user.bootseer.layout",
            b"user.bootseer.state",
        ]
        with pytest.raises(OSError, match=os.strerror(errno.ENODATA)):
            await many.view.extended(attributes.inode, b"system.posix_acl_access")
    assert many.store.calls == [("list", ""), ("list", ".bootseer-parts/sizes")]


@pytest.mark.parametrize("listed", [True, False])
async def test_a_file_that_was_only_listed_is_read_whole_and_stays_the_same(many, listed):
    if listed:
        shown = dict(await many.view.entries(ROOT_INODE))[b"file03"]
    else:
        for number in range(20, 10, -1):
            await many.view.lookup(ROOT_INODE, b"file%02d" % (number - 1))
        shown = await many.view.lookup(ROOT_INODE, b"file03")
    many.store.calls.clear()
    assert await read(many, shown.inode) == CONTENT + bytes(3)
    assert many.store.calls.count(("open", "file03")) == 1
    digest = await many.view.extended(shown.inode, b"user.bootseer.digest")
    assert digest.startswith(b"sha256:")
    again = await many.view.lookup(ROOT_INODE, b"file03")
    assert again == shown
    many.store.calls.clear()
    assert await read(many, shown.inode) == CONTENT + bytes(3)
    assert ("open", "file03") not in many.store.calls


@pytest.mark.parametrize("what", [b"digest", b"layout", b"state"])
async def test_how_a_file_that_was_only_listed_is_stored_is_told(many, what):
    shown = dict(await many.view.entries(ROOT_INODE))[b"file03"]
    found = await many.view.extended(shown.inode, b"user.bootseer." + what)
    assert found.partition(b" ")[0].partition(b":")[0] in (b"sha256", b"striped", b"complete")


async def append(served, inode):
    opened = await served.view.open(inode, os.O_WRONLY)
    await served.view.write(opened.handle, len(CONTENT) + 3, b"more")
    await served.view.flush(opened.handle)
    await served.view.close(opened.handle)


CHANGES_OF_ONE_LISTED = {
    "append": (append, CONTENT + bytes(3) + b"more", b"file03"),
    "cut": (lambda s, inode: s.view.truncate(inode, None, 9000), CONTENT[:9000], b"file03"),
    "mode": (lambda s, inode: s.view.change(inode, mode=0o600), CONTENT + bytes(3), b"file03"),
    "time": (
        lambda s, inode: s.view.change(inode, mtime_ns=10**18),
        CONTENT + bytes(3),
        b"file03",
    ),
    "rename": (
        lambda s, _: s.view.rename(ROOT_INODE, b"file03", ROOT_INODE, b"new", 0),
        CONTENT + bytes(3),
        b"new",
    ),
    "replace": (
        lambda s, _: s.view.rename(ROOT_INODE, b"file03", ROOT_INODE, b"file04", 0),
        CONTENT + bytes(3),
        b"file04",
    ),
    "remove": (lambda s, _: s.view.remove(ROOT_INODE, b"file03"), None, b"file03"),
}


@pytest.mark.parametrize("change", CHANGES_OF_ONE_LISTED)
async def test_a_file_that_was_only_listed_is_changed_as_any_other(many, serve, change):
    work, content, name = CHANGES_OF_ONE_LISTED[change]
    inode = dict(await many.view.entries(ROOT_INODE))[b"file03"].inode
    await work(many, inode)
    assert await many.content(name) == content
    other = serve(many.inner)
    shown = dict(await other.view.entries(ROOT_INODE))
    if content is None:
        assert name not in shown
    else:
        assert shown[name].size_bytes == len(content)
    assert other.store.calls == [("list", ""), ("list", ".bootseer-parts/sizes")]
    parts = [name for name in many.inner._entries if name.count("/") == 1 and "sizes" not in name]
    assert len(parts) == len(shown)  # those of what has gone are gone


@pytest.mark.parametrize("is_marked", [True, False])
async def test_a_file_that_was_replaced_since_it_was_listed_is_looked_up_again(
    many, served, is_marked
):
    old = dict(await many.view.entries(ROOT_INODE))[b"file03"]
    await served.put(b"file03", b"another" * 3000)
    if not is_marked:
        await many.inner.delete_tree(".bootseer-parts/sizes")
    with pytest.raises(Conflict):
        await read(many, old.inode)
    new = await many.view.lookup(ROOT_INODE, b"file03")
    assert (new.inode != old.inode) and new.size_bytes == 21000
    assert await read(many, new.inode) == b"another" * 3000


async def test_a_mark_that_lies_does_not_cut_what_is_read(many, served):
    for name in list(many.inner._entries):
        if "/sizes/" in name:
            await many.inner.rename(name, f"{name.rpartition('-')[0]}-5")
    inode = dict(await many.view.entries(ROOT_INODE))[b"file03"].inode
    with pytest.raises(Conflict):
        await read(many, inode)
    shown = await many.view.lookup(ROOT_INODE, b"file03")
    assert shown.size_bytes == len(CONTENT) + 3
    assert await read(many, shown.inode) == CONTENT + bytes(3)


async def test_a_file_of_a_few_bytes_is_looked_up_by_one_call(served):
    await publish(served.inner, "latest", b"1000")
    await publish(served.inner, f".bootseer-parts/{'0' * 32}/0000", b"of one published next")
    shown = await served.view.lookup(ROOT_INODE, b"latest")
    assert served.store.calls == [("stat", "latest")]
    assert await read(served, shown.inode) == b"1000"
    assert "list" not in [operation for operation, _ in served.store.calls]


async def test_a_file_that_may_be_truncated_is_shown_but_not_read(served, autojump_clock):
    await publish(served.inner, "file", b"BSST")
    await publish(served.inner, f".bootseer-parts/{'0' * 32}/0000", b"of it")
    shown = await served.view.lookup(ROOT_INODE, b"file")
    assert shown.size_bytes == 4
    state = await served.view.extended(shown.inode, b"user.bootseer.state")
    assert state.startswith(b"damaged: ")
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with pytest.raises(Corrupt):
            opened = await served.view.open(shown.inode, flags)
            await served.view.write(opened.handle, 4, b"more")

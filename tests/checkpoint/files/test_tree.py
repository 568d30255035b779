"""A tree of checkpoints: whatever step of a change fails, a file is as it was or as it will be."""

import operator
import os
import time
from contextlib import aclosing, asynccontextmanager, suppress
from copy import deepcopy
from itertools import count

import pytest
import trio
import trio.testing

from bootseer.checkpoint.admin.gc import find_orphans, remove_orphans
from bootseer.checkpoint.files import parts as parts_module
from bootseer.checkpoint.files.leftovers import Leftovers
from bootseer.checkpoint.files.namespace import Namespace
from bootseer.checkpoint.files.parts import FROM, parts_of
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.size_marks import SIZES_FOLDER
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher
from bootseer.checkpoint.write import stripe_writer as stripe_writer_module
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.errors import (
    BootseerError,
    Conflict,
    Corrupt,
    Denied,
    NoSpace,
    NotFound,
    Transient,
    Unavailable,
)
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.store.wrappers.retry import RetryStore
from bootseer.testing.fault_store import CHANGES, FlakyStore

UNIT = 4096
OPTIONS = WriteOptions(
    unit_bytes=UNIT, width=3, streams=8, memory_bytes=64 * UNIT, stuck_s=0, recovery_s=0
)
OLD = os.urandom(5 * UNIT + 1)
NEW = os.urandom(4 * UNIT + 7)
NEWER = os.urandom(3 * UNIT)
SMALL = b"an ordinary file"
NAMES = ["f", "a/f", "a/b/f", "c/f"]


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch):
    """Nobody changes anything meanwhile that would have to be waited for."""
    monkeypatch.setattr(parts_module, "_STEP_S", 0)
    monkeypatch.setattr(stripe_writer_module, "_PAUSE_S", 0)


@asynccontextmanager
async def tasks():
    """A nursery whose errors are those of its body."""
    error = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except BootseerError as caught:
            error = caught
    if error is not None:
        raise error


async def write(store, name, content, mode=None):
    async with tasks() as nursery:
        draft = Drafts(CheckpointTree(store), nursery, OPTIONS).begin(name, mode)
        try:
            await draft.write(0, content)
            return await draft.publish()
        except BootseerError:
            await draft.discard()
            raise


async def read(store, name):
    """What somebody reads who has not seen the tree before; None if there is nothing."""
    tree = CheckpointTree(store)
    try:
        entry = await tree.stat(name)
    except NotFound:
        return None
    async with tasks() as nursery:
        file = Fetcher(nursery).open(tree.source(entry))
        try:
            return bytes(await file.read(0, entry.size_bytes))
        finally:
            await file.close()


def parts_in(store):
    """The folders of parts, wherever they are, published or not."""
    below = {name for name in store._entries if name.rpartition("/")[0].endswith(PARTS_FOLDER)}
    return {name for name in below if not name.endswith(f"/{SIZES_FOLDER}")}


async def clean(store):
    """Remove what nobody needs, as `Leftovers` says."""
    tree = CheckpointTree(store)
    for info in await Leftovers(tree).unused(""):
        await store.delete_tree(info.name)
    folders = {""} | {name for name in store._entries if not name.endswith(PARTS_FOLDER)}
    for folder in folders:
        await Leftovers(tree).remove_abandoned(folder, older_than_s=-60)


async def needed(store):
    """The folders of parts that files have."""
    ids = set()

    async def walk(folder):
        for entry in await CheckpointTree(store).list(folder):
            if entry.is_folder:
                await walk(entry.name)
            elif entry.layout is not None:
                ids.add(entry.layout.parts_id)

    await walk("")
    return ids


async def every_failure(before, change, check):
    """Have each operation of a change fail, before and after it is carried out, or be the last.

    No operation after it works if whoever makes the change is killed.

    Args:
        before: fills a new store.
        change: makes the change; it gets a tree that fails.
        check: is given the store as it is then, and whether the change has raised an error.
    """
    failures = 0
    for late, killed in ((False, False), (True, False), (False, True)):
        for nth in range(1, 100):
            store = MemoryStore()
            await before(store)
            fails = operator.ge if killed else operator.eq
            flaky = FlakyStore(store, lambda n, *_, nth=nth, fails=fails: fails(n, nth), late=late)
            try:
                await change(flaky)
            except (Transient, Unavailable):
                failed = True
                failures += 1
            else:
                failed = False
            await check(store, failed)
            await clean(store)
            await check(store, failed)
            kept = {name.rpartition("/")[2] for name in parts_in(store)}
            assert kept == await needed(store), "what is left over is not found"
            if len(flaky.calls) < nth:
                break
        else:
            raise AssertionError("it does not come to an end")
    return failures


# Every step


@pytest.mark.parametrize("old", [None, SMALL, OLD], ids=["new", "over ordinary", "over striped"])
@pytest.mark.parametrize("new", [b"", SMALL, NEW], ids=["empty", "ordinary", "striped"])
@pytest.mark.parametrize("name", ["f", "a/f"])
async def test_a_file_is_published_whole_or_not_at_all(name, old, new):
    async def before(store):
        if old is not None:
            await write(store, name, old)

    async def change(store):
        await write(store, name, new)

    async def check(store, failed):
        try:
            found = await read(store, name)
        except Corrupt:
            # An empty file and parts of no file may have been a manifest, until they are removed.
            assert not new and {n.rpartition("/")[2] for n in parts_in(store)} > await needed(store)
        else:
            assert found == new or (failed and found == old)

    assert await every_failure(before, change, check)


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("over", [None, SMALL, NEW], ids=["free", "ordinary", "striped"])
async def test_a_file_that_is_renamed_is_here_or_there(source, target, over):
    if source == target:
        target += "2"

    async def before(store):
        await write(store, source, OLD)
        if over is not None:
            await write(store, target, over)

    async def change(store):
        tree = CheckpointTree(store)
        entry = await Namespace(tree).rename(
            await tree.stat(source), target, over=await tree.find(target)
        )
        assert entry.name == target

    async def check(store, failed):
        here, there = await read(store, source), await read(store, target)
        assert (here, there) == (None, OLD) or (failed and (here, there) == (OLD, over))

    assert await every_failure(before, change, check)


@pytest.mark.parametrize("content", [SMALL, OLD], ids=["ordinary", "striped"])
async def test_a_file_that_is_removed_is_there_or_gone(content):
    async def before(store):
        await write(store, "a/f", content)

    async def change(store):
        tree = CheckpointTree(store)
        await Namespace(tree).remove(await tree.stat("a/f"))

    async def check(store, failed):
        found = await read(store, "a/f")
        assert found is None or (failed and found == content)

    assert await every_failure(before, change, check)


@pytest.mark.parametrize("content", [SMALL, OLD], ids=["ordinary", "striped"])
async def test_a_file_set_aside_can_be_read_until_it_is_dropped(content):
    async def before(store):
        await write(store, "a/f", content)

    async def change(store):
        tree = CheckpointTree(store)
        entry = await RetiredParts(tree).set_aside(await tree.stat("a/f"))
        source = tree.source(entry)
        try:
            assert b"".join([await source.fetch(n) for n in range(source.pieces)]) == content
        finally:
            await source.close()
        await RetiredParts(tree).remove_kept(entry)

    async def check(store, failed):
        found = await read(store, "a/f")
        assert found is None or (failed and found == content)

    assert await every_failure(before, change, check)


# Moving


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
async def test_a_move_that_was_cut_off_can_be_made_again_or_elsewhere(source, target):
    if source == target:
        target += "2"
    for onwards in {target, "x/y/f"}:
        for late in (False, True):
            for nth in range(1, 20):
                store = MemoryStore()
                await write(store, source, OLD)
                flaky = FlakyStore(store, lambda count, *_, nth=nth: count == nth, late=late)
                tree = CheckpointTree(flaky)
                try:
                    await Namespace(tree).rename(await tree.stat(source), target)
                    break
                except Transient:
                    pass
                tree = CheckpointTree(store)
                now = source if await tree.find(source) is not None else target
                assert await read(store, now) == OLD
                if now != onwards:
                    await Namespace(tree).rename(await tree.stat(now), onwards)
                assert await read(store, onwards) == OLD
                assert await tree.find(source) is None
                for folder in {source.rpartition("/")[0], target.rpartition("/")[0]}:
                    await Leftovers(tree).remove_abandoned(folder, -1)
                assert await read(store, onwards) == OLD
                await Namespace(tree).remove(await tree.stat(onwards))
                await remove_orphans(tree, "", await find_orphans(tree, "", -1))
                assert not parts_in(store)


async def test_a_file_moves_on_and_on():
    store = MemoryStore()
    await write(store, "f", OLD)
    tree = CheckpointTree(store)
    entry = await tree.stat("f")
    for name in ["a/f", "a/b/f", "f", "c/d/e/f", "a/f", "a/g", "c/f"]:
        entry = await Namespace(tree).rename(entry, name)
        assert await read(store, name) == OLD
        await Namespace(tree).set_mode(entry, 0o600)
    await Namespace(tree).remove(await tree.stat("c/f"))
    assert not parts_in(store)


async def test_who_reads_goes_on_while_the_file_is_moved():
    store = MemoryStore()
    await write(store, "a/b/f", OLD)
    tree = CheckpointTree(store)
    entry = await tree.stat("a/b/f")
    source = tree.source(entry)
    first = await source.fetch(0)
    moved = await Namespace(tree).rename(entry, "f")
    # Parts that it has not opened yet are to be found at the new place only.
    source.move(moved.name)
    assert first + b"".join([await source.fetch(n) for n in range(1, source.pieces)]) == OLD
    await source.close()
    # Somebody else, who has not heard of it, learns that the file is not there any more.
    stale = tree.source(entry)
    with pytest.raises(Conflict, match="open it again"):
        await stale.fetch(0)
    await stale.close()


async def test_folders_move_with_what_is_in_them():
    store = MemoryStore()
    await write(store, "a/b/f", OLD)
    tree = CheckpointTree(store)
    await Namespace(tree).rename(await tree.stat("a"), "new")
    assert await read(store, "new/b/f") == OLD
    await Namespace(tree).remove_tree("new")
    assert not parts_in(store)


# What is done is said to be done


@pytest.mark.parametrize("late", [False, True])
async def test_what_is_published_is_no_error_because_of_what_it_replaces(late):
    store = MemoryStore()
    for content in (SMALL, NEW):
        await write(store, "f", OLD)
        flaky = FlakyStore(store, lambda _, operation, __: operation == "delete_tree", late=late)
        assert (await write(flaky, "f", content)).size_bytes == len(content)
        assert await read(store, "f") == content
    await write(store, "f", OLD)
    tree = CheckpointTree(flaky)
    await Namespace(tree).remove(await tree.stat("f"))
    assert await tree.find("f") is None
    await clean(store)
    assert not parts_in(store)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", ["rename", "create", "write", "commit"])
@pytest.mark.parametrize("old", [None, OLD], ids=["new", "over striped"])
async def test_what_could_not_be_named_is_named_when_it_is_tried_again(old, step, late):
    store = MemoryStore()
    if old is not None:
        await write(store, "f", old)
    failing = [step]
    flaky = FlakyStore(store, lambda _, operation, name: operation in failing, late=late)
    async with trio.open_nursery() as nursery:
        draft = Drafts(CheckpointTree(flaky), nursery, OPTIONS).begin("f", None)
        await draft.write(0, NEW)
        with pytest.raises(Transient):
            await draft.publish()
        assert await read(store, "f") == (NEW if late and step == "commit" else old)
        failing.clear()
        await draft.publish()
    assert await read(store, "f") == NEW


async def test_a_copy_of_a_manifest_is_replaced_without_its_parts():
    store = MemoryStore()
    await write(store, "f", OLD)
    await publish(store, "copy", await read_all(store, "f", 1 << 20))
    tree = CheckpointTree(store)
    await Namespace(tree).rename(await tree.stat("f"), "copy", over=await tree.stat("copy"))
    assert await read(store, "copy") == OLD


# Who may read


@pytest.mark.parametrize("content", [SMALL, OLD], ids=["ordinary", "striped"])
async def test_who_may_read_a_file_may_read_its_parts(content):
    store = MemoryStore()
    await write(store, "f", content, mode=0o600)
    tree = CheckpointTree(store)
    for mode in (0o644, 0o640, 0o600):
        await Namespace(tree).set_mode(await tree.stat("f"), mode)
        for name, entry in store._entries.items():
            if entry.content is not None:
                assert entry.mode == mode, name
            elif name in parts_in(store):
                assert entry.mode == {0o644: 0o755, 0o640: 0o750, 0o600: 0o700}[mode], name
    assert await read(store, "f") == content


# Two who write


@pytest.mark.parametrize("contents", [(OLD, NEW), (NEW, SMALL), (b"", NEW)])
async def test_the_last_of_two_writers_wins(contents):
    store = MemoryStore()
    await write(store, "f", os.urandom(3 * UNIT))
    async with trio.open_nursery() as nursery:
        drafts = Drafts(CheckpointTree(store), nursery, OPTIONS)
        others = Drafts(CheckpointTree(store), nursery, OPTIONS)
        first, second = drafts.begin("f", None), others.begin("f", None)
        await first.write(0, contents[0])
        await second.write(0, contents[1])
        await first.publish()
        assert await read(store, "f") == contents[0]
        await second.publish()
    assert await read(store, "f") == contents[1]
    assert {name.rpartition("/")[2] for name in parts_in(store)} == await needed(store)


async def test_writers_that_publish_at_once_leave_one_file():
    for _ in range(20):
        store = MemoryStore()
        contents = [os.urandom(n * UNIT // 2) for n in range(1, 9)]
        async with trio.open_nursery() as nursery:
            for content in contents:
                nursery.start_soon(write, store, "f", content)
        assert await read(store, "f") in contents
        await clean(store)
        assert {name.rpartition("/")[2] for name in parts_in(store)} == await needed(store)
        assert await read(store, "f") in contents


# What is left of manifests


async def test_a_manifest_cut_anywhere_is_no_content():
    store = MemoryStore()
    await write(store, "a/f", OLD)
    await write(store, "a/small", b"1000")
    data = await read_all(store, "a/f", 1 << 20)
    for length in range(len(data)):
        await publish(store, "a/f", data[:length])
        with pytest.raises(Corrupt, match="a/f"):
            await read(store, "a/f")
        if length <= 8 or length % 4096 == 1847:
            (entry,) = [e for e in await CheckpointTree(store).list("a") if e.name == "a/f"]
            assert (entry.problem is None) == (length == 8), "that many say what they are"
            assert await read(store, "a/small") == b"1000"
    await publish(store, "a/f", data)
    assert await read(store, "a/f") == OLD


async def test_a_manifest_with_a_byte_changed_is_no_content():
    store = MemoryStore()
    await write(store, "f", OLD)
    data = await read_all(store, "f", 1 << 20)
    for at in range(8, len(data), 7):
        await publish(store, "f", data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(Corrupt, match="f"):
            await read(store, "f")
        with pytest.raises(Corrupt, match="cannot be told"):
            await Leftovers(CheckpointTree(store)).unused("")


@pytest.mark.parametrize("content", [b"1000", b"step_9\n", b"B", b"BS", b""])
async def test_small_files_are_what_they_are(content):
    """Also while there are parts of no file, as between two steps of a writer."""
    store = MemoryStore()
    await write(store, "a/latest", content)
    assert await read(store, "a/latest") == content
    await write(store, "a/f", OLD)
    assert await read(store, "a/latest") == content
    await store.delete("a/f")
    if b"BSSTRIPE".startswith(content):
        with pytest.raises(Corrupt, match="ckpt gc"):
            await read(store, "a/latest")
    else:
        assert await read(store, "a/latest") == content
    await clean(store)
    assert not parts_in(store)
    assert await read(store, "a/latest") == content


async def test_what_looks_like_a_manifest_by_its_length_alone_is_content():
    store = MemoryStore()
    content = os.urandom(1847)
    await write(store, "f", content)
    assert await read(store, "f") == content
    await publish(store, "g", b"BSSTRIPE" + content)
    with pytest.raises(Corrupt, match="damaged manifest"):
        await read(store, "g")


@pytest.mark.parametrize("step", ["..", "../..", "../../x", "a\x01b", "x" * 2000])
async def test_a_link_that_leads_out_of_the_tree_reaches_nothing(step, autojump_clock):
    store = MemoryStore()
    await write(store, "a/f", OLD)
    entry = await CheckpointTree(store).stat("a/f")
    for folder in ("", "a"):
        await publish(store, f"{parts_of(folder)}/{FROM}1", step.encode())
    assert await read(store, "a/f") == OLD
    await publish(store, "g", entry.layout.encode())
    with pytest.raises((Corrupt, Conflict)):
        await read(store, "g")
    tree = CheckpointTree(store)
    await Namespace(tree).remove(await tree.stat("g"))
    assert await read(store, "a/f") == OLD
    await Namespace(tree).remove(await tree.stat("a/f"))
    await remove_orphans(tree, "", await find_orphans(tree, "", -1))
    assert not parts_in(store)


# Folders


async def test_parts_are_not_shown_and_folders_with_parts_in_the_making_stay():
    store = MemoryStore()
    await write(store, "a/f", OLD)
    tree = CheckpointTree(store)
    assert [e.name for e in await tree.list("a")] == ["a/f"]
    with pytest.raises(NotFound):
        await tree.stat(f"a/{PARTS_FOLDER}")
    with pytest.raises(NotFound):
        await Namespace(tree).rename(await tree.stat("a/f"), f"{PARTS_FOLDER}/x")
    with pytest.raises(Conflict, match="not empty"):
        await Namespace(tree).remove_folder("a")
    await Namespace(tree).remove(await tree.stat("a/f"))
    await publish(store, f"a/{PARTS_FOLDER}/making-{'0' * 32}/0000", b"another's")
    assert await tree.list("a") == []
    with pytest.raises(Conflict):
        await Namespace(tree).remove_folder("a")
    assert await Leftovers(tree).remove_abandoned("a") == 0
    assert await Leftovers(tree).remove_abandoned("a", older_than_s=-60) == 1
    await Namespace(tree).remove_folder("a")
    assert await tree.find("a") is None


async def test_parts_of_a_file_that_is_published_meanwhile_are_in_use():
    store = MemoryStore()
    await write(store, "a/f", OLD)
    data = await read_all(store, "a/f", 1 << 20)
    await store.delete("a/f")

    class Busy(FlakyStore):
        """Another publishes after the first look at the folder."""

        async def around(self, operation, name, call):
            found = await super().around(operation, name, call)
            if operation == "list":
                await publish(store, "a/f", data)
            return found

    assert await Leftovers(CheckpointTree(Busy(store, lambda *_: False))).unused("a") == []


def test_these_tests_know_all_changes():
    assert {"create", "commit", "rename", "delete", "delete_tree", "grow", "finish"} <= CHANGES


CHANGES_OF_A_FOLDER = {
    "publish": lambda store: write(store, "a/f", NEW),
    "replace": lambda store: write(store, "a/g", NEW),
    "empty": lambda store: write(store, "a/g", b""),
    "remove": lambda store: on(store, "a/g", lambda tree, entry: Namespace(tree).remove(entry)),
    "put aside": lambda store: on(
        store, "a/g", lambda tree, entry: RetiredParts(tree).set_aside(entry)
    ),
    "rename": lambda store: on(
        store, "a/g", lambda tree, entry: Namespace(tree).rename(entry, "b/g")
    ),
}


async def on(store, name, change):
    tree = CheckpointTree(store)
    await change(tree, await tree.stat(name))


@pytest.mark.parametrize("change", CHANGES_OF_A_FOLDER.values(), ids=CHANGES_OF_A_FOLDER)
async def test_an_empty_file_is_none_that_is_damaged_while_others_change(
    change, autojump_clock, monkeypatch
):
    """Parts that are nobody's for a moment are no sign of a damaged manifest."""
    monkeypatch.setattr(parts_module, "_STEP_S", 1)
    store = MemoryStore()
    await publish(store, "a/empty", b"")
    await write(store, "a/g", OLD)
    other = CheckpointTree(store)
    found = []

    class Watched(WrappedStore):
        async def around(self, operation, name, call):
            async def look():
                found.append((await other.stat("a/empty")).problem)

            looks.start_soon(look)
            await trio.testing.wait_all_tasks_blocked()
            return await call()

    async with trio.open_nursery() as looks:
        await change(Watched(store))
    assert found and set(found) == {None}


async def test_who_makes_a_change_does_not_wait_for_it(autojump_clock, monkeypatch):
    monkeypatch.setattr(parts_module, "_STEP_S", 1)
    inner = MemoryStore()
    await publish(inner, "a/empty", b"")
    await write(inner, "a/g", OLD)
    trees = []

    class Watched(WrappedStore):
        async def around(self, operation, name, call):
            if trees and operation in CHANGES:
                tree = trees.pop()
                assert (await tree.stat("a/empty")).problem is None
                trees.append(tree)
            return await call()

    trees.append(CheckpointTree(Watched(inner)))
    tree = trees[0]
    began = trio.current_time()
    await Namespace(tree).remove(await tree.stat("a/g"))
    assert trio.current_time() == began


async def test_what_was_replaced_between_two_questions_is_not_taken_for_another_kind():
    """Opened, it was longer or shorter than the store had said, and so not what that was."""
    store = MemoryStore()
    await write(store, "a/f", NEW)
    stale = [await store.stat("a/f")]
    await publish(store, "a/f", SMALL)

    class Late(WrappedStore):
        async def around(self, operation, name, call):
            return stale.pop() if operation == "stat" and stale else await call()

    entry = await CheckpointTree(Late(store)).stat("a/f")
    assert (entry.layout, entry.size_bytes) == (None, len(SMALL))


async def test_a_listing_that_fails_has_the_stores_error(autojump_clock):
    """Not a group of the errors of all that it looked at."""
    store = MemoryStore()
    for name in ("a/f", "a/g"):
        await write(store, name, OLD)

    class Away(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "pread":
                await trio.sleep(1)
                raise Unavailable(name)
            return await call()

    with pytest.raises(Unavailable):
        await CheckpointTree(Away(store)).list("a")


# Two at once


class Before(WrappedStore):
    """Has somebody else do something just before one operation, or just after."""

    def __init__(self, inner, operation, name, other, *, late=False):
        super().__init__(inner)
        self.at = (operation, name)
        self.other = other
        self.late = late

    async def around(self, operation, name, call):
        if (operation, name) != self.at:
            return await call()
        self.at = None
        if self.late:
            await call()
        await self.other()
        if self.late:
            raise Transient("nobody knows whether it was done")
        return await call()


class Flaky(WrappedStore):
    """Fails once, as soon as a file has its new name."""

    def __init__(self, inner, operation, *, late):
        super().__init__(inner)
        self.operation = operation
        self.late = late

    async def around(self, operation, name, call):
        if operation != self.operation or not any(n.endswith("b/f") for n in self._inner._entries):
            return await call()
        self.operation = ""
        if self.late:
            await call()
        raise Transient(name)


@pytest.mark.parametrize("new", ["a/g", "b/f", "b/g"])
@pytest.mark.parametrize("back", [False, True])
async def test_who_replaces_a_file_leaves_it_alone_under_its_new_name(new, back):
    store = MemoryStore()
    await write(store, "a/f", OLD)

    async def rename():
        tree = CheckpointTree(store)
        entry = await Namespace(tree).rename(await tree.stat("a/f"), new)
        if back:
            await Namespace(tree).rename(entry, "a/h")

    await write(Before(store, "create", "a/f", rename), "a/f", NEW)
    assert await read(store, "a/f") == NEW
    assert await read(store, "a/h" if back else new) == OLD


@pytest.mark.parametrize("new", ["a/g", "b/f", "b/g"])
async def test_who_removes_a_file_leaves_it_alone_under_its_new_name(new):
    store = MemoryStore()
    await write(store, "a/f", OLD)

    async def rename():
        tree = CheckpointTree(store)
        await Namespace(tree).rename(await tree.stat("a/f"), new)
        await write(store, "a/f", NEW)

    tree = CheckpointTree(Before(store, "delete", "a/f", rename))
    await Namespace(tree).remove(await tree.stat("a/f"))
    assert await read(store, "a/f") is None
    assert await read(store, new) == OLD
    await remove_orphans(tree, "", await find_orphans(tree, "", -1))
    assert await read(store, new) == OLD


@pytest.mark.parametrize("new", ["a/g", "b/f"])
@pytest.mark.parametrize("step", [("rename", "a/f"), ("stat", "a/f")])
async def test_what_is_published_while_its_name_is_moved_is_not_lost(new, step):
    store = MemoryStore()
    await write(store, "a/f", OLD)
    tree = CheckpointTree(store)
    entry = await tree.stat("a/f")
    mover = CheckpointTree(Before(store, *step, lambda: write(store, "a/f", NEW)))
    with suppress(Conflict):
        await Namespace(mover).rename(entry, new)
    found = [await read(store, name) for name in ("a/f", new)]
    assert found in ([NEW, None], [None, NEW], [NEW, OLD])


async def test_what_was_seen_and_replaced_is_not_published_again_without_its_parts(autojump_clock):
    """Its parts may have gone with it before an answer came."""
    store = MemoryStore()
    other = Before(store, "commit", "f", lambda: write(store, "f", OLD), late=True)
    async with trio.open_nursery() as nursery:
        options = WriteOptions(unit_bytes=UNIT, width=2, streams=2, memory_bytes=8 * UNIT)
        draft = Drafts(CheckpointTree(other), nursery, options).begin("f", None)
        await draft.write(0, NEW)
        with pytest.raises(Transient):
            await draft.publish()
        with suppress(Conflict, NotFound):
            await draft.publish()
    assert await read(store, "f") in (OLD, NEW)


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_was_moved_before_it_is_written_once_more_is_one_file(at_once, autojump_clock):
    """Who removes one of two of the same parts would take those of the other."""
    store = MemoryStore()

    async def rename():
        other = CheckpointTree(store)
        await Namespace(other).rename(await other.stat("f"), "g")

    doubtful = Before(store, "commit", "f", rename, late=True)
    tree = CheckpointTree(RetryStore(doubtful) if at_once else doubtful)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, OPTIONS).begin("f", None)
        draft.mtime_ns = 10**18
        await draft.write(0, NEW)
        if not at_once:
            with pytest.raises(Transient):
                await draft.publish()
        assert (await draft.publish()).size_bytes == len(NEW)
    assert (await read(store, "f"), await read(store, "g")) == (None, NEW)


@pytest.mark.parametrize("error", [Denied("another user's"), NoSpace("no names left")])
@pytest.mark.parametrize("new", ["a/g", "b/f"])
async def test_a_file_whose_parts_cannot_be_marked_is_renamed(error, new):
    """Who may write to a folder may rename what is in it, whoever's it is."""

    class Unmarkable(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "mkdir" and PARTS_FOLDER in name:
                raise error.again()
            return await call()

    store = MemoryStore()
    await write(store, "a/f", OLD)
    tree = CheckpointTree(Unmarkable(store))
    await Namespace(tree).rename(await tree.stat("a/f"), new)
    assert (await read(store, "a/f"), await read(store, new)) == (None, OLD)


@pytest.mark.parametrize("content", [NEW, SMALL, b""])
@pytest.mark.parametrize("other", [OLD, SMALL[::-1], b""])
async def test_what_is_published_is_known_though_it_is_replaced_at_once(content, other):
    """Who goes on to write the file would mix the two."""
    inner = MemoryStore()
    looks = []

    class Replaced(WrappedStore):
        async def around(self, operation, name, call):
            if (operation, name) == ("stat", "f"):
                looks.append(name)
                if len(looks) == 2:
                    await write(inner, "f", other)
            return await call()

    entry = await write(Replaced(inner), "f", content)
    assert entry.size_bytes == len(content)
    now = await CheckpointTree(inner).stat("f")
    assert now.size_bytes == len(other)
    if content != other:
        assert (entry.layout, entry.info.version) != (now.layout, now.info.version)


@pytest.mark.parametrize("mark", ["", "/named-1"], ids=["gone", "there"])
async def test_a_file_moves_to_where_a_late_mark_was_made(mark):
    """Somebody else was faster than its maker, who has not removed it yet, or has."""
    store = MemoryStore()
    await write(store, "a/f", OLD)
    (parts,) = parts_in(store)
    tree = CheckpointTree(store)
    entry = await Namespace(tree).rename(await tree.stat("a/f"), "b/f")
    await store.mkdir(parts + mark)
    await Namespace(tree).rename(entry, "a/f")
    assert await read(store, "a/f") == OLD
    await store.delete_tree("b")
    assert await read(store, "a/f") == OLD
    assert not mark or parts + mark in store._entries


async def test_what_is_in_the_way_of_one_file_is_in_the_way_of_its_link_alone():
    store = MemoryStore()
    await write(store, "a/f", OLD)
    half = CheckpointTree(Flaky(store, "rename", late=False))
    with pytest.raises(Transient):
        await Namespace(half).rename(await half.stat("a/f"), "b/f")
    await publish(store, f"{parts_of('c')}/{FROM}1", b"../a")

    class Busy(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "rename" and name.startswith("a/"):
                raise Conflict(name)
            return await call()

    for now, left in ((Busy(store), 1), (store, 0)):
        tree = CheckpointTree(now)
        await remove_orphans(tree, "", await find_orphans(tree, "", -1))
        assert await read(store, "b/f") == OLD
        assert sum(f"/{FROM}" in name for name in store._entries) == left


async def test_a_folder_is_not_removed_with_the_parts_of_a_file_that_has_moved():
    store = MemoryStore()
    await write(store, "a/f", OLD)
    await write(store, "a/g", OLD)
    half = CheckpointTree(Flaky(store, "rename", late=False))
    with pytest.raises(Transient):
        await Namespace(half).rename(await half.stat("a/f"), "b/f")
    tree = CheckpointTree(store)
    with pytest.raises(Conflict, match="ckpt gc"):
        await Namespace(tree).remove_tree("a")
    assert (await read(store, "b/f"), await read(store, "a/g")) == (OLD, OLD)
    await remove_orphans(tree, "", await find_orphans(tree, "", -1))
    damaged = (await read_all(store, "a/g", 1 << 20))[:-1] + b"x"  # which goes, too
    await publish(store, "a/g", damaged)
    await Namespace(tree).remove_tree("a")
    assert (await read(store, "b/f"), await tree.find("a")) == (OLD, None)


async def test_a_folder_stays_while_a_file_is_moved_into_it():
    store = MemoryStore()
    await write(store, "a/f", OLD)
    await store.mkdir("b")

    async def remove():
        with pytest.raises(Conflict):
            await Namespace(CheckpointTree(store)).remove_folder("b")

    mover = CheckpointTree(Before(store, "rename", "a/f", remove))
    await Namespace(mover).rename(await mover.stat("a/f"), "b/f")
    assert await read(store, "b/f") == OLD


async def test_a_folder_goes_into_which_a_file_has_not_been_moved():
    store = MemoryStore()
    await publish(store, link := f"{parts_of('b')}/{FROM}1", b"../a")
    await store.set_mtime(link, time.time_ns() - 2 * 3600 * 10**9)
    await Namespace(CheckpointTree(store)).remove_folder("b")
    assert not store._entries


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("operation", ["rename", "list"])
async def test_what_was_moved_out_of_a_folder_is_read_when_that_moves_too(operation, late):
    """Its parts may be there still: the move has failed half-way."""
    inner = MemoryStore()
    await write(inner, "a/f", OLD)
    tree = CheckpointTree(Flaky(inner, operation, late=late))
    names = Namespace(tree)
    with suppress(Transient):
        await names.rename(await tree.stat("a/f"), "b/f")
    name = "b/f" if await tree.find("b/f") else "c/f"
    await names.rename(await tree.stat("a"), "c")
    assert await read(inner, name) == OLD


async def test_a_file_whose_parts_have_gone_is_not_published_by_a_second_attempt():
    """The first has failed just when it was to take the name away again."""
    inner = MemoryStore()
    fails = []

    class Renamed(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "commit" and not fails:
                fails.append("stat")
                await inner.rename("a", "b")
            elif [operation] == fails and name == "a/f":
                fails[0] = "never"
                raise Transient(name)
            return await call()

    async with tasks() as nursery:
        draft = Drafts(CheckpointTree(Renamed(inner)), nursery, OPTIONS).begin("a/f", None)
        await draft.write(0, NEW)
        with pytest.raises(Transient):
            await draft.publish()
        assert await inner.stat("a/f")
        with pytest.raises(Conflict, match="is missing"):
            await draft.publish()
    assert await read(inner, "a/f") is None


class Paced(WrappedStore):
    """Stops before a step until it may go on."""

    def __init__(self, inner, steps):
        super().__init__(inner)
        self.steps = steps
        self.stopped, self.on = trio.Event(), trio.Event()

    async def around(self, operation, name, call):
        if not self.steps:
            self.stopped.set()
            await self.on.wait()
        self.steps -= 1
        return await call()

    async def run(self, work):
        with suppress(BootseerError):
            await work(CheckpointTree(self))
        self.stopped.set()


async def interleaved(store, works, steps):
    """Do two things: steps of the first, of the second, the rest of either; tells who stopped."""
    ways = [Paced(store, number) for number in steps]
    async with trio.open_nursery() as nursery:
        for way, work in zip(ways, works, strict=True):
            nursery.start_soon(way.run, work)
            await way.stopped.wait()
        stopped = [way.steps == 0 for way in ways]
        for way in ways:
            way.on.set()
            await trio.testing.wait_all_tasks_blocked()
    return stopped


async def in_every_order(before, works):
    """Do two things, each step of one between each two of the other; yields the stores after it."""
    for first in count():
        for second in count():
            store = deepcopy(before)
            stopped = await interleaved(store, works, (first, second))
            yield store, (first, second)
            if not stopped[1]:
                break
        if not stopped[0]:
            break
    assert first >= 2


@pytest.mark.parametrize("over", [OLD, SMALL])
@pytest.mark.parametrize("target", ["g", "d/e/h"])
@pytest.mark.parametrize("order", [1, -1])
async def test_two_who_move_files_onto_a_name_and_away_from_it(over, target, order):
    before = MemoryStore()
    await write(before, "d/f", NEW)
    await write(before, "d/e/g", over)
    new, old = [await CheckpointTree(before).stat(name) for name in ("d/f", "d/e/g")]

    async def onto(tree):
        await Namespace(tree).rename(new, "d/e/g", over=old)

    async def away(tree):
        await Namespace(tree).rename(old, target)

    async with aclosing(in_every_order(before, [onto, away][::order])) as outcomes:
        async for store, steps in outcomes:
            found = [await read(store, name) for name in ("d/f", "d/e/g", target)]
            assert found.count(NEW) == 1, (steps, found)
            assert set(found) <= {NEW, over, None}


@pytest.mark.parametrize("old", [SMALL, OLD])
@pytest.mark.parametrize("target", ["d/g", "e/g"])
@pytest.mark.parametrize("order", [1, -1])
async def test_who_moves_a_file_and_who_replaces_it_twice(old, target, order):
    """What is moved may be the first of the two, of which the mover knows nothing."""
    before = MemoryStore()
    await write(before, "d/f", old)
    entry = await CheckpointTree(before).stat("d/f")

    async def away(tree):
        await Namespace(tree).rename(entry, target)

    async def twice(tree):
        async with tasks() as nursery:
            for content in (NEW, NEWER):
                draft = Drafts(tree, nursery, OPTIONS).begin("d/f", None)
                await draft.write(0, content)
                await draft.publish()

    async with aclosing(in_every_order(before, [away, twice][::order])) as outcomes:
        async for store, steps in outcomes:
            found = [await read(store, name) for name in ("d/f", target)]
            assert set(found) <= {old, NEW, NEWER, None}, (steps, found)
            assert set(found) != {None}, steps


@pytest.mark.parametrize("other", [False, True])
async def test_what_was_moved_into_a_folder_is_read_when_that_moves_too(other):
    """Its parts may not be there yet, and it is not as far from them as before."""
    inner = MemoryStore()
    await write(inner, "a/f", OLD)
    tree = CheckpointTree(Flaky(inner, "rename", late=False))
    names = Namespace(tree)
    with pytest.raises(Transient):
        await names.rename(await tree.stat("a/f"), "b/f")
    mover = Namespace(CheckpointTree(inner)) if other else names
    await mover.rename(await CheckpointTree(inner).stat("b"), "x/y/b")
    if not other:  # It knows of the move, and has completed it before.
        await inner.delete_tree("a")
    assert await read(inner, "x/y/b/f") == OLD


async def test_a_link_is_followed_in_a_part_of_the_tree_and_when_that_has_moved():
    inner = MemoryStore()
    await write(inner, "top/a/f", OLD)
    tree = CheckpointTree(Flaky(inner, "rename", late=False))
    with pytest.raises(Transient):
        await Namespace(tree).rename(await tree.stat("top/a/f"), "top/b/f")
    await inner.rename("top", "x/y/top")
    assert await read(inner, "x/y/top/b/f") == OLD

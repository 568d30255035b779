"""What a tree shows and remembers, and what it leaves of its files when others are at them, too."""

import os
import time
from contextlib import suppress

import pytest
import trio
from bootseer_dev.material.checkpoints import read_file

from bootseer.checkpoint.files import entries as entries_module
from bootseer.checkpoint.files import parts as parts_module
from bootseer.checkpoint.files import tree as tree_module
from bootseer.checkpoint.files.leftovers import Leftovers
from bootseer.checkpoint.files.namespace import Namespace
from bootseer.checkpoint.files.parts import FROM, MAKING, parts_folder, parts_of
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.size_marks import SIZES_FOLDER
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.errors import Conflict, Corrupt, NotFound, Transient
from bootseer.store.api.base import FolderListing, publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore

UNIT = 4096
OPTIONS = WriteOptions(
    unit_bytes=UNIT, width=3, streams=8, memory_bytes=64 * UNIT, stuck_s=0, recovery_s=0
)
OLD = os.urandom(5 * UNIT + 1)
NEW = os.urandom(4 * UNIT + 7)
SMALL = b"an ordinary file"
DAY_NS = 86400 * 10**9


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch):
    """Nobody changes anything meanwhile that would have to be waited for."""
    monkeypatch.setattr(parts_module, "_STEP_S", 0)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def put(store, nursery):
    """Write a file of a store: the test's own, or another."""

    async def put(name, content, into=None):
        draft = Drafts(CheckpointTree(into or store), nursery, OPTIONS).begin(name, None)
        await draft.write(0, content)
        return await draft.publish()

    return put


def parts_in(store):
    """What is in the folders of parts, wherever they are."""
    below = {name for name in store._entries if name.rpartition("/")[0].endswith(PARTS_FOLDER)}
    return {name for name in below if not name.endswith(f"/{SIZES_FOLDER}")}


class At(WrappedStore):
    """Has something done once, before or after an operation with a name; it may raise an error."""

    def __init__(self, inner, operation, name, do, *, nth=1, after=False):
        super().__init__(inner)
        self.at = (operation, name)
        self.do = do
        self.left = nth
        self.after = after

    async def around(self, operation, name, call):
        is_now = (operation, name) == self.at
        self.left -= is_now
        is_now = is_now and self.left == 0
        if is_now and not self.after:
            await self.do()
        done = await call()
        if is_now and self.after:
            await self.do()
        return done


async def fail():
    await trio.lowlevel.checkpoint()
    raise Transient("it fails")


# What is shown


async def test_the_root_is_a_folder_though_nothing_is_in_it(store):
    root = await CheckpointTree(store).stat("")
    assert (root.name, root.is_folder, root.size_bytes) == ("", True, 0)
    assert (root.info.mtime_ns, root.layout, root.problem) == (0, None, None)


async def test_a_folder_is_no_file(store):
    await store.mkdir("a")
    tree = CheckpointTree(store)
    with pytest.raises(Conflict, match="is a folder"):
        tree.source(await tree.stat("a"))


async def test_where_parts_are_nothing_is_made(store):
    tree = CheckpointTree(store)
    with pytest.raises(NotFound):
        await Namespace(tree).mkdir(f"a/{PARTS_FOLDER}/b")
    assert store._entries == {}


async def test_a_file_that_goes_while_its_folder_is_listed_is_not_in_it(store, put):
    await put("a/f", OLD)
    await put("a/g", OLD)
    tree = CheckpointTree(At(store, "open", "a/f", lambda: store.delete("a/f")))
    assert [entry.name for entry in await tree.list("a")] == ["a/g"]


async def test_no_more_is_looked_at_once_a_listing_has_failed(store, put, monkeypatch):
    monkeypatch.setattr(tree_module, "_READS_AT_ONCE", 1)
    for name in ("a/f", "a/g", "a/h"):
        await put(name, OLD)
    away = FlakyStore(store, lambda _, operation, __: operation == "pread")
    with pytest.raises(Transient):
        await CheckpointTree(away).list("a")
    assert len([operation for operation, _ in away.calls if operation == "open"]) == 1


async def test_a_manifest_is_read_once_and_ordinary_files_are_not(store, put):
    await put("a/f", OLD)
    await put("a/g", SMALL)
    counted = FlakyStore(store, lambda *_: False)
    tree = CheckpointTree(counted)
    for _ in range(3):
        assert [entry.size_bytes for entry in await tree.list("a")] == [len(OLD), len(SMALL)]
        assert (await tree.stat("a/f")).size_bytes == len(OLD)
        assert (await tree.stat("a/g")).size_bytes == len(SMALL)
    assert [name for operation, name in counted.calls if operation == "open"] == ["a/f"]


async def test_so_many_manifests_are_remembered_and_no_more(store, put, monkeypatch):
    monkeypatch.setattr(entries_module, "_CACHED_MANIFESTS", 2)
    for name in ("f", "g", "h"):
        await put(name, OLD)
    counted = FlakyStore(store, lambda *_: False)
    tree = CheckpointTree(counted)
    for name in ("f", "g", "f", "g", "h", "g", "h", "f"):
        assert (await tree.stat(name)).layout is not None
    opened = [name for operation, name in counted.calls if operation == "open"]
    assert opened == ["f", "g", "h", "f"]


class Coarse(WrappedStore):
    """Knows no versions, and no time that tells them apart."""

    async def around(self, operation, name, call):
        found = await call()
        if operation == "stat":
            return self._coarse(found)
        if operation == "list":
            return FolderListing(self._coarse(info) for info in found)
        return found

    def _coarse(self, info):
        return type(info)(info.name, info.size_bytes, 0, is_folder=info.is_folder)


@pytest.mark.parametrize("change", ["remove", "rename", "set_aside", "replace"])
async def test_what_has_lost_its_name_is_not_remembered_under_it(store, put, change):
    coarse = Coarse(store)
    tree = CheckpointTree(coarse)
    first = await put("f", OLD)
    entry = await tree.stat("f")
    if change == "replace":
        await publish(store, "g", SMALL)
        await Namespace(tree).rename(await tree.stat("g"), "f", over=entry)
    else:
        owner = RetiredParts(tree) if change == "set_aside" else Namespace(tree)
        await getattr(owner, change)(entry, *["g"] * (change == "rename"))
    second = await put("f", OLD[::-1])
    assert second.info.size_bytes == first.info.size_bytes
    assert (await tree.stat("f")).layout.parts_id == second.layout.parts_id


# What may be the rest of a manifest


async def lose(store):
    """Have parts whose manifest is lost."""
    folder = parts_folder("a", "0" * 32)
    await publish(store, f"{folder}/0000", b"part")
    return folder


async def test_who_has_waited_to_be_sure_does_not_wait_again(store, autojump_clock, monkeypatch):
    monkeypatch.setattr(parts_module, "_STEP_S", 1)
    await lose(store)
    await publish(store, "a/empty", b"")
    tree = CheckpointTree(store)
    for _ in range(3):
        assert (await tree.stat("a/empty")).problem is not None
        assert trio.current_time() == 1


async def test_a_small_file_that_cannot_be_read_may_be_one(store):
    await lose(store)
    await publish(store, "a/small", b"1000")
    tree = CheckpointTree(FlakyStore(store, lambda _, operation, __: operation == "open"))
    assert (await tree.stat("a/small")).problem is not None
    assert (await CheckpointTree(store).stat("a/small")).problem is None


async def test_parts_that_could_not_be_removed_are_nobody_s(store, put, caplog):
    await put("a/f", OLD)
    await publish(store, "a/empty", b"")
    tree = CheckpointTree(FlakyStore(store, lambda _, operation, __: operation == "delete_tree"))
    await Namespace(tree).remove(await tree.stat("a/f"))
    assert "are of no use any more and stay for now" in caplog.text
    assert (await tree.stat("a/empty")).problem is not None


# Names that are taken away


async def test_a_file_that_another_node_moves_is_not_kept(store, put):
    await put("a/f", OLD)
    tree = CheckpointTree(store)
    entry = await tree.stat("a/f")
    async with tree.parts.leaving("a/f"):
        assert await RetiredParts(tree).set_aside(entry) is None
    assert any(entry.layout.parts_id in name for name in parts_in(store))


async def test_only_what_was_set_aside_is_dropped(store, put):
    await put("f", SMALL)
    tree = CheckpointTree(store)
    entry = await tree.stat("f")
    with pytest.raises(ValueError, match="not set aside"):
        await RetiredParts(tree).remove_kept(entry)
    assert await read_file(CheckpointTree(store), "f") == SMALL


async def test_a_file_that_gets_its_name_back_keeps_its_parts(store, put):
    await put("a/f", OLD)
    manifest = await read_all(store, "a/f", 1 << 20)
    back = At(store, "delete", "a/f", lambda: publish(store, "a/f", manifest), after=True)
    tree = CheckpointTree(back)
    await Namespace(tree).remove(await tree.stat("a/f"))
    assert await read_file(CheckpointTree(store), "a/f") == OLD


async def test_a_folder_goes_with_what_was_given_up_in_it(store):
    folder = f"{parts_of('a')}/{MAKING}{'0' * 32}"
    await publish(store, f"{folder}/0000", b"part")
    await store.set_mtime(folder, time.time_ns() - 3 * DAY_NS)
    await Namespace(CheckpointTree(store)).remove_folder("a")
    assert store._entries == {}


async def test_a_folder_goes_when_what_was_moved_out_of_it_has_been_completed(store, put):
    await put("a/f", OLD)
    (parts,) = parts_in(store)
    tree = CheckpointTree(At(store, "rename", parts, fail))
    names = Namespace(tree)
    with pytest.raises(Transient):
        await names.rename(await tree.stat("a/f"), "b/f")
    for name in parts_in(store):  # marks, too, which are believed for an hour
        await store.set_mtime(name, time.time_ns() - DAY_NS)
    await names.remove_folder("a")
    assert await read_file(CheckpointTree(store), "b/f") == OLD
    assert await tree.find("a") is None


async def test_a_folder_goes_with_parts_that_were_nobody_s(store):
    await lose(store)
    tree = CheckpointTree(store)
    await Namespace(tree).remove_tree("a")
    assert store._entries == {}


# Moves


@pytest.mark.parametrize("target", ["g", "b/f"])
async def test_a_file_whose_parts_are_gone_is_not_moved(store, put, target):
    await put("f", OLD)
    await store.delete_tree(PARTS_FOLDER)
    tree = CheckpointTree(store)
    with pytest.raises(Corrupt, match="restore the file"):
        await Namespace(tree).rename(await tree.stat("f"), target)
    assert await tree.find("f") and not await tree.find(target)


@pytest.mark.parametrize("old", [SMALL, OLD])
@pytest.mark.parametrize("target", ["a/g", "b/f"])
async def test_what_was_published_while_it_is_moved_is_read_though_nobody_has_looked(
    store, put, old, target
):
    """Its parts are not where it is: they are found by the link there."""
    await put("a/f", old)
    late = At(store, "rename", "a/f", lambda: put("a/f", NEW))
    looks = 2 if old is OLD and target == "b/f" else 1
    tree = CheckpointTree(At(late, "stat", target, fail, nth=looks))
    entry = await tree.stat("a/f")
    with pytest.raises(Transient):
        await Namespace(tree).rename(entry, target)
    assert await read_file(CheckpointTree(store), target) == NEW
    assert any(FROM in name for name in parts_in(store)) == (target == "b/f")


@pytest.mark.parametrize("old", [SMALL, OLD])
@pytest.mark.parametrize("folder", ["a", "b"])
async def test_what_was_published_while_it_is_moved_has_its_parts_beside_it(
    store, put, old, folder
):
    """They are marked, so that who has seen it under its old name does not remove them."""
    await put("a/f", old)
    tree = CheckpointTree(At(store, "rename", "a/f", lambda: put("a/f", NEW)))
    await Namespace(tree).rename(await tree.stat("a/f"), f"{folder}/g")
    assert await read_file(CheckpointTree(store), f"{folder}/g") == NEW
    layout = (await CheckpointTree(store).stat(f"{folder}/g")).layout
    beside = await store.list(parts_folder(folder, layout.parts_id))
    assert [info for info in beside if "/named-" in info.name]


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_a_move_that_was_completed_is_not_looked_at_again(store, put, is_cut_off):
    await put("a/f", OLD)
    (parts,) = parts_in(store)
    tree = CheckpointTree(At(store, "rename", parts, fail, nth=1 if is_cut_off else 2))
    names = Namespace(tree)
    with suppress(Transient):
        await names.rename(await tree.stat("a/f"), "b/f")
    if is_cut_off:
        await names.rename(await tree.stat("a"), "c")
    assert await read_file(CheckpointTree(store), "b/f") == OLD
    await store.delete_tree(parts_of("b"))
    await names.rename(await tree.stat("b" if is_cut_off else "a"), "d")
    assert await tree.find("d")


# Publishing


async def test_a_file_stays_that_others_are_about_to_move(store, put):
    """Others are beside it, too: it is no second name of what was moved."""
    await put("g", OLD)
    (other,) = parts_in(store)

    async def mark():
        (folder,) = parts_in(store) - {other}
        await store.mkdir(f"{folder}/named-1")

    marked = At(store, "commit", "f", mark)
    assert (await put("f", NEW, marked)).layout is not None
    assert await read_file(CheckpointTree(store), "f") == NEW


async def test_what_was_replaced_is_not_published_again_though_its_parts_are_there(store, nursery):
    """They are being removed by who has replaced it."""

    async def replace_and_fail():
        draft = Drafts(CheckpointTree(busy), nursery, OPTIONS).begin("f", None)
        await draft.write(0, OLD)
        await draft.publish()
        await fail()

    busy = FlakyStore(store, lambda _, operation, __: operation == "delete_tree")
    doubtful = At(store, "commit", "f", replace_and_fail, after=True)
    draft = Drafts(CheckpointTree(doubtful), nursery, OPTIONS).begin("f", None)
    await draft.write(0, NEW)
    with pytest.raises(Transient):
        await draft.publish()
    with pytest.raises(Conflict, match="replaced meanwhile"):
        await draft.publish()
    assert await read_file(CheckpointTree(store), "f") == OLD


@pytest.mark.parametrize("content", [b"", SMALL, NEW])
async def test_what_is_published_is_a_file_though_a_folder_has_its_name_by_now(store, put, content):
    async def replace():
        await store.delete("f")
        await store.mkdir("f")

    entry = await put("f", content, At(store, "stat", "f", replace, nth=2))
    assert (entry.is_folder, entry.size_bytes) == (False, len(content))


# What is left over


async def test_what_is_left_over_is_given_up_after_a_time(store, monkeypatch):
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    names = [f"{parts_of('a')}/{MAKING}1", f"{parts_of('a')}/{FROM}2", parts_folder("a", "0" * 32)]
    await store.mkdir(names[0])
    await publish(store, names[1], b"../b")
    await store.mkdir(names[2])
    tree = CheckpointTree(store)
    for age_ns, found in ((100 * 10**9 - 1, []), (100 * 10**9, names[:2])):
        for name in names:
            await store.set_mtime(name, now_ns - age_ns)
        listed = await Leftovers(tree).abandoned("a", 100)
        assert sorted(info.name for info in listed) == sorted(found)


async def test_what_cannot_be_brought_is_no_reason_to_leave_the_rest(store, put):
    for name in ("a/f", "a/g"):
        await put(name, OLD)
    tree = CheckpointTree(store)
    lost, kept = [(await tree.stat(name)).layout.parts_id for name in ("a/f", "a/g")]
    await store.delete_tree(parts_folder("a", lost))
    await store.rename(parts_folder("a", kept), parts_folder("b", kept))
    await publish(store, f"{parts_of('a')}/{FROM}1", b"../b")
    assert await Leftovers(tree).remove_abandoned("a", -1) == 1
    assert (await store.stat(parts_folder("a", kept))).is_folder
    assert await read_file(CheckpointTree(store), "a/g") == OLD


async def test_only_folders_with_an_id_may_be_parts_that_nobody_names(store):
    for name in ("0" * 32, "1" * 31, "g" * 32, f"{MAKING}{'2' * 32}"):
        await publish(store, f"{parts_folder('a', name)}/0000", b"part")
    await publish(store, parts_folder("a", "3" * 32), b"an object")
    unused = await Leftovers(CheckpointTree(store)).unused("")
    assert [info.name for info in unused] == [parts_folder("a", "0" * 32)]

"""Lengths of striped files that a listing shows: right for the version that is listed, or none."""

import os
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from bootseer.checkpoint.admin.gc import find_orphans, remove_orphans
from bootseer.checkpoint.files import parts as parts_module
from bootseer.checkpoint.files.namespace import Namespace
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.size_marks import mark_name, sizes_of
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.errors import BootseerError, Conflict, NotFound, Transient
from bootseer.store.api.base import publish, read_all
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import CHANGES, FlakyStore

UNIT = 4096
OPTIONS = WriteOptions(
    unit_bytes=UNIT, width=3, streams=8, memory_bytes=64 * UNIT, stuck_s=0, recovery_s=0
)
READS = {"open", "pread"}
FILES = 40


class AsHdfs(WrappedStore):
    """A store that tells versions apart by length and time only, in milliseconds."""

    async def around(self, operation, name, call):
        found = await call()
        if operation == "stat":
            return self._bare(found)
        if operation == "list":
            found[:] = [self._bare(info) for info in found]
        return found

    def _bare(self, info):
        return replace(info, version="", mtime_ns=info.mtime_ns // 10**6 * 10**6)


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch):
    """Nobody changes anything meanwhile that would have to be waited for."""
    monkeypatch.setattr(parts_module, "_STEP_S", 0)


@pytest.fixture(params=["memory", "local", "as HDFS"])
def store(request, tmp_path):
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    return MemoryStore() if request.param == "memory" else AsHdfs(MemoryStore())


@asynccontextmanager
async def drafts(store):
    """Begin drafts, whose errors are those of the body."""
    error = None
    async with trio.open_nursery() as nursery:
        try:
            yield Drafts(CheckpointTree(store), nursery, OPTIONS)
        except BootseerError as caught:
            error = caught
    if error is not None:
        raise error


async def write(store, name, size_bytes, **attributes):
    """Write a striped file as a process that knows nothing of others."""
    async with drafts(store) as begun:
        draft = begun.begin(name, None)
        for attribute, value in attributes.items():
            setattr(draft, attribute, value)
        await draft.write(0, os.urandom(size_bytes))
        return await draft.publish()


async def listed(store, folder):
    """List a folder as a node that has seen nothing of it; returns lengths and calls."""
    watched = FlakyStore(store, lambda *_: False)
    entries = await CheckpointTree(watched).show_folder(folder)
    sizes = {entry.name.rpartition("/")[2]: entry.size_bytes for entry in entries}
    return sizes, Counter(operation for operation, _ in watched.calls)


async def marks(store, folder="run"):
    return [info.name for info in await store.list(sizes_of(folder))]


LISTS = Counter(list=2)
"""What any listing costs in which all files have marks: that of the files and that of the marks."""


@pytest.mark.parametrize("files", [2, FILES])
async def test_a_listing_opens_no_manifest_however_many_there_are(store, files):
    sizes = {f"f{number:02}": 2 * UNIT + number + 1 for number in range(files)}
    for name, size_bytes in sizes.items():
        await write(store, f"run/{name}", size_bytes)
    await publish(store, "run/plain", b"a" * 3)
    assert await listed(store, "run") == ({**sizes, "plain": 3}, LISTS)


async def test_a_single_file_is_opened_for_that_costs_no_more(store):
    await write(store, "run/f", 2 * UNIT)
    assert await listed(store, "run") == ({"f": 2 * UNIT}, Counter(list=1, open=1, pread=2))


async def test_files_without_marks_are_opened_as_before(store):
    for number in range(5):
        await write(store, f"run/f{number}", 2 * UNIT + number)
    await store.delete_tree(sizes_of("run"))
    sizes, calls = await listed(store, "run")
    assert sizes == {f"f{number}": 2 * UNIT + number for number in range(5)}
    assert calls == Counter(list=2, open=5, pread=10)


async def changed(store, change):
    tree = CheckpointTree(store)
    return await change(tree, await tree.stat("run/a"))


async def rename(tree, entry, target):
    over = await tree.find(target)
    await Namespace(tree).rename(entry, target, over=over)


OLD, NEW, OTHER = 2 * UNIT + 1, 2 * UNIT + 2, 2 * UNIT + 3


@pytest.mark.parametrize(
    ("change", "folder", "names"),
    [
        (lambda tree, entry: rename(tree, entry, "run/c"), "run", {"c": OLD, "b": OTHER}),
        (lambda tree, entry: rename(tree, entry, "run/b"), "run", {"b": OLD, "z": NEW}),
        (lambda tree, entry: rename(tree, entry, "other/a"), "other", {"a": OLD, "y": OTHER}),
        (lambda tree, entry: Namespace(tree).set_mtime(entry, 10**18), "run", {"a": OLD}),
        (lambda tree, entry: Namespace(tree).set_mode(entry, 0o600), "run", {"a": OLD}),
        (lambda tree, entry: write(tree.store, "run/a", NEW), "run", {"a": NEW, "b": OTHER}),
        (lambda tree, entry: write(tree.store, "run/a", OLD), "run", {"a": OLD, "b": OTHER}),
        (
            lambda tree, entry: write(tree.store, "run/a", NEW, mtime_ns=10**18, mode=0o600),
            "run",
            {"a": NEW},
        ),
        (lambda tree, entry: tree.store.rename("run", "moved"), "moved", {"a": OLD, "b": OTHER}),
        (lambda tree, entry: Namespace(tree).remove(entry), "run", {"b": OTHER, "z": NEW}),
        (lambda tree, entry: RetiredParts(tree).set_aside(entry), "run", {"b": OTHER, "z": NEW}),
        (lambda tree, entry: write(tree.store, "run/a", 5), "run", {"a": 5, "b": OTHER}),
    ],
)
async def test_after_a_change_the_marks_are_those_of_the_files(store, change, folder, names):
    for name, size_bytes in {"a": OLD, "b": OTHER, "z": NEW}.items():
        await write(store, f"run/{name}", size_bytes)
    for name in ("x", "y"):
        await write(store, f"other/{name}", OTHER)
    await changed(store, change)
    sizes, calls = await listed(store, folder)
    assert sizes.items() >= names.items() and calls == LISTS
    for place in ("run", "other", "moved"):  # nothing is left of what went
        entries = await CheckpointTree(store).list(place)
        striped = [entry for entry in entries if entry.layout is not None]
        assert sorted(await marks(store, place)) == sorted(
            mark_name(entry.info, entry.size_bytes) for entry in striped
        )


async def test_publishing_costs_no_more_calls_than_without_marks(store):
    """The mark that protects the parts meanwhile becomes that of the length."""
    await write(store, "run/first", OLD)
    watched = FlakyStore(store, lambda *_: False)
    await write(watched, "run/second", NEW)
    calls = Counter(operation for operation, _ in watched.calls)
    # `held-` made and renamed; the parts made and renamed.
    assert (calls["mkdir"], calls["rename"], calls["delete"]) == (1, 2, 0)
    watched.calls.clear()
    await write(watched, "run/second", OLD)
    again = Counter(operation for operation, _ in watched.calls)
    assert again["delete"] == 1  # the mark of the version that was replaced


@pytest.mark.parametrize("late", [False, True])
async def test_whatever_step_fails_a_listing_is_right(late):
    """A process dies before or after any step of a change that it makes."""
    for change in (
        lambda tree, entry: write(tree.store, "run/a", NEW),
        lambda tree, entry: rename(tree, entry, "run/b"),
        lambda tree, entry: rename(tree, entry, "other/a"),
        lambda tree, entry: Namespace(tree).remove(entry),
        lambda tree, entry: Namespace(tree).set_mtime(entry, 10**18),
    ):
        step, is_done = 0, False
        while not is_done:
            step += 1
            inner = MemoryStore()
            store = AsHdfs(inner)
            for name, size_bytes in {"run/a": OLD, "run/b": OTHER, "other/x": OLD}.items():
                await write(store, name, size_bytes)
            done = [0]

            def fails(_count, operation, _name, done=done, step=step):
                done[0] += operation in CHANGES
                return done[0] >= step

            try:
                await changed(FlakyStore(store, fails, late=late), change)
                is_done = done[0] < step
            except BootseerError:
                pass
            for folder in ("run", "other"):
                truth = {
                    entry.name.rpartition("/")[2]: entry.size_bytes
                    for entry in await CheckpointTree(store).list(folder)
                }
                assert (await listed(store, folder))[0] == truth
        assert step > 2


async def test_a_mark_of_another_version_is_not_believed(store):
    """Another tool has replaced a manifest by one of the same length."""
    for name in ("a", "b", "c"):
        await write(store, f"run/{name}", OLD)
    other = await write(store, "elsewhere/a", NEW)
    await trio.sleep(0.01)
    await publish(store, "run/a", other.layout.encode())
    sizes, calls = await listed(store, "run")
    assert sizes == {"a": NEW, "b": OLD, "c": OLD}
    assert (calls["list"], calls["open"]) == (2, 1)


async def test_several_marks_of_one_version_are_not_believed(store):
    for name in ("a", "b"):
        await write(store, f"run/{name}", OLD)
    await store.mkdir(mark_name(await store.stat("run/a"), NEW))
    sizes, calls = await listed(store, "run")
    assert sizes == {"a": OLD, "b": OLD} and calls["open"] == 1


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "9" * 25, str(2**63), "٣", "0"])
async def test_marks_that_cannot_be_are_ignored(text):
    store = MemoryStore()
    for name in ("a", "b"):
        await write(store, f"run/{name}", OLD)
    for mark in await marks(store):
        await store.rename(mark, f"{mark.rpartition('-')[0]}-{text}")
    assert (await listed(store, "run"))[0] == {"a": OLD, "b": OLD}


async def test_a_file_is_opened_to_be_used_and_the_truth_is_in_its_manifest(store):
    for name in ("a", "b"):
        await write(store, f"run/{name}", OLD)
    tree = CheckpointTree(store)
    entry = (await tree.show_folder("run"))[0]
    assert entry.is_unread and entry.is_striped and entry.layout is None
    loaded = await tree.load(entry)
    assert not loaded.is_unread and loaded.layout.size_bytes == loaded.size_bytes == OLD
    assert (await tree.show_folder("run"))[0].layout == loaded.layout


async def test_a_mark_that_lies_is_found_out_when_the_file_is_opened(store):
    for name in ("a", "b"):
        await write(store, f"run/{name}", OLD)
        info = await store.stat(f"run/{name}")
        await store.rename(mark_name(info, OLD), mark_name(info, NEW))
    tree = CheckpointTree(store)
    entry = (await tree.show_folder("run"))[0]
    assert entry.size_bytes == NEW
    with pytest.raises(Conflict):
        await tree.load(entry)
    assert (await tree.show("run/a")).size_bytes == OLD
    assert [found.size_bytes for found in await tree.show_folder("run")] == [OLD, OLD]


async def test_files_that_are_looked_up_one_by_one_are_not_all_opened(store):
    for number in range(FILES):
        await write(store, f"run/f{number:02}", OLD + number)
    watched = FlakyStore(store, lambda *_: False)
    tree = CheckpointTree(watched)
    for number in range(FILES):
        assert (await tree.show(f"run/f{number:02}")).size_bytes == OLD + number
    calls = Counter(operation for operation, _ in watched.calls)
    assert calls == Counter(stat=FILES, open=7, pread=14, list=1)


async def test_marks_that_are_not_there_are_looked_for_more_and_more_seldom():
    store = MemoryStore()
    for number in range(FILES):
        await write(store, f"run/f{number:02}", OLD + number)
    await store.delete_tree(sizes_of("run"))
    watched = FlakyStore(store, lambda *_: False)
    tree = CheckpointTree(watched)
    for number in range(FILES):
        assert (await tree.show(f"run/f{number:02}")).size_bytes == OLD + number
    calls = Counter(operation for operation, _ in watched.calls)
    assert calls == Counter(stat=FILES, open=FILES, pread=2 * FILES, list=2)  # the 8th, the 24th


async def test_marks_of_many_folders_are_not_all_kept():
    store = MemoryStore()
    tree = CheckpointTree(store)
    for number in range(40):
        for name in ("a", "b"):
            await write(store, f"run{number}/{name}", OLD)
        await tree.show_folder(f"run{number}")
    assert len(tree.marks._folders) == 16


async def test_a_listing_is_made_though_the_marks_cannot_be_listed(store):
    for name in ("a", "b"):
        await write(store, f"run/{name}", OLD)

    def fails(_count, operation, name):
        return operation == "list" and name == sizes_of("run")

    flaky = FlakyStore(store, fails)
    assert [entry.size_bytes for entry in await CheckpointTree(flaky).show_folder("run")] == [
        OLD,
        OLD,
    ]


@pytest.mark.parametrize("error", [NotFound, Transient])
async def test_what_is_gone_is_not_shown_and_an_error_is_one(error):
    store = MemoryStore()
    await write(store, "run/a", OLD)

    class Failing(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "stat":
                raise error("no")
            return await call()

    tree = CheckpointTree(Failing(store))
    if error is NotFound:
        assert await tree.show("run/a") is None
    else:
        with pytest.raises(Transient):
            await tree.show("run/a")
    assert await CheckpointTree(store).show(sizes_of("run")) is None


# What is left over


async def test_gc_removes_marks_of_no_file_and_no_others(store):
    await write(store, "run/a", OLD)
    await write(store, "run/b", OLD)
    info = await store.stat("run/b")
    await store.delete("run/b")  # by another tool
    stale = mark_name(info, OLD)
    tree = CheckpointTree(store)
    young = await find_orphans(tree, "run", 3600)
    assert not young.stale_marks and stale in await marks(store)
    orphans = await find_orphans(tree, "run", -1)
    assert [found.name for found in orphans.stale_marks] == [stale] and not orphans.abandoned
    await remove_orphans(tree, "run", orphans)
    assert await marks(store) == [mark_name(await store.stat("run/a"), OLD)]


async def test_a_folder_with_marks_of_what_others_have_removed_can_be_removed(store):
    await write(store, "run/a", OLD)
    tree = CheckpointTree(store)
    layout = (await tree.stat("run/a")).layout
    await store.delete("run/a")
    await store.delete_tree(f"run/.bootseer-parts/{layout.parts_id}")
    await Namespace(tree).remove_folder("run")
    assert await tree.find("run") is None


async def test_a_file_of_a_few_bytes_is_shown_without_a_search_for_parts():
    """Every node asks for the name of the latest checkpoint, while another is being written."""
    store = MemoryStore()
    await publish(store, "run/latest", b"1000")
    await publish(store, "run/empty", b"")
    await publish(
        store, f"run/.bootseer-parts/{'0' * 32}/0000", b"of a file that is published next"
    )
    watched = FlakyStore(store, lambda *_: False)
    tree = CheckpointTree(watched)
    assert [entry.problem for entry in await tree.show_folder("run")] == [None, None]
    assert (await tree.show("run/latest")).size_bytes == 4
    assert watched.calls == [("list", "run"), ("stat", "run/latest")]
    latest, empty = [await tree.check(await tree.show(f"run/{n}")) for n in ("latest", "empty")]
    assert latest.problem is None and "ckpt gc" in str(empty.problem)
    assert await read_all(store, "run/latest", 10) == b"1000"

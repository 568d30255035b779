"""Files in the making, and what becomes of them."""

import itertools
import os
import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.leftovers import Leftovers
from bootseer.checkpoint.files.parts import making_folder
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.size_marks import sizes_of
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, part_name
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.checkpoint.write import draft as write
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.checkpoint.write.spill import FileTooLarge
from bootseer.errors import BootseerError, Conflict, NotFound, Transient
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore, first

UNIT = 4096
OPTIONS = WriteOptions(unit_bytes=UNIT, width=4, streams=8, memory_bytes=64 * UNIT)


async def content_of(tree, name, nursery):
    entry = await tree.stat(name)
    fetch = Fetcher(nursery, FetchLimits(memory_bytes=8 * UNIT, streams=4)).open(tree.source(entry))
    pieces = [await fetch.read(at, 3 * UNIT) for at in range(0, entry.size_bytes, 3 * UNIT)]
    await fetch.close()
    return b"".join(pieces)


@pytest.mark.parametrize("size", [0, 1, UNIT - 1, UNIT, UNIT + 1, 10 * UNIT, 10 * UNIT + 17])
async def test_what_was_written_is_read(size):
    tree = CheckpointTree(MemoryStore())
    content = os.urandom(size)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, OPTIONS).begin("folder/file", 0o640)
        for at in range(0, size, 1000):
            await draft.write(at, content[at : at + 1000])
        assert await tree.list("folder") == []
        entry = await draft.publish()
        assert entry.size_bytes == size
        assert (entry.layout is not None) == (size > UNIT)
        assert entry.layout is None or entry.layout.parts <= OPTIONS.width
        assert [e.name for e in await tree.list("folder")] == ["folder/file"]
        assert await content_of(tree, "folder/file", nursery) == content


async def test_what_no_manifest_has_room_for_is_refused(monkeypatch):
    """It would not be known for one by its length, and be shown in the place of the file."""
    monkeypatch.setattr(stripe_manifest, "MAX_UNITS", 3)
    tree = CheckpointTree(MemoryStore())
    content = os.urandom(3 * UNIT)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, OPTIONS).begin("file", None)
        await draft.write(0, content)
        with pytest.raises(FileTooLarge, match="larger units"):
            await draft.write(3 * UNIT, b"x")
        with pytest.raises(FileTooLarge, match="larger units"):
            await draft.truncate(3 * UNIT + 1)
        await draft.publish()
        assert await content_of(tree, "file", nursery) == content


# Offsets and lengths that meet each other, the ends of units, and their neighbours.
EDGE = st.builds(
    lambda units, more: max(0, units * UNIT + more), st.integers(0, 9), st.integers(-1, 1)
)
OFFSET = EDGE | st.integers(0, 9 * UNIT)
LENGTH = EDGE.map(lambda edge: edge % (3 * UNIT) + 1) | st.integers(1, 3 * UNIT)
STEP = st.one_of(
    st.tuples(st.just("write"), OFFSET, LENGTH),
    st.tuples(st.just("append"), st.just(0), LENGTH),
    st.tuples(st.just("change the end"), st.just(0), LENGTH),
    st.tuples(st.just("truncate"), OFFSET, st.just(0)),
    st.tuples(st.just("truncate to its size"), st.just(0), st.just(0)),
    st.tuples(st.just("read"), st.integers(0, 9 * UNIT), st.integers(1, 3 * UNIT)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=25), st.integers(0, 2**32))
def test_a_draft_is_like_a_file(steps, seed):
    async def run():
        tree = CheckpointTree(MemoryStore())
        model = bytearray()
        random_bytes = random.Random(seed).randbytes
        async with trio.open_nursery() as nursery:
            drafts = Drafts(tree, nursery, OPTIONS)
            draft = drafts.begin("file", None)
            for step, at, size in steps:
                if step in ("write", "append", "change the end"):
                    if step == "append":
                        at = len(model)
                    elif step == "change the end":
                        at = max(0, len(model) - size)
                    data = random_bytes(size)
                    model.extend(bytes(max(0, at + size - len(model))))
                    model[at : at + size] = data
                    await draft.write(at, data)
                elif step.startswith("truncate"):
                    at = len(model) if step == "truncate to its size" else at
                    del model[at:]
                    model.extend(bytes(at - len(model)))
                    await draft.truncate(at)
                elif step == "read":
                    assert await draft.read(at, size) == model[at : at + size]
                elif step == "flush":
                    await draft.flush()
                else:
                    base = tree.source(await draft.publish())
                    draft = drafts.begin("file", None, base)
                assert draft.size_bytes == len(model)
            await draft.publish()
            assert await content_of(tree, "file", nursery) == model
        assert list(await Leftovers(tree).unused("")) == []

    trio.run(run)


async def test_a_part_that_breaks_is_dealt_again(autojump_clock):
    """Whatever step of a part fails, the file is whole, or there is an error and no file."""
    outcomes = set()
    for nth in range(1, 60):
        store = FlakyStore(
            MemoryStore(),
            lambda count, operation, name, nth=nth: (
                operation in ("append", "grow", "sync", "finish") and count % nth == 0
            ),
        )
        tree = CheckpointTree(store)
        content = os.urandom(20 * UNIT + 5)
        async with trio.open_nursery() as nursery:
            draft = Drafts(tree, nursery, OPTIONS).begin("file", None)
            try:
                await draft.write(0, content)
                await draft.publish()
            except BootseerError as error:
                outcomes.add(type(error))
                assert await tree.find("file") is None
                await draft.discard()
                continue
            outcomes.add(None)
            assert await content_of(tree, "file", nursery) == content
    assert None in outcomes


async def test_a_file_of_which_nothing_can_be_stored_is_given_up(autojump_clock):
    store = FlakyStore(MemoryStore(), lambda count, operation, name: operation == "sync")
    async with trio.open_nursery() as nursery:
        draft = Drafts(CheckpointTree(store), nursery, OPTIONS).begin("file", None)
        with pytest.raises(Transient):
            for at in range(0, 20 * UNIT, UNIT):
                await draft.write(at, bytes(UNIT))
            await draft.flush()
        await draft.discard()
    assert 60 < trio.current_time() < 70
    assert sum(operation == "append" for operation, _ in store.calls) < 70 * OPTIONS.width


async def test_a_file_that_nobody_wrote_for_long_is_not_given_up(autojump_clock):
    tree = CheckpointTree(FlakyStore(MemoryStore(), first(2, "sync")))
    content = os.urandom(2 * UNIT)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, OPTIONS).begin("file", None)
        await draft.write(0, content[:UNIT])
        await trio.sleep(3600)
        await draft.write(UNIT, content[UNIT:])
        await draft.publish()
        assert await content_of(tree, "file", nursery) == content


async def test_once_a_part_has_broken_each_ends_with_its_block():
    """The next block may fall on the machine that is dead, and nothing goes round it then."""
    store = FlakyStore(MemoryStore(), first(1, "sync"))
    tree = CheckpointTree(store)
    options = replace(OPTIONS, block_bytes=3 * UNIT)
    content = os.urandom(50 * UNIT)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, options).begin("file", None)
        await draft.write(0, content)
        await draft.publish()
        assert await content_of(tree, "file", nursery) == content
    folder, sizes = await store.list(".bootseer-parts")
    assert sizes.name == sizes_of("")
    sizes = [info.size_bytes for info in await store.list(folder.name)]
    assert max(sizes) == 3 * UNIT


async def test_a_file_synced_very_often_has_few_parts(monkeypatch):
    """Each sync ends a part, and a manifest with too many of them cannot be read."""
    monkeypatch.setattr(write, "_MANY_PARTS", 8)
    tree = CheckpointTree(MemoryStore())
    content = os.urandom(60 * 1000)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, OPTIONS).begin("folder/file", 0o640)
        for at in range(0, len(content), 1000):
            await draft.write(at, content[at : at + 1000])
            await draft.flush()
        entry = await draft.publish()
        assert entry.layout.parts <= 8 + OPTIONS.width
        found = [info.name for info in await tree.store.list("folder/.bootseer-parts")]
        assert len(found) == 2 and found[1] == sizes_of("folder")
        assert await content_of(tree, "folder/file", nursery) == content


@pytest.mark.parametrize("fails", [False, True])
async def test_a_file_with_too_many_parts_is_written_once_more(monkeypatch, autojump_clock, fails):
    """Be it at the second attempt."""
    monkeypatch.setattr(stripe_manifest, "MAX_PARTS", 8)
    folders = []

    def is_second_folder(count, operation, name):
        if operation == "append":
            folders.append(name.rpartition("/")[0])
        return fails and operation == "sync" and not name.startswith(folders[0])

    tree = CheckpointTree(FlakyStore(MemoryStore(), is_second_folder))
    content = os.urandom(4 * UNIT)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, OPTIONS).begin("folder/file", 0o640)
        await draft.write(0, content)
        with pytest.raises(Transient) if fails else nullcontext():
            for at in [*range(5 * UNIT, 8 * UNIT, 1000), 7 * UNIT]:
                await draft.truncate(at)
                await draft.flush()
        fails = False
        entry = await draft.publish()
        assert len(set(folders)) > 1
        assert entry.layout.parts <= 8
        whole = content + bytes(entry.size_bytes - len(content))
        assert await content_of(tree, "folder/file", nursery) == whole


async def test_a_removed_file_is_read_on_by_who_changes_it():
    tree = CheckpointTree(MemoryStore())
    content = os.urandom(5 * UNIT)
    async with trio.open_nursery() as nursery:
        drafts = Drafts(tree, nursery, OPTIONS)
        draft = drafts.begin("file", None)
        await draft.write(0, content)
        entry = await draft.publish()
        draft = drafts.begin("file", None, tree.source(entry))
        await draft.write(0, b"changed")
        draft.move_base((await RetiredParts(tree).set_aside(entry)).name)
        assert await draft.read(0, 5 * UNIT) == b"changed" + content[7:]
        await draft.discard()


async def test_nothing_is_left_of_a_draft_that_is_given_up_while_parts_are_made(autojump_clock):
    class Slow(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "append":
                await trio.sleep(1)
            return await call()

    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        draft = Drafts(CheckpointTree(Slow(store)), nursery, OPTIONS).begin("folder/file", None)
        await draft.write(0, bytes(UNIT))
        await draft.flush()
        await draft.write(UNIT, bytes(2 * UNIT))
        await draft.discard()
    assert await store.list("folder/.bootseer-parts") == []


async def test_a_part_that_did_not_end_is_no_file(autojump_clock):
    """More may have come to it than was acknowledged."""

    class Doubtful(WrappedStore):
        async def around(self, operation, name, call):
            done = await call()
            if operation == "finish" and name.endswith(part_name(0)):
                raise Transient("no answer")
            return done

    store = MemoryStore()
    tree = CheckpointTree(Doubtful(store))
    content = os.urandom(2 * UNIT)
    options = replace(OPTIONS, width=1)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, options).begin("file", None)
        await draft.write(0, content[:UNIT])
        await draft.write(UNIT, content[UNIT:])
        await draft.flush()
        await draft.truncate(UNIT)
        await draft.publish()
        assert (await tree.stat("file")).size_bytes == UNIT
        assert await content_of(tree, "file", nursery) == content[:UNIT]


@pytest.mark.parametrize("size", [UNIT, 3 * UNIT])
async def test_parts_that_are_gone_are_not_published(size):
    """What has the name stays, though its content cannot be told from the new one by its length."""
    tree = CheckpointTree(MemoryStore())
    async with trio.open_nursery() as nursery:
        drafts = Drafts(tree, nursery, OPTIONS)
        old = os.urandom(size)
        draft = drafts.begin("folder/file", None)
        await draft.write(0, old)
        await draft.publish()
        draft = drafts.begin("folder/file", None)
        await draft.write(0, os.urandom(size))
        await draft.flush()
        await tree.store.rename("folder", "moved")  # by another node
        await tree.store.rename("moved/file", "folder/file")
        if size > UNIT:
            (parts,) = await Leftovers(tree).unused("moved")
            await tree.store.rename(parts.name, parts.name.replace("moved", "folder"))
            # Somebody has written on.
            await draft.write(size, b"x")
        with pytest.raises((NotFound, Conflict)):
            await draft.publish()
        assert await content_of(tree, "folder/file", nursery) == old


async def test_a_name_may_have_been_given_by_an_attempt_before(autojump_clock):
    class Doubtful(WrappedStore):
        async def around(self, operation, name, call):
            done = await call()
            if operation == "rename" and next(renames) == 0:
                raise Transient("no answer")
            return done

    renames = itertools.count()
    tree = CheckpointTree(Doubtful(MemoryStore()))
    content = os.urandom(UNIT)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, OPTIONS).begin("file", None)
        await draft.write(0, content)
        with pytest.raises(Transient):
            await draft.publish()
        await draft.publish()
        assert await content_of(tree, "file", nursery) == content


async def test_what_lacks_only_its_name_is_kept_and_gets_it(autojump_clock):
    class Full(WrappedStore):
        async def around(self, operation, name, call):
            if operation == "commit" and name == "file" and next(commits) == 0:
                raise Transient("no DataNode")
            return await call()

    commits = itertools.count()
    store = MemoryStore()
    tree = CheckpointTree(Full(store))
    content = os.urandom(2 * UNIT)
    async with trio.open_nursery() as nursery:
        draft = Drafts(tree, nursery, OPTIONS).begin("file", None)
        await draft.write(0, content)
        with pytest.raises(Transient):
            await draft.publish()
        (before,) = await store.list(PARTS_FOLDER)
        await draft.touch()
        (after,) = await store.list(PARTS_FOLDER)
        assert (after.name, after.mtime_ns > before.mtime_ns) == (before.name, True)
        # One from before the parts were there comes late.
        await store.mkdir(making_folder("file", after.name.rpartition("/")[2]) + "/held-1")
        await draft.publish()
        assert await content_of(tree, "file", nursery) == content

"""Files in the making at their limits, and what is left of them."""

import os
from dataclasses import replace

import pytest
import trio

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.size_marks import sizes_of
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.checkpoint.write.spill import FileTooLarge
from bootseer.errors import Closed, NoSpace, NotFound, Transient
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore, first

UNIT = 4096
OPTIONS = WriteOptions(unit_bytes=UNIT, width=4, streams=8, memory_bytes=64 * UNIT)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def begin(store, nursery):
    """Begin a version of a file, with options of one's own."""

    def begin(name="file", mode=None, base=None, inner=None, **options):
        tree = CheckpointTree(inner or store)
        return Drafts(tree, nursery, replace(OPTIONS, **options)).begin(name, mode, base)

    return begin


async def content(store, name="file"):
    tree = CheckpointTree(store)
    source = tree.source(await tree.stat(name))
    try:
        return b"".join([await source.fetch(piece) for piece in range(source.pieces)])
    finally:
        await source.close()


async def folders_of_parts(store):
    names = [info.name for info in await store.list(PARTS_FOLDER)]
    return [name for name in names if name != sizes_of("")]


async def test_so_much_is_left_out_and_no_more(store, begin):
    draft = begin(spill_bytes=3 * UNIT)
    await draft.write(0, b"begin")
    with pytest.raises(NoSpace, match="left out"):
        await draft.write(3 * UNIT + 6, b"end")
    await draft.write(3 * UNIT + 5, b"end")
    with pytest.raises(NoSpace, match="left out"):
        await draft.truncate(6 * UNIT + 9)
    await draft.truncate(6 * UNIT + 8)
    await draft.publish()
    assert await content(store) == b"begin" + bytes(3 * UNIT) + b"end" + bytes(3 * UNIT)


async def test_what_is_stored_leaves_room_for_more_that_is_out_of_order(store, begin):
    draft = begin(spill_bytes=2 * UNIT)
    data = bytearray(os.urandom(8 * UNIT))
    await draft.write(0, bytes(data))
    for at in range(0, 6, 2):
        for unit in (at, at + 1):
            data[unit * UNIT + 1] ^= 1
            await draft.write(unit * UNIT + 1, data[unit * UNIT + 1 : unit * UNIT + 2])
        with pytest.raises(FileTooLarge):
            await draft.write(6 * UNIT + 1, b"x")
        await draft.flush()
    await draft.publish()
    assert await content(store) == data


@pytest.mark.parametrize(("old", "new"), [(UNIT, 4 * UNIT), (4 * UNIT, UNIT), (UNIT, 2 * UNIT)])
@pytest.mark.parametrize("size", [8 * UNIT, 9 * UNIT + 17, 11 * UNIT - 1])
@pytest.mark.parametrize("cut", [None, 6 * UNIT + 5, 5 * UNIT])
async def test_a_file_of_units_of_another_length_is_changed(store, begin, old, new, size, cut):
    data = bytearray(os.urandom(size))
    draft = begin(unit_bytes=old)
    await draft.write(0, bytes(data))
    tree = CheckpointTree(store)
    source = tree.source(await draft.publish())
    draft = begin(base=source, unit_bytes=new)
    assert await draft.read(5, 9 * UNIT) == data[5 : 9 * UNIT + 5]
    await draft.write(2 * UNIT + 1, b"changed")
    data[2 * UNIT + 1 : 2 * UNIT + 8] = b"changed"
    if cut is not None:
        await draft.truncate(cut)
        del data[cut:]
    await draft.write(len(data), b"more")
    data += b"more"
    assert await draft.read(0, size + UNIT) == data
    entry = await draft.publish()
    assert entry.layout.unit_bytes == new
    assert await content(store) == data


async def test_a_file_that_is_opened_and_not_changed_is_what_it_was(store, begin):
    draft = begin()
    data = os.urandom(3 * UNIT + 1)
    await draft.write(0, data)
    source = CheckpointTree(store).source(await draft.publish())
    draft = begin(base=source)
    await draft.truncate(len(data))
    await draft.publish()
    assert await content(store) == data
    assert len(await folders_of_parts(store)) == 1


async def test_what_was_opened_of_the_old_version_is_closed(tmp_path, begin):
    """The fixture that looks for open files says so."""
    store = LocalStore(tmp_path)
    draft = begin(inner=store)
    await draft.write(0, bytes(3 * UNIT))
    source = CheckpointTree(store).source(await draft.publish())
    draft = begin(inner=store, base=source)
    await draft.write(5, b"changed")
    await draft.publish()
    assert await content(store) == bytes(5) + b"changed" + bytes(3 * UNIT - 12)
    source = CheckpointTree(store).source(await CheckpointTree(store).stat("file"))
    draft = begin(inner=store, base=source)
    await draft.write(5, b"given up")
    await draft.discard()


@pytest.mark.parametrize("parts", [3, 4])
async def test_a_file_is_written_anew_for_too_many_parts_alone(store, begin, monkeypatch, parts):
    monkeypatch.setattr(stripe_manifest, "MAX_PARTS", 3)
    draft = begin(width=1)
    for unit in range(parts):
        await draft.write(unit * UNIT, bytes([unit]) * UNIT)
        if unit == 0:
            await draft.flush()
            before = await folders_of_parts(store)
        elif unit < parts - 1:
            await draft.drain()
    await draft.flush()
    assert (await folders_of_parts(store) == before) == (parts == 3)
    await draft.publish()
    assert await content(store) == b"".join(bytes([unit]) * UNIT for unit in range(parts))


async def test_what_was_cut_to_a_unit_is_not_taken_for_all_of_its_part(store, begin):
    draft = begin(width=1)
    data = os.urandom(2 * UNIT)
    await draft.write(0, data[:UNIT])
    await draft.write(UNIT, data[UNIT:])
    await draft.flush()
    await draft.truncate(UNIT)
    assert (await draft.publish()).size_bytes == UNIT
    assert await content(store) == data[:UNIT]


async def test_a_draft_that_is_lost_says_so_whatever_is_asked(begin):
    draft = begin()
    await draft.write(0, bytes(3 * UNIT))
    await draft.flush()
    assert not draft.is_lost
    draft.lose(Closed("its writer was killed"))
    assert draft.is_lost
    for call in (
        draft.flush,
        draft.drain,
        draft.publish,
        lambda: draft.read(0, 1),
        lambda: draft.write(0, b"x"),
        lambda: draft.truncate(0),
    ):
        with pytest.raises(Closed, match="killed"):
            await call()
    await draft.discard()


async def test_nothing_is_left_of_what_is_given_up_whatever_ends(store, begin):
    draft = begin()
    await draft.write(0, bytes(3 * UNIT))
    await draft.flush()
    assert await folders_of_parts(store)
    with trio.CancelScope() as scope:
        scope.cancel()
        await draft.discard()
    assert await folders_of_parts(store) == []


async def test_giving_up_asks_no_store_of_what_was_not_written(store, begin):
    flaky = FlakyStore(store, lambda *_: True)
    draft = begin(inner=flaky)
    await draft.write(0, b"nothing is stored of so little")
    await draft.discard()
    assert flaky.calls == []


@pytest.mark.parametrize("size", [UNIT, 3 * UNIT])
@pytest.mark.parametrize("there", [None, b"another", bytes(UNIT), b"1" * UNIT])
async def test_nothing_is_made_of_parts_that_are_gone(store, begin, size, there):
    if there is not None:
        old = begin()
        await old.write(0, there)
        await old.publish()
    draft = begin()
    await draft.write(0, b"2" * size)
    await draft.flush()
    for folder in await folders_of_parts(store):
        await store.delete_tree(folder)
    with pytest.raises(NotFound):
        await draft.publish()
    assert await folders_of_parts(store) == []
    if there is None:
        assert await CheckpointTree(store).find("file") is None
    else:
        assert await content(store) == there


@pytest.mark.parametrize("size", [0, 5, UNIT, 3 * UNIT])
async def test_what_has_had_its_name_is_not_written_over_what_has_it_now(store, begin, size):
    """Only its time could not be set before somebody replaced it."""
    draft = begin(inner=FlakyStore(store, first(1, "set_mtime")))
    draft.mtime_ns = 10**18
    await draft.write(0, bytes(size))
    with pytest.raises(Transient):
        await draft.publish()
    if size > UNIT:
        other = begin()
        await other.write(0, b"another's")
        await other.publish()
        assert (await draft.publish()).size_bytes == size
        assert await content(store) == b"another's"
    else:
        assert (await draft.publish()).info.mtime_ns == 10**18
        assert await content(store) == bytes(size)


async def test_a_draft_goes_on_when_its_folder_has_moved(store, begin):
    draft = begin("old/file")
    data = os.urandom(5 * UNIT + 5)
    await draft.write(0, data[: 3 * UNIT])
    await draft.drain()
    await store.rename("old", "new")
    draft.move("new/file")
    assert await draft.read(5, UNIT) == data[5 : UNIT + 5]
    await draft.write(3 * UNIT, data[3 * UNIT :])
    await draft.publish()
    assert await content(store, "new/file") == data
    assert [name for name in store._entries if name.startswith("old") or "making-" in name] == []


async def test_a_draft_leaves_its_folder_with_all_that_is_on_its_way(store, begin):
    draft = begin("folder/file")
    data = os.urandom(6 * UNIT)
    for at in (0, 3 * UNIT):
        await draft.write(at, data[at : at + 3 * UNIT])
        await draft.leave_folder()
        assert await store.list(f"folder/{PARTS_FOLDER}") == []
        draft.move("elsewhere/file")  # where the folder above has moved to
    await draft.flush()
    assert await draft.read(0, 6 * UNIT) == data
    assert not [name for name in store._entries if name.startswith(("elsewhere", "folder/f"))]
    await draft.discard()
    assert await folders_of_parts(store) == []


async def test_a_draft_of_which_nothing_is_stored_leaves_its_folder_too(store, begin):
    draft = begin("folder/file")
    await draft.leave_folder()
    await draft.write(0, bytes(3 * UNIT))
    await draft.flush()
    assert "folder" not in store._entries
    await draft.discard()


CALLS = {
    "write": lambda draft: draft.write(0, b"x"),
    "truncate": lambda draft: draft.truncate(1),
    "flush": lambda draft: draft.flush(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_what_is_cancelled_before_it_has_begun_is_not_done(store, begin, call):
    draft = begin()
    await draft.write(0, b"content")
    await draft.flush()
    with trio.CancelScope() as scope:
        scope.cancel()
        await CALLS[call](draft)
    assert scope.cancelled_caught
    await draft.publish()
    assert await content(store) == b"content"


@pytest.mark.parametrize("size", [UNIT + 5, 3 * UNIT + 5])
async def test_what_is_cut_or_extended_after_it_was_stored_is_published_so(store, begin, size):
    draft = begin()
    await draft.write(0, b"1" * 2 * UNIT)
    await draft.flush()
    await draft.truncate(size)
    await draft.publish()
    assert await content(store) == (b"1" * 2 * UNIT)[:size].ljust(size, b"\0")

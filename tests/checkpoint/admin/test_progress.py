"""Many files at once: each is tried, what fails is noted, and what would fail with all ends it."""

import pytest
import trio
import trio.testing

from bootseer.checkpoint.admin.progress import BatchProgress, for_each, limits_for, walk
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.stripe_manifest import StripeManifest
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import FetchLimits
from bootseer.errors import Conflict, Denied, NoSpace, NotFound, Unavailable
from bootseer.parallel import background
from bootseer.store.api.base import ObjectInfo, Unlisted, publish
from bootseer.store.memory import MemoryStore
from bootseer.units import GIB, MIB


async def test_what_fails_with_one_is_noted_and_the_rest_done():
    done = []

    async def work(number):
        await trio.lowlevel.checkpoint()
        if number % 2:
            raise Denied(f"not {number}")
        done.append(number)

    progress = BatchProgress()
    await for_each(range(40), work, "file {}".format, progress, at_once=1)
    assert done == list(range(0, 40, 2))
    assert [(f.name, str(f.error)) for f in progress.failures] == [
        (f"file {number}", f"not {number}") for number in range(1, 40, 2)
    ]


@pytest.mark.parametrize("at_once", [1, 3])
async def test_so_many_are_at_work_at_once(autojump_clock, at_once):
    async def work(number):
        await trio.sleep(1)

    await for_each(range(6), work, str, BatchProgress(), at_once=at_once)
    assert trio.current_time() == 6 // at_once


async def test_no_space_ends_all_at_once(autojump_clock):
    begun = []

    async def work(number):
        await trio.lowlevel.checkpoint()
        begun.append(number)
        await trio.sleep(number)
        if number == 1:
            raise NoSpace("the disk is full")

    progress = BatchProgress()
    with pytest.raises(NoSpace, match="the disk is full"):
        await for_each(range(1, 20), work, str, progress, at_once=3)
    assert sorted(begun) == [1, 2, 3]
    assert trio.current_time() == 1
    assert [failure.name for failure in progress.failures] == ["1"]


async def test_a_store_that_is_away_for_some_files_ends_nothing():
    async def work(number):
        await trio.lowlevel.checkpoint()
        if number % 3 == 0:
            raise Unavailable(str(number))

    progress = BatchProgress()
    await for_each(range(20), work, str, progress)
    assert len(progress.failures) == 7


async def test_what_was_there_already_was_done_and_not_moved():
    progress = BatchProgress()
    assert progress == BatchProgress(0, 0, 0, 0, 0, 0, [], [])
    progress.move(100)
    progress.skip(20)
    progress.move(3)
    progress.skip(0)
    assert (progress.done_files, progress.skipped_files) == (2, 2)
    assert (progress.done_bytes, progress.moved_bytes) == (123, 103)


# What there is


async def test_folders_come_before_what_is_in_them():
    store = MemoryStore()
    for name in ("a/b/file", "a/c", "d/e", "z"):
        await publish(store, f"top/{name}", b"content")
    tree = CheckpointTree(store)
    assert [entry.name for entry in await walk(tree, "top")] == [
        *("top", "top/a", "top/d", "top/z"),
        *("top/a/b", "top/a/c", "top/a/b/file"),
        "top/d/e",
    ]
    assert [entry.name for entry in await walk(tree, "top/a/c")] == ["top/a/c"]
    with pytest.raises(NotFound):
        await walk(tree, "none")


async def test_what_cannot_be_used_is_told_of_every_folder():
    class Odd(MemoryStore):
        async def list(self, folder=""):
            listing = await super().list(folder)
            listing.unlisted.append(Unlisted(f"{folder}/link", ""))
            return listing

    store = Odd()
    await publish(store, "top/below/file", b"content")
    unlisted = []
    await walk(CheckpointTree(store), "top", unlisted)
    assert [one.name for one in unlisted] == ["top/link", "top/below/link"]


# What goes on beside it


async def test_what_goes_on_beside_a_block_ends_with_it(autojump_clock):
    with trio.fail_after(10):
        async with background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()


async def test_an_error_that_ends_the_block_comes_out_as_it_is(autojump_clock):
    error = Conflict("replaced")
    with trio.fail_after(10), pytest.raises(Conflict) as caught:
        async with background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise error
    assert caught.value is error


# Memory


def striped(unit_bytes):
    return FileEntry(
        ObjectInfo("file", 1, 0), StripeManifest(unit_bytes, unit_bytes, "0" * 32, 1, ())
    )


@pytest.mark.parametrize(
    ("units", "memory_bytes"),
    [
        ([], 256 * MIB),
        ([4 * MIB], 256 * MIB),
        ([256 * MIB, MIB], 512 * MIB),
        ([MIB, GIB], 2 * GIB),
    ],
)
def test_there_is_memory_for_two_of_the_longest_units(units, memory_bytes):
    plain = FileEntry(ObjectInfo("file", 10 * GIB, 0))
    limits = limits_for([plain, *map(striped, units)])
    assert limits == FetchLimits(memory_bytes=memory_bytes)

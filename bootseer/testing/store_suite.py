"""What every store must do: subclass `StoreSuite` in a test module and give it a store.

    class TestMyStore(StoreSuite):
        def make_store(self, scratch: Path) -> Store:
            return MyStore(scratch)

The tests run under pytest-trio in trio mode. Have pytest explain failures here with
``pytest.register_assert_rewrite("bootseer.testing.store_suite")`` in a conftest.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import trio
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from bootseer.errors import Closed, ConfigError, Conflict, Corrupt, NotFound, Unavailable
from bootseer.store.api.base import Store, publish, read_all
from bootseer.store.api.name import TEMPORARY_PREFIX
from bootseer.testing.store_model import StoreMachine
from bootseer.units import MIB

CONTENT = bytes(range(256))

GOOD_NAMES = [
    "a",
    "a/b/c",
    "with space",
    "ünï/cödé-☃-🚀",
    "'quotes\" $(shell) *?[x] \\ back",
    ".hidden",
    "...",
    "-dash",
    "100%25",
    "x" * 255,
    "/".join(["y" * 204] * 5),
]
BAD_NAMES = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/./b",
    "nul\0",
    "line\nfeed",
    "\x1b[31m",
    "del\x7f",
    "c1\x9b",
    "\udc80",
    "x" * 256,
    "ü" * 128,
    "/".join(["y" * 204] * 5) + "z",
    f"{TEMPORARY_PREFIX}1",
    f"a/{TEMPORARY_PREFIX}1/b",
]


class _StoppedOnPurpose(Exception):
    """Raised by tests inside the block that writes."""


class StoreSuite:
    """The suite; `make_store` is the only thing that a subclass must provide."""

    @abstractmethod
    def make_store(self, scratch: Path) -> Store:
        """Return an empty store, which may use the folder `scratch` (it does not exist yet)."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """The store under test."""
        return self.make_store(tmp_path / "store")

    # Reading and writing

    @pytest.mark.parametrize("size", [0, 1, 4096, 100_001])
    async def test_gives_back_what_was_written(self, store: Store, size: int) -> None:
        """An object has the bytes and the length that were written."""
        content = (CONTENT * (size // 256 + 1))[:size]
        await publish(store, "folder/object", content)
        assert await read_all(store, "folder/object", size) == content
        info = await store.stat("folder/object")
        assert (info.name, info.size_bytes, info.is_folder) == ("folder/object", size, False)

    async def test_gives_back_ten_megabytes_written_in_pieces(self, store: Store) -> None:
        """Pieces of several types and sizes are joined in order."""
        content = CONTENT * (10 * MIB // 256)
        async with store.create("large") as writer:
            await writer.write(content[: 3 * MIB])
            await writer.write(b"")
            await writer.write(bytearray(content[3 * MIB : 3 * MIB + 1]))
            await writer.write(memoryview(content)[3 * MIB + 1 :])
            await writer.commit()
        async with store.open("large") as reader:
            assert reader.size_bytes == len(content)
            assert await reader.pread(0, len(content)) == content

    async def test_the_source_of_a_write_may_change_after_it(self, store: Store) -> None:
        """A buffer is the caller's again once write has returned."""
        buffer = bytearray(b"one")
        async with store.create("object") as writer:
            await writer.write(buffer)
            buffer[:] = b"two"
            await writer.write(buffer)
            await writer.commit()
        assert await read_all(store, "object", 6) == b"onetwo"

    @pytest.mark.parametrize(
        ("offset", "size"),
        [(0, 256), (0, 0), (0, 1), (255, 1), (100, 50), (0, 10**12), (255, 2), (256, 1), (999, 9)],
    )
    async def test_reads_ranges(self, store: Store, offset: int, size: int) -> None:
        """A read is short only at the end, and empty after it."""
        await publish(store, "object", CONTENT)
        async with store.open("object") as reader:
            assert await reader.pread(offset, size) == CONTENT[offset : offset + size]

    @pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, -1)])
    async def test_refuses_negative_ranges(self, store: Store, offset: int, size: int) -> None:
        """There is nothing before the beginning."""
        await publish(store, "object", CONTENT)
        async with store.open("object") as reader:
            with pytest.raises(ValueError, match="0 or more"):
                await reader.pread(offset, size)

    async def test_reads_at_once(self, store: Store) -> None:
        """Any number of tasks may use one reader."""
        await publish(store, "object", CONTENT)

        async def read(offset: int) -> None:
            assert await reader.pread(offset, 8) == CONTENT[offset : offset + 8]

        async with store.open("object") as reader, trio.open_nursery() as nursery:
            for offset in range(0, 256, 8):
                nursery.start_soon(read, offset)

    async def test_read_all_refuses_what_is_too_large(self, store: Store) -> None:
        """An object larger than it can be is corrupt, and stays unread."""
        await publish(store, "object", CONTENT)
        with pytest.raises(Corrupt, match="256 bytes"):
            await read_all(store, "object", 255)

    async def test_a_reader_is_closed_with_its_block(self, store: Store) -> None:
        """Reading later is an error of this program's."""
        await publish(store, "object", CONTENT)
        async with store.open("object") as reader:
            pass
        with pytest.raises(Closed):
            await reader.pread(0, 1)

    # Complete or invisible

    async def test_nothing_is_visible_before_the_commit(self, store: Store) -> None:
        """Neither a new object nor a new version, and no temporary."""
        await publish(store, "folder/old", b"old")
        async with (
            store.create("folder/new") as new,
            store.create("folder/old") as old,
        ):
            await new.write(b"new")
            await old.write(b"newer")
            with pytest.raises(NotFound):
                await store.stat("folder/new")
            assert [info.name for info in await store.list("folder")] == ["folder/old"]
            assert await read_all(store, "folder/old", 9) == b"old"
            await new.commit()
            await old.commit()
            assert await read_all(store, "folder/new", 9) == b"new"
            assert await read_all(store, "folder/old", 9) == b"newer"

    async def test_leaving_without_commit_discards(self, store: Store) -> None:
        """The object is as it was before."""
        await publish(store, "object", b"before")
        async with store.create("object") as writer:
            await writer.write(b"after")
        assert await read_all(store, "object", 9) == b"before"

    async def test_an_exception_in_the_block_discards(self, store: Store) -> None:
        """The exception comes out, the object does not."""
        with pytest.raises(_StoppedOnPurpose):
            async with store.create("object") as writer:
                await writer.write(CONTENT)
                raise _StoppedOnPurpose
        assert await store.list() == []

    async def test_cancellation_in_a_write_discards(self, store: Store) -> None:
        """Nothing is visible, and the name can be written again."""
        with trio.CancelScope() as scope:
            async with store.create("object") as writer:
                await writer.write(CONTENT)
                scope.cancel()
                await writer.write(CONTENT)
        assert scope.cancelled_caught
        assert await store.list() == []
        await publish(store, "object", b"again")
        assert await read_all(store, "object", 9) == b"again"

    async def test_no_commit_after_a_cancelled_write(self, store: Store) -> None:
        """Nobody knows how much of it arrived."""
        async with store.create("object") as writer:
            with trio.CancelScope() as scope:
                scope.cancel()
                await writer.write(CONTENT)
            with pytest.raises(Closed):
                await writer.commit()
        assert await store.list() == []

    async def test_a_writer_is_closed_by_its_commit(self, store: Store) -> None:
        """What is complete can't be added to, nor committed twice."""
        async with store.create("object") as writer:
            await writer.write(b"all")
            await writer.commit()
            with pytest.raises(Closed):
                await writer.write(b"more")
            with pytest.raises(Closed):
                await writer.commit()
        assert await read_all(store, "object", 9) == b"all"

    async def test_a_writer_is_closed_with_its_block(self, store: Store) -> None:
        """Writing later is an error of this program's."""
        async with store.create("object") as writer:
            pass
        with pytest.raises(Closed):
            await writer.write(b"late")
        with pytest.raises(Closed):
            await writer.commit()
        assert await store.list() == []

    # Growing

    async def test_an_object_grows_until_it_is_finished(self, store: Store) -> None:
        """Its name is there before that."""
        if not store.capabilities.append:
            return await self._check_no_append(store)
        async with store.append("folder/log") as appender:
            await appender.write(CONTENT)
            await appender.write(b"")
            await appender.sync()
            assert [info.name for info in await store.list("folder")] == ["folder/log"]
            await appender.sync()
            await appender.write(CONTENT)
            await appender.finish()
            with pytest.raises(Closed):
                await appender.write(b"more")
        assert await read_all(store, "folder/log", 512) == CONTENT * 2

    async def test_what_was_synced_stays(self, store: Store) -> None:
        """However its writer ends; the name stays taken."""
        if not store.capabilities.append:
            return await self._check_no_append(store)
        with pytest.raises(_StoppedOnPurpose):
            async with store.append("log") as appender:
                await appender.write(CONTENT)
                await appender.sync()
                raise _StoppedOnPurpose
        async with store.open("log") as reader:
            assert await reader.pread(0, 256) == CONTENT
        with pytest.raises(Closed):
            await appender.sync()
        with pytest.raises(Conflict):
            async with store.append("log"):
                pass
        await store.delete("log")
        async with store.append("log") as appender:
            await appender.finish()
        assert await read_all(store, "log", 0) == b""

    async def test_a_folder_is_as_old_as_the_last_change_in_it(self, store: Store) -> None:
        """By which `bootseer ckpt gc` tells what is still being written."""
        if not store.capabilities.append:
            return await self._check_no_append(store)
        await store.mkdir("folder")
        changes: list[Callable[[], Awaitable[None]]] = [
            lambda: publish(store, "folder/object", CONTENT),
            lambda: store.mkdir("folder/inner"),
            lambda: store.delete("folder/inner"),
            lambda: store.rename("folder/object", "folder/other"),
            lambda: store.rename("folder/other", "object"),
        ]
        for change in changes:
            await store.set_mtime("folder", 10**9)
            await change()
            assert (await store.stat("folder")).mtime_ns > 10**9

    async def _check_no_append(self, store: Store) -> None:
        with pytest.raises(Unavailable):
            async with store.append("log"):
                pass

    async def test_opening_takes_what_is_known(self, store: Store) -> None:
        """What the caller says is not asked again, and the length is the one found."""
        await publish(store, "object", CONTENT)
        known = await store.stat("object")
        async with store.open("object", known=known) as reader:
            assert reader.info == known
            assert await reader.pread(0, 999) == CONTENT
        await publish(store, "object", CONTENT * 2)
        async with store.open("object", known=known) as reader:
            assert reader.size_bytes == 512
            assert reader.info != known

    async def test_another_version_is_not_opened(self, store: Store) -> None:
        """One of the same length and time is another, too, where the store has them both whole."""
        await publish(store, "object", CONTENT)
        version = await store.stat("object")
        async with store.open("object", known=version, version=version) as reader:
            assert await reader.pread(0, 999) == CONTENT
            assert reader.info.is_version(version)
        if store.capabilities.attributes:
            await store.set_mode("object", 0o600)
            async with store.open("object", version=version) as reader:
                assert await reader.pread(0, 999) == CONTENT
        # Times are told apart by a millisecond, in S3 by a second.
        await trio.sleep(0.005 if store.capabilities.attributes else 1.1)
        await publish(store, "object", CONTENT[::-1])
        with pytest.raises(Conflict):
            async with store.open("object", known=version, version=version):
                pass
        if version.version:
            await store.set_mtime("object", version.mtime_ns)
            with pytest.raises(Conflict):
                async with store.open("object", version=version):
                    pass
            assert not version.is_version(await store.stat("object"))
            assert not version.is_version((await store.list())[0])
        await store.delete("object")
        with pytest.raises(NotFound):
            async with store.open("object", version=version):
                pass

    async def test_a_reader_keeps_its_version(self, store: Store) -> None:
        """Replacing or deleting an object does not affect those that have it open."""
        await publish(store, "object", b"first")
        async with store.open("object") as reader:
            await publish(store, "object", b"second, longer")
            if not store.capabilities.snapshots:
                with pytest.raises(Conflict):
                    await reader.pread(0, 99)
                return
            assert await reader.pread(0, 99) == b"first"
            await store.delete("object")
            assert await reader.pread(1, 99) == b"irst"

    async def test_a_reader_never_sees_what_took_the_place(self, store: Store) -> None:
        """Not even of the same length and in the same moment; nor is a deleted object empty."""
        await publish(store, "object", b"first")
        async with store.open("object") as reader, store.open("object") as other:
            await publish(store, "object", b"other")
            with suppress(Conflict):
                assert await reader.pread(0, 5) == b"first"
            await store.delete("object")
            with suppress(Conflict):
                assert await other.pread(0, 5) == b"first"

    async def test_many_writers_and_readers(self, store: Store) -> None:
        """Readers see one version or another, always whole; the last commit stays."""
        await publish(store, "object", bytes([1]))
        seen = trio.Event()

        async def write(value: int) -> None:
            for size in (1, 5000, 100_000):
                await publish(store, "object", bytes([value]) * (size + value))

        async def read() -> None:
            while True:
                try:
                    content = await read_all(store, "object", 200_000)
                except Conflict:
                    assert not store.capabilities.snapshots
                    continue
                value = content[0]
                assert content == bytes([value]) * len(content)
                assert len(content) - value in (0, 1, 5000, 100_000)
                seen.set()

        async with trio.open_nursery() as readers:
            readers.start_soon(read)
            readers.start_soon(read)
            # Where writers keep the machine busy, no reader may get through to the end.
            await seen.wait()
            async with trio.open_nursery() as writers:
                for value in range(1, 9):
                    writers.start_soon(write, value)
            readers.cancel_scope.cancel()
        assert len(await read_all(store, "object", 200_000)) > 100_000
        assert [info.name for info in await store.list()] == ["object"]

    # Overwriting

    async def test_overwrites_by_default(self, store: Store) -> None:
        """The last version is the one there is."""
        await publish(store, "object", b"a longer first version")
        await publish(store, "object", b"second")
        assert await read_all(store, "object", 99) == b"second"

    async def test_does_not_overwrite_when_told_so(self, store: Store) -> None:
        """Who comes second is told."""
        await publish(store, "object", b"first", overwrite=False)
        with pytest.raises(Conflict):
            await publish(store, "object", b"second", overwrite=False)
        assert await read_all(store, "object", 99) == b"first"
        assert len(await store.list()) == 1

    async def test_one_of_many_is_first(self, store: Store) -> None:
        """Without overwriting, exactly one writer succeeds."""
        done = []

        async def write(value: int) -> None:
            try:
                await publish(store, "object", bytes([value]), overwrite=False)
            except Conflict:
                return
            done.append(value)

        async with trio.open_nursery() as nursery:
            for value in range(8):
                nursery.start_soon(write, value)
        assert await read_all(store, "object", 1) in [bytes([value]) for value in done]
        assert len(done) == 1 or not store.capabilities.exclusive

    @pytest.mark.parametrize("overwrite", [True, False])
    async def test_a_folder_is_not_overwritten(self, store: Store, overwrite: bool) -> None:
        """Not even an empty one."""
        await store.mkdir("folder")
        with pytest.raises(Conflict):
            await publish(store, "folder", b"", overwrite=overwrite)
        assert (await store.stat("folder")).is_folder

    # Folders

    async def test_lists_direct_children_by_name(self, store: Store) -> None:
        """Objects and folders, with their whole names and sizes."""
        for name in ("f/b", "f/a/deep/object", "f/c", "f-other", "f/B", "f/ü"):
            await publish(store, name, b"12")
        listed = await store.list("f")
        assert [info.name for info in listed] == ["f/B", "f/a", "f/b", "f/c", "f/ü"]
        assert [info.is_folder for info in listed] == [False, True, False, False, False]
        assert [info.size_bytes for info in listed] == [2, 0, 2, 2, 2]
        assert [info.name for info in await store.list()] == ["f", "f-other"]
        assert listed[0] == await store.stat("f/B")

    async def test_a_missing_folder_is_empty(self, store: Store) -> None:
        """And so is an object, and the root of a new store."""
        assert await store.list() == []
        assert await store.list("missing") == []
        await publish(store, "object", b"")
        assert await store.list("object") == []
        assert await store.list("object/below") == []

    async def test_makes_folders(self, store: Store) -> None:
        """All that are missing; the ones that exist are as good."""
        await store.mkdir("a/b/c")
        await store.mkdir("a/b")
        info = await store.stat("a/b")
        assert (info.name, info.size_bytes, info.is_folder) == ("a/b", 0, True)
        assert [info.name for info in await store.list("a/b")] == ["a/b/c"]

    async def test_an_object_is_no_folder(self, store: Store) -> None:
        """Nothing can be put below one, and nothing is found there."""
        await publish(store, "object", b"")
        with pytest.raises(Conflict):
            await store.mkdir("object")
        with pytest.raises(Conflict):
            await store.mkdir("object/below")
        with pytest.raises(Conflict):
            await publish(store, "object/below", b"")
        with pytest.raises(NotFound):
            await store.stat("object/below")
        with pytest.raises(NotFound):
            await read_all(store, "object/below", 1)

    async def test_a_folder_is_no_object(self, store: Store) -> None:
        """It can't be opened."""
        await store.mkdir("folder")
        with pytest.raises(Conflict):
            await read_all(store, "folder", 1)

    # Rename and delete

    async def test_renames_objects_and_folders(self, store: Store) -> None:
        """Into folders that are made on the way, with all that is below."""
        await publish(store, "a/object", b"1")
        await publish(store, "a/b/object", b"2")
        await store.rename("a/object", "c/d/object")
        await store.rename("a/b", "e/f")
        assert await read_all(store, "c/d/object", 1) == b"1"
        assert await read_all(store, "e/f/object", 1) == b"2"
        assert await store.list("a") == []

    async def test_rename_replaces_an_object_when_told_so(self, store: Store) -> None:
        """And only then."""
        await publish(store, "new", b"new")
        await publish(store, "old", b"old")
        with pytest.raises(Conflict):
            await store.rename("new", "old")
        assert await read_all(store, "old", 9) == b"old"
        await store.rename("new", "old", overwrite=True)
        assert await read_all(store, "old", 9) == b"new"
        assert [info.name for info in await store.list()] == ["old"]

    @pytest.mark.parametrize("overwrite", [True, False])
    async def test_rename_never_replaces_a_folder(self, store: Store, overwrite: bool) -> None:
        """Nor an object by a folder."""
        await publish(store, "object", b"")
        await store.mkdir("folder")
        await store.mkdir("other")
        for source, target in [("object", "folder"), ("folder", "object"), ("folder", "other")]:
            with pytest.raises(Conflict):
                await store.rename(source, target, overwrite=overwrite)
        assert len(await store.list()) == 3

    async def test_rename_to_itself(self, store: Store) -> None:
        """Changes nothing, and loses nothing."""
        await publish(store, "object", b"1")
        await store.rename("object", "object", overwrite=True)
        with pytest.raises(Conflict):
            await store.rename("object", "object")
        assert await read_all(store, "object", 1) == b"1"

    async def test_a_folder_cannot_be_moved_into_itself(self, store: Store) -> None:
        """There would be no way to reach it."""
        await store.mkdir("folder")
        with pytest.raises(ConfigError):
            await store.rename("folder", "folder/below")

    async def test_deletes(self, store: Store) -> None:
        """Objects, and folders that are empty."""
        await publish(store, "folder/object", b"")
        with pytest.raises(Conflict):
            await store.delete("folder")
        await store.delete("folder/object")
        with pytest.raises(NotFound):
            await store.stat("folder/object")
        await store.delete("folder")
        assert await store.list() == []

    async def test_deletes_trees(self, store: Store) -> None:
        """Folders with all that is below, and objects; nothing beside them."""
        for name in ("f/a/deep/object", "f/b", "f-other", "g"):
            await publish(store, name, b"1")
        await store.mkdir("f/empty")
        await store.delete_tree("f")
        await store.delete_tree("g")
        assert [info.name for info in await store.list()] == ["f-other"]
        assert await store.list("f") == []
        with pytest.raises(NotFound):
            await store.stat("f/a/deep/object")

    async def test_a_tree_is_deleted_with_what_is_being_written_there(self, store: Store) -> None:
        """Nothing stays behind, and the name can be used again."""
        async with store.create("folder/new") as writer:
            await writer.write(b"1")
            await store.delete_tree("folder")
        assert await store.list() == []
        await publish(store, "folder/new", b"2")
        assert await read_all(store, "folder/new", 1) == b"2"

    @pytest.mark.parametrize("name", ["missing", "missing/below", "folder/missing", "object/below"])
    async def test_not_found(self, store: Store, name: str) -> None:
        """Every operation that needs something says so, with its name, and makes nothing."""
        await store.mkdir("folder")
        await publish(store, "object", b"")
        with pytest.raises(NotFound, match=name):
            await store.stat(name)
        with pytest.raises(NotFound, match=name):
            await read_all(store, name, 1)
        with pytest.raises(NotFound, match=name):
            await store.delete(name)
        with pytest.raises(NotFound, match=name):
            await store.rename(name, "new/object")
        with pytest.raises(NotFound, match=name):
            await store.delete_tree(name)
        if store.capabilities.attributes:
            with pytest.raises(NotFound, match=name):
                await store.set_mode(name, 0o600)
            with pytest.raises(NotFound, match=name):
                await store.set_mtime(name, 0)
        assert [info.name for info in await store.list()] == ["folder", "object"]

    # Names

    @pytest.mark.parametrize("name", GOOD_NAMES)
    async def test_takes_odd_names(self, store: Store, name: str) -> None:
        """A name means itself."""
        await publish(store, name, b"1")
        assert await read_all(store, name, 1) == b"1"
        assert (await store.stat(name)).name == name
        assert name in [info.name for info in await store.list(name.rpartition("/")[0])]
        await store.rename(name, "other")
        await store.delete("other")

    @pytest.mark.parametrize("name", BAD_NAMES)
    async def test_refuses_bad_names(self, store: Store, name: str) -> None:
        """In every operation, before anything happens."""
        with pytest.raises(ConfigError):
            await store.stat(name)
        with pytest.raises(ConfigError):
            await read_all(store, name, 1)
        with pytest.raises(ConfigError):
            await publish(store, name, b"")
        with pytest.raises(ConfigError):
            await store.rename(name, "good")
        with pytest.raises(ConfigError):
            await store.rename("good", name)
        with pytest.raises(ConfigError):
            await store.delete(name)
        with pytest.raises(ConfigError):
            await store.mkdir(name)
        with pytest.raises(ConfigError):
            await store.set_replication(name, 2)
        with pytest.raises(ConfigError):
            await store.delete_tree(name)
        with pytest.raises(ConfigError):
            await store.set_mode(name, 0o600)
        with pytest.raises(ConfigError):
            await store.set_mtime(name, 0)
        if name:
            with pytest.raises(ConfigError):
                await store.list(name)

    # Attributes

    async def test_a_mode_is_kept_whatever_the_umask(self, store: Store) -> None:
        """Of objects and folders, through a rename, and until it is changed."""
        umask = os.umask(0o077)
        try:
            await store.mkdir("made/folder", mode=0o750)
            async with store.create("folder/object", mode=0o464) as writer:
                await writer.write(b"1")
                await writer.commit()
        finally:
            os.umask(umask)
        await store.rename("folder/object", "made/folder/object")
        await store.mkdir("made/folder", mode=0o700)
        if not store.capabilities.attributes:
            assert (await store.stat("made/folder/object")).mode is None
            return
        assert (await store.stat("made/folder")).mode == 0o750
        assert (await store.stat("made")).mode != 0o750
        assert [info.mode for info in await store.list("made/folder")] == [0o464]
        await store.set_mode("made/folder/object", 0o600)
        await store.set_mode("made/folder", 0o1777)
        assert (await store.stat("made/folder/object")).mode == 0o600
        assert (await store.stat("made/folder")).mode == 0o1777
        await publish(store, "made/folder/object", b"2")
        assert (await store.stat("made/folder/object")).mode != 0o464

    async def test_a_new_mode_is_no_new_version(self, store: Store) -> None:
        """An open reader continues, and its `ObjectInfo` compares equal."""
        if not store.capabilities.attributes:
            return
        await publish(store, "object", b"12")
        async with store.open("object") as reader:
            await store.set_mode("object", 0o640)
            assert await reader.pread(0, 2) == b"12"
            assert await store.stat("object") == reader.info

    async def test_a_time_is_kept(self, store: Store) -> None:
        """Of objects and folders, through a rename, and until something changes."""
        mtime_ns = 1_234_567_890_123_000_000
        await publish(store, "folder/object", b"1")
        if not store.capabilities.attributes:
            with pytest.raises(Unavailable):
                await store.set_mtime("folder/object", mtime_ns)
            with pytest.raises(Unavailable):
                await store.set_mode("folder/object", 0o600)
            return
        await store.set_mtime("folder/object", mtime_ns)
        await store.set_mtime("folder", mtime_ns + 10**9)
        assert (await store.stat("folder")).mtime_ns == mtime_ns + 10**9
        assert (await store.list("folder"))[0].mtime_ns == mtime_ns
        await store.rename("folder/object", "object")
        assert (await store.stat("object")).mtime_ns == mtime_ns
        await publish(store, "object", b"2")
        assert (await store.stat("object")).mtime_ns > mtime_ns

    @pytest.mark.parametrize("mode", [-1, 0o2000, 0o4755])
    async def test_refuses_what_is_no_mode(self, store: Store, mode: int) -> None:
        """Before anything happens."""
        await store.mkdir("folder")
        with pytest.raises(ValueError, match="not a mode"):
            await store.mkdir("new", mode=mode)
        with pytest.raises(ValueError, match="not a mode"):
            await store.set_mode("folder", mode)
        with pytest.raises(ValueError, match="not a mode"):
            async with store.create("object", mode=mode):
                pass
        assert [info.name for info in await store.list()] == ["folder"]

    # The rest

    async def test_copies_and_blocks_are_asked_for_where_there_are_any(self, store: Store) -> None:
        """Elsewhere they are ignored."""
        async with store.create("object", replication=1, block_bytes=MIB) as writer:
            await writer.write(bytes(3 * MIB))
            await writer.commit()
        assert (await store.stat("object")).size_bytes == 3 * MIB

    async def test_space_makes_sense(self, store: Store) -> None:
        """What is free is part of the whole, where the store says."""
        await publish(store, "object", b"1")
        space = await store.space()
        if space.total_bytes is not None:
            assert space.free_bytes is not None
            assert 0 <= space.free_bytes <= space.total_bytes
            assert space.total_bytes > 0

    async def test_replication_is_what_it_says(self, store: Store) -> None:
        """A store that can't replicate says so before and when asked."""
        await publish(store, "object", b"1")
        if store.capabilities.replication:
            await store.set_replication("object", 1)
        else:
            with pytest.raises(Unavailable):
                await store.set_replication("object", 2)

    async def test_reaping_spares_objects_and_live_writers(self, store: Store) -> None:
        """Only what is old and incomplete goes."""
        await publish(store, "folder/object", b"1")
        async with store.create("folder/new") as writer:
            await writer.write(b"2")
            assert await store.reap_temporaries(older_than_s=3600) == 0
            await writer.commit()
        assert await store.reap_temporaries(older_than_s=0) == 0
        assert [info.name for info in await store.list("folder")] == ["folder/new", "folder/object"]

    def test_agrees_with_a_dictionary(self, tmp_path: Path) -> None:
        """Whatever sequence of operations, result or error, it is the model's."""
        suite = self
        scratch = (tmp_path / str(number) for number in count())

        class Machine(StoreMachine):
            def __init__(self) -> None:
                super().__init__(suite.make_store(next(scratch)))

        run_state_machine_as_test(
            Machine, settings=settings(max_examples=25, stateful_step_count=20, deadline=None)
        )

"""Writing to a view without a kernel, which would keep much of this from it."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio
from bootseer_dev.files.memory_view import MemoryView

from bootseer.errors import Conflict, NoSpace, Unavailable
from bootseer.fuse.view import RENAME_NOREPLACE, ROOT_INODE, Attributes, OpenedFile, WritableView
from bootseer.fuse.writable import WritableOperations
from bootseer.store.local.errors import translate

CONTEXT: Any = SimpleNamespace(pid=0)
RENAME_EXCHANGE = 2


@pytest.fixture
def view() -> MemoryView:
    return MemoryView(1000, 1000, limit_bytes=1000)


@pytest.fixture
def operations(view: MemoryView) -> WritableOperations:
    return WritableOperations(view, on_start=lambda: None)


async def make(view: MemoryView, name: bytes, content: bytes = b"") -> int:
    attributes, opened = await view.create(ROOT_INODE, name, 0o600, os.O_WRONLY)
    await view.write(opened.handle, 0, content)
    await view.close(opened.handle)
    return attributes.inode


class TestTheMemoryView:
    def test_is_a_writable_view(self, view: MemoryView) -> None:
        assert isinstance(view, WritableView)

    async def test_checks_names_that_the_kernel_has_cached(self, view: MemoryView) -> None:
        await make(view, b"file")
        folder = (await view.make_folder(ROOT_INODE, b"folder", 0o700)).inode
        with pytest.raises(FileExistsError):
            await view.create(ROOT_INODE, b"file", 0o600, os.O_WRONLY | os.O_EXCL)
        with pytest.raises(FileExistsError):
            await view.rename(ROOT_INODE, b"file", ROOT_INODE, b"folder", RENAME_NOREPLACE)
        with pytest.raises(FileExistsError):
            await view.make_folder(ROOT_INODE, b"file", 0o700)
        with pytest.raises(OSError, match="Invalid argument"):
            await view.rename(ROOT_INODE, b"folder", folder, b"below", 0)
        with pytest.raises(IsADirectoryError):
            await view.remove(ROOT_INODE, b"folder")
        with pytest.raises(IsADirectoryError):
            await view.rename(ROOT_INODE, b"file", ROOT_INODE, b"folder", 0)
        with pytest.raises(NotADirectoryError):
            await view.remove_folder(ROOT_INODE, b"file")
        with pytest.raises(FileNotFoundError):
            await view.remove(ROOT_INODE, b"none")

    async def test_gives_space_back_when_a_removed_file_is_forgotten(
        self, view: MemoryView
    ) -> None:
        inode = await make(view, b"file", b"x" * 600)
        with pytest.raises(NoSpace):
            await make(view, b"other", b"x" * 600)
        await view.remove(ROOT_INODE, b"file")
        assert (await view.space()).free_bytes == 400
        view.forget(inode)
        assert (await view.space()).free_bytes == 1000
        await make(view, b"other", b"x" * 1000)

    async def test_keeps_a_file_that_is_forgotten_and_has_a_name(self, view: MemoryView) -> None:
        inode = await make(view, b"file", b"content")
        view.forget(inode)
        opened = await view.open((await view.lookup(ROOT_INODE, b"file")).inode, os.O_RDONLY)
        assert await view.read(opened.handle, 0, 100) == b"content"
        with pytest.raises(OSError, match="Bad file descriptor"):
            await view.write(opened.handle, 0, b"x")


class TestTheOperations:
    async def test_exchanging_names_is_refused(
        self, view: MemoryView, operations: WritableOperations
    ) -> None:
        for name in (b"one", b"other"):
            await make(view, name)
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await operations.rename(
                ROOT_INODE, b"one", ROOT_INODE, b"other", RENAME_EXCHANGE, CONTEXT
            )
        assert raised.value.errno == errno.EINVAL

    async def test_a_conflict_over_a_name_means_that_it_exists(
        self, view: MemoryView, operations: WritableOperations, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def create(*_: object) -> tuple[Attributes, OpenedFile]:
            raise Conflict("another writer was first")

        monkeypatch.setattr(view, "create", create)
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await operations.create(ROOT_INODE, b"file", 0o100600, os.O_WRONLY, CONTEXT)
        assert raised.value.errno == errno.EEXIST

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    async def test_a_full_store_is_a_full_mount(
        self,
        view: MemoryView,
        operations: WritableOperations,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
    ) -> None:
        async def write(*_: object) -> int:
            raise translate(OSError(number, os.strerror(number)), "write", "file", "file:///store")

        monkeypatch.setattr(view, "write", write)
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await operations.write(1, 0, b"x")
        assert raised.value.errno == number

    async def test_the_kernel_s_question_before_each_write_does_not_reach_the_view(
        self, view: MemoryView, operations: WritableOperations, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def extended(inode: int, name: bytes) -> bytes:
            return name

        monkeypatch.setattr(view, "extended", extended)
        assert await operations.getxattr(ROOT_INODE, b"user.x", CONTEXT) == b"user.x"
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await operations.getxattr(ROOT_INODE, b"security.capability", CONTEXT)
        assert raised.value.errno == errno.ENODATA


class TestAnOpenListing:
    """What is handed out of it after names have changed."""

    @pytest.fixture
    def asked(self, view: MemoryView, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        names: list[bytes] = []
        lookup = view.lookup

        async def counted(parent: int, name: bytes) -> Attributes:
            names.append(name)
            return await lookup(parent, name)

        monkeypatch.setattr(view, "lookup", counted)
        return names

    @pytest.fixture
    def found(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
        """What is handed out: names and numbers, three at most."""
        handed: list[tuple[bytes, int]] = []

        def reply(_: object, name: bytes, entry: pyfuse3.EntryAttributes, after: int) -> bool:
            if len(handed) == 3:
                return False
            handed.append((name, entry.st_ino))
            return True

        monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
        return handed

    async def test_looks_up_only_changed_names_again(
        self,
        view: MemoryView,
        operations: WritableOperations,
        asked: list[bytes],
        found: list[tuple[bytes, int]],
    ) -> None:
        numbers = {name: await make(view, name) for name in (b"a", b"b", b"c", b"d", b"e")}
        listing = await operations.opendir(ROOT_INODE, CONTEXT)
        await operations.unlink(ROOT_INODE, b"b", CONTEXT)
        await operations.unlink(ROOT_INODE, b"c", CONTEXT)
        for name in (b"c", b"not listed"):
            _, entry = await operations.create(ROOT_INODE, name, 0o600, os.O_WRONLY, CONTEXT)
            numbers[name] = entry.st_ino
        await operations.rename(ROOT_INODE, b"e", ROOT_INODE, b"d", 0, CONTEXT)
        await operations.readdir(listing, 0, CONTEXT)
        assert found == [(b"a", numbers[b"a"]), (b"c", numbers[b"c"]), (b"d", numbers[b"e"])]
        assert asked == [b"b", b"c", b"d", b"e"]
        assert operations._listings[listing].changed == {b"b", b"c", b"d", b"e"}

    async def test_knows_of_a_change_while_it_is_made(
        self,
        view: MemoryView,
        operations: WritableOperations,
        monkeypatch: pytest.MonkeyPatch,
        found: list[tuple[bytes, int]],
    ) -> None:
        await make(view, b"a")
        entries, go_on = view.entries, trio.Event()

        async def slow(inode: int) -> Any:
            listed = await entries(inode)
            await go_on.wait()
            return listed

        monkeypatch.setattr(view, "entries", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(operations.opendir, ROOT_INODE, CONTEXT)
            await trio.testing.wait_all_tasks_blocked()
            await operations.unlink(ROOT_INODE, b"a", CONTEXT)
            go_on.set()
        await operations.readdir(1, 0, CONTEXT)
        assert found == []

    async def test_returns_entries_before_an_error(
        self,
        view: MemoryView,
        operations: WritableOperations,
        monkeypatch: pytest.MonkeyPatch,
        found: list[tuple[bytes, int]],
    ) -> None:
        async def failing(parent: int, name: bytes) -> Attributes:
            raise Unavailable("the store is away")

        one, _ = await make(view, b"a"), await make(view, b"b")
        listing = await operations.opendir(ROOT_INODE, CONTEXT)
        await operations.unlink(ROOT_INODE, b"b", CONTEXT)
        monkeypatch.setattr(view, "lookup", failing)
        await operations.readdir(listing, 0, CONTEXT)
        assert found == [(b"a", one)]
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await operations.readdir(listing, 1, CONTEXT)
        assert raised.value.errno == errno.EIO

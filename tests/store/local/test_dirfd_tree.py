"""The store in a directory as a tree of descriptors: folders that are made, owners, versions."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from bootseer.errors import Closed, Conflict, Corrupt, Denied
from bootseer.store.api.base import Capabilities, StoreSpace, publish, read_all
from bootseer.store.api.name import TEMPORARY_PREFIX
from bootseer.store.local.dirfd_tree import file_version
from bootseer.store.local.owner_rules import TrustedOwners
from bootseer.store.local.store import LocalStore

TRUSTED = TrustedOwners("ada", os.geteuid())
GROUP = TrustedOwners("ada", os.geteuid(), "images", os.getegid())
WIDE = TrustedOwners("ada", os.geteuid(), "images", os.getegid(), widens=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


@pytest.fixture
def no_umask() -> Iterator[None]:
    umask = os.umask(0)
    yield
    os.umask(umask)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_says_what_it_can_do(store: LocalStore) -> None:
    assert store.capabilities == Capabilities(
        atomic_rename=True,
        replication=False,
        attributes=True,
        append=True,
        exclusive=True,
        snapshots=True,
    )


# What is made


@pytest.mark.parametrize(
    ("owner_uid", "trusted", "folder_mode", "file_mode"),
    [
        (None, None, 0o777, 0o666),
        (os.geteuid(), None, 0o700, 0o600),
        (None, TRUSTED, 0o755, 0o644),
        (None, GROUP, 0o775, 0o644),
    ],
)
async def test_modes_are_those_of_a_store_s_kind(
    root: Path,
    no_umask: None,
    owner_uid: int | None,
    trusted: TrustedOwners | None,
    folder_mode: int,
    file_mode: int,
) -> None:
    root.mkdir(0o711)
    store = LocalStore(root, owner_uid, trusted=trusted)
    await publish(store, "folder/object", b"")
    async with store.append("folder/log") as appender:
        await appender.finish()
    assert mode(root / "folder") == folder_mode
    assert mode(root / "folder/object") == mode(root / "folder/log") == file_mode


async def test_a_mode_of_its_own_is_kept_whatever_the_umask(store: LocalStore, root: Path) -> None:
    umask = os.umask(0o077)
    try:
        async with store.append("log", mode=0o464) as appender:
            await appender.finish()
    finally:
        os.umask(umask)
    assert mode(root / "log") == 0o464


async def test_folders_are_as_wide_as_the_one_that_they_are_in(root: Path) -> None:
    root.mkdir()
    root.chmod(0o2775)
    await publish(LocalStore(root, trusted=WIDE), "a/b/object", b"")
    assert (mode(root / "a"), mode(root / "a/b")) == (0o2775, 0o2775)


async def test_a_folder_that_another_made_meanwhile_stays_as_it_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    root.chmod(0o2775)
    real = os.mkdir

    def mkdir(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(path, 0o711, dir_fd=dir_fd)
        real(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir)
    await LocalStore(root, trusted=WIDE).mkdir("folder")
    assert mode(root / "folder") & 0o777 == 0o711


async def test_a_folder_that_cannot_be_widened_is_let_go(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor, that is: that it is not open any more, each test is looked after for."""

    def fchown(fd: int, uid: int, gid: int) -> None:
        assert uid == -1
        raise PermissionError(1, os.strerror(1))

    root.mkdir()
    monkeypatch.setattr(os, "fchown", fchown)
    with pytest.raises(Denied):
        await LocalStore(root, trusted=WIDE).mkdir("folder")


@pytest.mark.root
async def test_root_makes_a_store_that_many_use(root: Path) -> None:
    await publish(LocalStore(root, trusted=TRUSTED), "object", b"1")
    assert mode(root) == 0o755


# What is synced


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced."""
    paths = []
    real = os.fsync

    def fsync(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


async def test_both_folders_of_a_rename_are_synced(
    store: LocalStore, root: Path, synced: list[str]
) -> None:
    await publish(store, "old/object", b"")
    await store.mkdir("new")
    synced.clear()
    await store.rename("old/object", "new/object")
    assert sorted(synced) == [f"{root}/new", f"{root}/old"]


async def test_the_folder_of_an_object_that_grows_is_synced(
    store: LocalStore, root: Path, synced: list[str]
) -> None:
    await store.mkdir("folder")
    synced.clear()
    async with store.append("folder/log"):
        assert synced == [f"{root}/folder"]


async def test_an_object_that_grows_is_synced_when_it_is_to_be_and_at_its_end(
    store: LocalStore, root: Path, synced: list[str]
) -> None:
    async with store.append("log") as appender:
        synced.clear()
        await appender.write(b"1")
        assert synced == []
        await appender.sync()
        assert synced == [f"{root}/log"]
        await appender.write(b"2")
        await appender.finish()
        assert synced == [f"{root}/log"] * 2


async def test_the_folder_of_one_with_a_mode_of_its_own_is_synced(
    store: LocalStore, root: Path, synced: list[str]
) -> None:
    await store.mkdir("folder")
    synced.clear()
    await store.mkdir("folder/below", mode=0o700)
    assert synced == [f"{root}/folder"]


# What is there


async def test_a_root_that_is_a_file_has_no_space(root: Path) -> None:
    root.write_text("")
    with pytest.raises(Conflict):
        await LocalStore(root).space()


async def test_space_is_what_is_left_for_all_users(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.mkdir("folder")
    # Block sizes and then blocks: all, free, and free for others than root.
    found = os.statvfs_result((4096, 1024, 100, 50, 30, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda fd: found)
    assert await store.space() == StoreSpace(100 * 1024, 30 * 1024)


async def test_a_listing_goes_on_after_what_is_left_out(store: LocalStore, root: Path) -> None:
    names = [f"object{number}" for number in range(20)]
    root.mkdir()
    for number, name in enumerate(names):
        (root / name).touch()
        (root / f"{TEMPORARY_PREFIX}{number}").touch()
        (root / f".nfs{number:016x}").touch()
    assert [info.name for info in await store.list()] == sorted(names)


async def test_what_vanishes_while_it_is_listed_is_left_out(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await publish(store, name, b"")
    real = os.scandir

    @contextmanager
    def scandir(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        (root / "a").unlink()
        yield iter(entries)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [info.name for info in await store.list()] == ["b", "c"]


def test_a_file_that_has_no_handle_has_no_version() -> None:
    reading, writing = os.pipe()
    try:
        assert file_version(reading) == ""
    finally:
        os.close(reading)
        os.close(writing)


# What is written to in place


def overwrite(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(0, 1))


def lengthen(path: Path, content: bytes) -> None:
    status = path.stat()
    with path.open("ab") as file:
        file.write(content)
    os.utime(path, ns=(0, status.st_mtime_ns))


@pytest.mark.parametrize("change", [overwrite, lengthen])
async def test_a_version_that_is_written_to_in_place_is_another(
    store: LocalStore, root: Path, change: Callable[[Path, bytes], None]
) -> None:
    """Where no version was asked for, what is there is read."""
    await publish(store, "object", b"first")
    version = await store.stat("object")
    async with store.open("object", version=version) as reader, store.open("object") as other:
        assert await reader.pread(0, 5) == b"first"
        change(root / "object", b"other")
        with pytest.raises(Conflict, match="written to in place"):
            await reader.pread(0, 5)
        assert len(await other.pread(0, 5)) == 5
        os.truncate(root / "object", 2)
        with pytest.raises(Corrupt):
            await other.pread(0, 5)


# Threads


async def test_what_it_cannot_do_can_be_cancelled(store: LocalStore) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.set_replication("object", 2)
    assert scope.cancelled_caught


async def test_what_has_ended_says_so_while_all_threads_hang(root: Path) -> None:
    threads = trio.CapacityLimiter(1)
    store = LocalStore(root, threads=threads)
    async with store.create("object") as writer, store.append("log") as appender:
        pass
    steps = [writer.commit, appender.finish]
    refused = []

    async def take(step: Any) -> None:
        with pytest.raises(Closed):
            await step()
        refused.append(step)

    async with threads, trio.open_nursery() as nursery:
        for step in steps:
            nursery.start_soon(take, step)
        await wait_all_tasks_blocked()
        assert len(refused) == len(steps)
        nursery.cancel_scope.cancel()


async def test_a_call_that_hangs_is_left_behind(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = trio.CapacityLimiter(1)
    store = LocalStore(root, threads=threads)
    await publish(store, "object", b"1")
    entered, release = threading.Event(), threading.Event()
    real, left = os.scandir, []

    def scandir(folder: int) -> Any:
        entered.set()
        release.wait(10)
        left.append(folder)
        return real(folder)

    async with trio.open_nursery() as nursery:
        monkeypatch.setattr(os, "scandir", scandir)
        nursery.start_soon(store.list)
        await trio.to_thread.run_sync(entered.wait, 10)
        nursery.cancel_scope.cancel()
    assert left == []
    assert threads.borrowed_tokens == 1
    release.set()
    monkeypatch.undo()
    assert await read_all(store, "object", 1) == b"1"

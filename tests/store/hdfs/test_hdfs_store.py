"""The HDFS store, without one: on an HDFS in memory, which says what it is asked."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bootseer.errors import Conflict, NotFound, Transient, Unavailable
from bootseer.store.api.base import (
    BlockLocation,
    Capabilities,
    ObjectInfo,
    Store,
    StoreSpace,
    publish,
    read_all,
)
from bootseer.store.hdfs import store as hdfs
from bootseer.store.hdfs import webhdfs
from bootseer.store.hdfs.options import HdfsOptions
from bootseer.store.hdfs.store import HdfsStore
from bootseer.testing.store_suite import StoreSuite

S_NS = 1_000_000_000
_numbers = count()


def at(path: str, **options: Any) -> HdfsStore:
    return HdfsStore("namenode:8020", PurePosixPath(path), **options)


@pytest.fixture
def store(namenode: Any) -> HdfsStore:
    return at("/root")


class TestHdfsStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def use(self, namenode: Any) -> None:
        """In the place of a client of each store."""

    def make_store(self, scratch: Path) -> Store:
        return at(f"/suite/{next(_numbers)}")


class TestPrivateHdfsStore(TestHdfsStore):
    def make_store(self, scratch: Path) -> Store:
        return at(f"/private-suite/{next(_numbers)}", private=True)


def test_says_what_it_can_do(store: HdfsStore) -> None:
    assert store.capabilities == Capabilities(
        atomic_rename=True,
        replication=True,
        attributes=True,
        append=True,
        exclusive=True,
        snapshots=True,
    )


@pytest.mark.parametrize("path", ["/", "/with space/ü/"])
async def test_a_store_can_be_any_folder(namenode: Any, path: str) -> None:
    store = at(path)
    await publish(store, "folder/object", b"1")
    assert f"{path.rstrip('/')}/folder/object" in namenode.inodes
    assert [info.name for info in await store.list()] == ["folder"]
    assert await store.reap_temporaries(0) == 0
    assert (await store.stat_root()).is_folder


async def test_the_folder_of_a_store_is_described_once_it_is_there(store: HdfsStore) -> None:
    with pytest.raises(NotFound):
        await store.stat_root()
    await store.mkdir("folder")
    root = await store.stat_root()
    assert (root.name, root.is_folder, root.mode, root.owner) == ("", True, 0o755, "alice")


# Modes


@pytest.mark.parametrize(
    ("private", "folder_mode", "object_mode"), [(True, 0o700, 0o600), (False, 0o755, 0o644)]
)
async def test_what_is_made_is_private_if_the_store_is(
    namenode: Any, private: bool, folder_mode: int, object_mode: int
) -> None:
    store = at("/user/alice", private=private)
    await publish(store, "created/object", b"1")
    async with store.append("appended/object") as appender:
        await appender.finish()
    await store.mkdir("made/folder")
    await store.mkdir("on/folder", mode=0o751)
    await publish(store, "object", b"1", mode=0o640)
    await store.rename("created/object", "renamed/object")
    modes = {path: inode.permission for path, inode in namenode.inodes.items() if path != "/"}
    assert modes.pop("/user/alice/on/folder") == 0o751
    assert modes.pop("/user/alice/object") == 0o640
    for name in ("renamed/object", "appended/object"):
        assert modes.pop(f"/user/alice/{name}") == object_mode
    assert set(modes.values()) == {folder_mode}


async def test_a_time_before_1970_is_kept_as_1970(store: HdfsStore) -> None:
    await publish(store, "object", b"")
    await store.set_mtime("object", -S_NS)
    assert (await store.stat("object")).mtime_ns == 0


async def test_copies_and_blocks_are_asked_for(namenode: Any, store: HdfsStore) -> None:
    async with store.create("object", replication=2, block_bytes=1 << 20) as writer:
        await writer.commit()
    await store.set_replication("object", 5)
    [options] = namenode.made
    assert (options.replication, options.block_size) == (2, 1 << 20)
    assert namenode.asked("set_replication 5") == ["/root/object"]
    await store.mkdir("folder")
    with pytest.raises(Conflict, match="is a folder"):
        await store.set_replication("folder", 5)


# Opening


def questions(namenode: Any) -> list[str]:
    """What was asked since this was asked last."""
    asked = [operation for operation, _ in namenode.calls]
    namenode.calls.clear()
    return asked


async def test_what_is_known_is_not_asked_again(namenode: Any, store: HdfsStore) -> None:
    await publish(store, "object", b"content")
    info = await store.stat("object")
    questions(namenode)
    async with store.open("object"):
        assert questions(namenode) == ["get_file_info", "read", "get_file_info"]
    async with store.open("object", version=info) as reader:
        assert questions(namenode) == ["read", "get_file_info"]
        assert reader.info.owner == "alice"
    async with store.open("object", version=info, known=info):
        assert questions(namenode) == ["read", "get_file_info"]
    async with store.open("object", known=info):
        assert questions(namenode) == ["read"]


async def test_what_has_grown_since_it_was_known_is_opened_whole(
    namenode: Any, store: HdfsStore
) -> None:
    await publish(store, "object", b"content")
    known = ObjectInfo("object", 3, 0)
    async with store.open("object", known=known) as reader:
        assert reader.info == ObjectInfo("object", 7, 0)
        assert await reader.pread(0, 99) == b"content"


class FakeTime:
    """Goes on as long as is slept, and by a tenth of a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        self.now_s += 0.1
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    made = FakeTime()
    monkeypatch.setattr(hdfs, "time", made)
    return made


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_file_is_opened_when_its_last_block_is_there(
    namenode: Any, store: HdfsStore, clock: FakeTime, is_known: bool
) -> None:
    """A NameNode may show a file before its DataNodes have told of the last block."""
    await publish(store, "empty", b"")
    await publish(store, "object", b"content")
    known = await store.stat("object") if is_known else None
    early = [namenode.read("/root/empty") for _ in range(3)]
    real = namenode.read
    namenode.read = lambda path: early.pop() if early else real(path)
    async with store.open("object", known=known) as reader:
        assert await reader.pread(0, 99) == b"content"
    assert not early
    assert clock.slept == [hdfs._PAUSE_S] * (2 if is_known else 3)


async def test_a_file_that_never_is_as_long_as_it_is_said_to_be(
    namenode: Any, store: HdfsStore, clock: FakeTime
) -> None:
    await publish(store, "object", b"content")
    namenode.inodes["/root/object"].length = 3
    real = namenode.get_file_info

    def longer(path: str) -> Any:
        found = real(path)
        found.length = 7
        return found

    namenode.get_file_info = longer
    with pytest.raises(Transient, match="changes all the time"):
        async with store.open("object"):
            pass
    assert hdfs._SETTLE_S <= clock.now_s < hdfs._SETTLE_S + 1


async def test_what_is_replaced_while_it_is_opened_is_opened_again(
    namenode: Any, store: HdfsStore, clock: FakeTime
) -> None:
    await publish(store, "object", b"first")
    await publish(store, "new", b"other")
    real = namenode.read

    def replaced(path: str) -> Any:
        reader = real(path)
        if "/root/new" in namenode.inodes:
            namenode.rename("/root/new", "/root/object", True)
        return reader

    namenode.read = replaced
    async with store.open("object") as reader:
        assert await reader.pread(0, 99) == b"other"
    assert clock.slept == []


# Reading


def away(namenode: Any, *operations: str, times: float = math.inf) -> None:
    """Have operations fail, so often."""
    left = times

    def fail(operation: str, path: str) -> None:
        nonlocal left
        if operation in operations and left > 0:
            left -= 1
            raise RuntimeError("Connection reset")

    namenode.before = fail


async def test_a_failed_read_of_what_is_still_there_may_pass(
    namenode: Any, store: HdfsStore
) -> None:
    """Also where the NameNode cannot say just now whether it is there."""
    await publish(store, "object", b"1")
    async with store.open("object") as reader:
        for operations in (("read_range",), ("read_range", "get_file_info")):
            away(namenode, *operations)
            with pytest.raises(Transient, match=r"read 'object'.*Connection reset"):
                await reader.pread(0, 1)


async def test_nothing_is_asked_for_nothing(namenode: Any, store: HdfsStore) -> None:
    """But a read of nothing can be cancelled as any other."""
    await publish(store, "object", b"1")
    async with store.open("object") as reader:
        assert await reader.pread(1, 5) == b""
        with trio.CancelScope() as scope:
            scope.cancel()
            await reader.pread(1, 5)
        assert scope.cancelled_caught
    assert namenode.asked("read_range") == []


# Writing


async def leave(store: HdfsStore, how: str) -> None:
    """Leave a file that is not committed."""
    with trio.CancelScope() as scope:
        async with store.create("object") as writer:
            await writer.write(b"1")
            if how == "cancel":
                scope.cancel()
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["leave", "cancel"])
async def test_what_was_not_committed_is_deleted(namenode: Any, store: HdfsStore, how: str) -> None:
    await leave(store, how)
    assert namenode.temporaries() == []
    assert len(namenode.asked("delete")) == 1


async def test_what_could_not_be_committed_is_deleted(namenode: Any, store: HdfsStore) -> None:
    await publish(store, "object", b"1")
    async with store.create("object", overwrite=False) as writer:
        with pytest.raises(Conflict):
            await writer.commit()
    assert namenode.temporaries() == []


async def test_nothing_is_deleted_after_a_commit(namenode: Any, store: HdfsStore) -> None:
    await publish(store, "object", b"1")
    assert namenode.asked("delete") == []


async def test_a_file_that_cannot_be_deleted_is_left(namenode: Any, store: HdfsStore) -> None:
    away(namenode, "delete")
    await leave(store, "leave")
    assert len(namenode.temporaries()) == 1


class Stuck:
    """An operation that does not go on before `release`."""

    def __init__(self, namenode: Any, operation: str) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self._operation = operation
        self._others = namenode.before
        namenode.before = self._before

    def _before(self, operation: str, path: str) -> None:
        self._others(operation, path)
        if operation == self._operation:
            self.entered.set()
            self.release.wait(10)

    async def cancel(self, scope: trio.CancelScope) -> None:
        await trio.to_thread.run_sync(self.entered.wait, 10)
        scope.cancel()


async def test_what_is_made_only_after_its_writer_has_gone_is_deleted(namenode: Any) -> None:
    threads = trio.CapacityLimiter(2)
    store = at("/root", threads=threads)
    stuck = Stuck(namenode, "create")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stuck.cancel, nursery.cancel_scope)
        await publish(store, "object", b"1")
    stuck.release.set()
    for left in range(2):
        await threads.acquire_on_behalf_of(left)
    assert len(namenode.asked("create")) == 1
    assert namenode.temporaries() == []


async def test_a_commit_that_was_left_behind_replaces_nothing(
    namenode: Any, store: HdfsStore
) -> None:
    await publish(store, "object", b"old")
    away(namenode, "delete")
    stuck = Stuck(namenode, "close")
    async with trio.open_nursery() as nursery, store.create("object") as writer:
        nursery.start_soon(stuck.cancel, nursery.cancel_scope)
        await writer.commit()
    stuck.release.set()
    await writer.file._thread.acquire()  # type: ignore[attr-defined]
    assert len(namenode.asked("rename")) == 1
    assert await read_all(store, "object", 3) == b"old"


# Growing


async def test_a_file_that_was_finished_is_not_ended_again(namenode: Any, store: HdfsStore) -> None:
    async with store.append("log") as appender:
        await appender.finish()
    assert await read_all(store, "log", 0) == b""
    assert namenode.asked("recover_lease") == []


@pytest.mark.parametrize("how", ["leave", "cancel"])
async def test_a_file_that_was_left_is_ended(namenode: Any, store: HdfsStore, how: str) -> None:
    answers = [False, False, True]
    real = namenode.recover_lease
    namenode.recover_lease = lambda path: real(path) and answers.pop(0)
    with trio.CancelScope() as scope:
        async with store.append("log") as appender:
            await appender.write(b"synced")
            if how == "cancel":
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert namenode.asked("recover_lease") == ["/root/log"] * 3
    assert await read_all(store, "log", 6) == b"synced"
    assert len(namenode.asked("recover_lease")) == 3


async def test_a_file_that_could_not_be_ended_is_before_it_is_read(
    namenode: Any, store: HdfsStore
) -> None:
    away(namenode, "recover_lease", times=1)
    async with store.append("log"):
        pass
    assert namenode.asked("recover_lease") == []
    assert await read_all(store, "log", 0) == b""
    assert await read_all(store, "log", 0) == b""
    assert namenode.asked("recover_lease") == ["/root/log"]


async def test_a_file_that_has_not_ended_is_to_be_ended_again(
    namenode: Any, store: HdfsStore
) -> None:
    away(namenode, "recover_lease", times=1)
    async with store.append("log"):
        pass
    real, answers = namenode.recover_lease, [False, True]
    namenode.recover_lease = lambda path: real(path) and answers.pop(0)
    for _ in range(3):
        await read_all(store, "log", 0)
    assert namenode.asked("recover_lease") == ["/root/log"] * 2


async def test_a_file_of_the_same_name_is_not_ended(namenode: Any, store: HdfsStore) -> None:
    """It would be taken from its writer."""
    away(namenode, "recover_lease", times=1)
    async with store.append("log"):
        pass
    await store.delete("log")
    async with store.append("log") as appender:
        await appender.write(b"first")
        assert await read_all(store, "log", 5) == b"first"
        await appender.write(b"second")
        await appender.finish()
    assert await read_all(store, "log", 11) == b"firstsecond"


# What goes meanwhile


@pytest.mark.parametrize("operation", ["delete", "delete_tree"])
async def test_what_is_gone_before_it_can_be_deleted_is_not_found(
    namenode: Any, store: HdfsStore, operation: str
) -> None:
    await publish(store, "object", b"1")
    namenode.delete = lambda path, recursive: False
    with pytest.raises(NotFound, match=r"delete .*'object'"):
        await getattr(store, operation)("object")


# Reaping


async def test_what_was_begun_long_enough_ago_is_reaped(
    namenode: Any, store: HdfsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the millisecond, at any depth, and below the folder that is asked for."""
    options = store._write_options(None, None, None)
    old, new = 1_000_000_000, 1_000_000_001
    for name, ms in (("a/b", old), ("a/c", new), ("d", old)):
        path = f"/root/{name}/.bootseer-tmp-x"
        await store.mkdir(name)
        namenode.create(path, options)
        namenode.inodes[path].modification_time = ms
    await publish(store, "a/b/object", b"1")
    await store.set_mtime("a/b/object", 0)
    now_ns = (old + 2000) * 1_000_000
    monkeypatch.setattr(hdfs, "time", SimpleNamespace(time_ns=lambda: now_ns))
    assert await store.reap_temporaries(2, "a") == 1
    assert await store.reap_temporaries(2, "a") == 0
    assert namenode.temporaries() == ["/root/a/c/.bootseer-tmp-x", "/root/d/.bootseer-tmp-x"]
    assert await store.reap_temporaries(1.999) == 2
    assert await store.stat("a/b/object")
    assert await store.reap_temporaries(0, "missing") == 0


# What is asked over HTTP


async def test_space_and_places_are_asked_of_the_namenodes(
    store: HdfsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.namenode.http-address</name><value>0.0.0.0:5</value>"
        "</property></configuration>"
    )
    store = at("/root", options=HdfsOptions(str(tmp_path)))
    places = [BlockLocation(0, 1, ("here",))]

    def space(addresses: Sequence[tuple[str, int]]) -> StoreSpace:
        assert addresses == [("namenode", 5)]
        return StoreSpace(2, 1)

    def block_locations(addresses: Sequence[tuple[str, int]], path: str) -> list[BlockLocation]:
        assert (addresses, path) == ([("namenode", 5)], "/root/object")
        return places

    monkeypatch.setattr(webhdfs, "space", space)
    monkeypatch.setattr(webhdfs, "block_locations", block_locations)
    assert await store.space() == StoreSpace(2, 1)
    assert await store.block_locations("object") == places


async def test_where_nobody_says_how_much_room_there_is(
    store: HdfsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(addresses: object) -> StoreSpace:
        raise Unavailable("no NameNode")

    monkeypatch.setattr(webhdfs, "space", refuse)
    assert await store.space() == StoreSpace(None, None)

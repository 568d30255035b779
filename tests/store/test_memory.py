"""What is special about the store in memory: its tasks take turns between checkpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from bootseer.errors import ConfigError
from bootseer.store.api.base import Capabilities, StoreSpace, publish
from bootseer.store.memory import MemoryStore

S_NS = 1_000_000_000


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_says_what_it_can_do(store: MemoryStore) -> None:
    assert store.capabilities == Capabilities(
        atomic_rename=True,
        replication=False,
        attributes=True,
        append=True,
        exclusive=True,
        snapshots=True,
    )


async def test_counts_nothing_and_leaves_nothing(store: MemoryStore) -> None:
    assert await store.space() == StoreSpace(None, None)
    async with store.create("object") as writer:
        await writer.write(b"1")
    assert await store.reap_temporaries(0) == 0
    with pytest.raises(ConfigError):
        await store.reap_temporaries(0, "../other")


async def test_objects_and_folders_have_the_modes_of_most_users(store: MemoryStore) -> None:
    await publish(store, "folder/object", b"")
    assert (await store.stat("folder")).mode == 0o755
    assert (await store.stat("folder/object")).mode == 0o644


async def test_a_folder_is_as_old_as_the_last_tree_that_went_from_it(store: MemoryStore) -> None:
    await publish(store, "folder/inner/object", b"1")
    await store.set_mtime("folder", S_NS)
    await store.delete_tree("folder/inner")
    assert (await store.stat("folder")).mtime_ns > S_NS


async def test_what_is_overwritten_leaves_its_folder_as_old_as_it_was(store: MemoryStore) -> None:
    await publish(store, "folder/object", b"1")
    await store.set_mtime("folder", S_NS)
    await publish(store, "folder/object", b"2")
    assert (await store.stat("folder")).mtime_ns == S_NS


async def opened(store: MemoryStore) -> None:
    async with store.open("object"):
        pass


async def created(store: MemoryStore) -> None:
    async with store.create("new"):
        pass


async def appended(store: MemoryStore) -> None:
    async with store.append("new"):
        pass


async def refuse_copies(store: MemoryStore) -> None:
    await store.set_replication("object", 2)


@pytest.mark.parametrize(
    "operation",
    [
        lambda store: store.stat("object"),
        lambda store: store.list(),
        opened,
        created,
        appended,
        lambda store: store.rename("object", "other"),
        lambda store: store.delete("object"),
        lambda store: store.delete_tree("object"),
        lambda store: store.mkdir("new"),
        lambda store: store.set_mode("object", 0o600),
        lambda store: store.set_mtime("object", 0),
        refuse_copies,
        lambda store: store.space(),
        lambda store: store.reap_temporaries(0),
    ],
)
async def test_an_operation_that_is_cancelled_does_nothing(
    store: MemoryStore, operation: Callable[[MemoryStore], Awaitable[Any]]
) -> None:
    await publish(store, "object", b"1")
    before = await store.list()
    with trio.CancelScope() as scope:
        scope.cancel()
        await operation(store)
    assert scope.cancelled_caught
    after = await store.list()
    assert [(info, info.mode) for info in after] == [(info, info.mode) for info in before]


@pytest.mark.parametrize("step", ["pread", "write", "commit", "append", "sync", "finish"])
async def test_a_step_that_is_cancelled_does_nothing(store: MemoryStore, step: str) -> None:
    await publish(store, "object", b"1")
    async with (
        store.open("object") as reader,
        store.create("new") as writer,
        store.append("log") as appender,
    ):
        await appender.write(b"1")
        steps: dict[str, Callable[[], Awaitable[Any]]] = {
            "pread": lambda: reader.pread(0, 1),
            "write": lambda: writer.write(b"1"),
            "commit": writer.commit,
            "append": lambda: appender.write(b"1"),
            "sync": appender.sync,
            "finish": appender.finish,
        }
        with trio.CancelScope() as scope:
            scope.cancel()
            await steps[step]()
        assert scope.cancelled_caught
    assert [(info.name, info.size_bytes) for info in await store.list()] == [
        ("log", 0),
        ("object", 1),
    ]

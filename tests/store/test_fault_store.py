"""Fakes are verified too: each fault store fails in its way and in no other."""

import pytest
import trio
from trio.testing import MockClock

from bootseer.errors import Denied, NotFound, Transient, Unavailable
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import (
    FlakyStore,
    FullStore,
    HangingStore,
    MissingStore,
    ReadOnlyStore,
    SlowStore,
    TornStore,
    every,
    flip_bit,
)


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


async def test_flaky_fails_before_or_after_the_operation(memory: MemoryStore) -> None:
    flaky = FlakyStore(memory, every(2))
    await flaky.mkdir("a")
    with pytest.raises(Transient):
        await flaky.mkdir("b")
    with pytest.raises(Transient):
        await FlakyStore(memory, every(1), late=True).mkdir("c")
    assert flaky.calls == [("mkdir", "a"), ("mkdir", "b")]
    assert [info.name for info in await memory.list()] == ["a", "c"]


async def test_slow_takes_its_time(memory: MemoryStore, autojump_clock: MockClock) -> None:
    store = SlowStore(memory, 2.0)
    await publish(store, "a", b"1")
    assert await read_all(store, "a", 1) == b"1"
    assert trio.current_time() == 10


async def test_hanging_hangs_where_told(memory: MemoryStore, autojump_clock: MockClock) -> None:
    store = HangingStore(memory, {"stat"})
    await publish(store, "a", b"1")
    with trio.move_on_after(1000) as scope:
        await store.stat("a")
    assert scope.cancelled_caught


async def test_read_only_denies_changes(memory: MemoryStore) -> None:
    await publish(memory, "a", b"1")
    store = ReadOnlyStore(memory)
    assert await read_all(store, "a", 1) == b"1"
    with pytest.raises(Denied):
        await publish(store, "a", b"2")
    with pytest.raises(Denied):
        await store.rename("a", "b")
    with pytest.raises(Denied):
        await store.delete("a")
    with pytest.raises(Denied):
        await store.mkdir("b")
    with pytest.raises(Denied):
        await store.delete_tree("a")
    with pytest.raises(Denied):
        await store.set_mode("a", 0o600)
    with pytest.raises(Denied):
        await store.set_mtime("a", 0)
    assert [info.name for info in await memory.list()] == ["a"]


async def test_missing_has_lost_objects(memory: MemoryStore) -> None:
    store = MissingStore(memory, lambda name: name == "a")
    await publish(store, "a", b"1")
    await publish(store, "b", b"1")
    with pytest.raises(NotFound):
        await read_all(store, "a", 1)
    with pytest.raises(NotFound):
        await store.delete_tree("a")
    assert await read_all(store, "b", 1) == b"1"
    assert [info.name for info in await store.list()] == ["b"]
    assert await MissingStore(memory).list() == []


async def test_full_has_room_for_so_much(memory: MemoryStore) -> None:
    store = FullStore(memory, 10)
    await publish(store, "a", bytes(6))
    with pytest.raises(Unavailable, match="no space"):
        await publish(store, "b", bytes(6))
    await publish(store, "c", bytes(4))
    assert [info.name for info in await memory.list()] == ["a", "c"]


async def test_torn_stores_something_else(memory: MemoryStore) -> None:
    await publish(TornStore(memory), "half", b"12345678")
    await publish(TornStore(memory, flip_bit), "flipped", b"12345678")
    assert await read_all(memory, "half", 8) == b"1234"
    assert await read_all(memory, "flipped", 8) == b"12344678"

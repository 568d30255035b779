from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from trio.testing import MockClock

from bootseer.errors import Closed, Transient, Unavailable
from bootseer.store.api.base import BlockLocation, Store, publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.limit import LimitStore
from bootseer.testing.fault_store import HangingStore, SlowStore
from bootseer.units import MIB


def limited(inner: Store, deadline_s: float = 3.0, operations: int = 4) -> LimitStore:
    return LimitStore(inner, deadline_s=deadline_s, operations=trio.CapacityLimiter(operations))


async def write(store: Store) -> None:
    await publish(store, "folder/object", b"1")


async def read(store: Store) -> None:
    await read_all(store, "folder/object", 1)


class PlacingStore(MemoryStore):
    """Knows where its objects are."""

    async def block_locations(self, name: str) -> Sequence[BlockLocation]:
        return [BlockLocation(0, 1, ("here",))]


async def located(store: LimitStore) -> None:
    await store.block_locations("folder/object")


@pytest.mark.parametrize(
    ("operation", "name", "call"),
    [
        ("stat", "folder/object", lambda store: store.stat("folder/object")),
        ("list", "folder", lambda store: store.list("folder")),
        ("open", "folder/object", read),
        ("pread", "folder/object", read),
        ("create", "folder/object", write),
        ("write", "folder/object", write),
        ("commit", "folder/object", write),
        ("rename", "folder/object", lambda store: store.rename("folder/object", "b")),
        ("delete", "folder/object", lambda store: store.delete("folder/object")),
        ("delete_tree", "folder", lambda store: store.delete_tree("folder")),
        ("mkdir", "new", lambda store: store.mkdir("new")),
        ("set_mode", "folder", lambda store: store.set_mode("folder", 0o700)),
        ("set_mtime", "folder", lambda store: store.set_mtime("folder", 0)),
        ("space", "", lambda store: store.space()),
        ("block_locations", "folder/object", located),
        ("set_replication", "folder", lambda store: store.set_replication("folder", 2)),
        ("reap_temporaries", "", lambda store: store.reap_temporaries(1)),
    ],
)
async def test_every_operation_has_a_deadline(
    autojump_clock: MockClock,
    operation: str,
    name: str,
    call: Callable[[Store], Awaitable[object]],
) -> None:
    inner = PlacingStore()
    await write(inner)
    start = trio.current_time()
    with pytest.raises(Transient, match=f"cannot {operation} '{name}' in memory:.* within 3 s"):
        await call(limited(HangingStore(inner, {operation})))
    assert trio.current_time() - start == pytest.approx(3, abs=0.001), "and a byte's time"


@pytest.mark.parametrize(("mib", "deadline_s"), [(0, 3), (1, 11), (4, 35)])
async def test_reads_of_many_bytes_have_more_time(
    autojump_clock: MockClock, mib: int, deadline_s: int
) -> None:
    inner = MemoryStore()
    await publish(inner, "object", bytes(mib * MIB))
    async with limited(HangingStore(inner, {"pread"})).open("object") as reader:
        with pytest.raises(Transient, match=f"within {deadline_s} s"):
            await reader.pread(0, mib * MIB)
    assert trio.current_time() == deadline_s


async def test_a_write_has_no_more_time_for_its_bytes(autojump_clock: MockClock) -> None:
    """Nothing else notices a machine that is silent in the midst of it."""
    with pytest.raises(Transient, match=r"cannot write .* within 3 s"):
        await publish(limited(HangingStore(MemoryStore(), {"write"})), "object", bytes(4 * MIB))
    assert trio.current_time() == 3


async def test_places_are_told_by_stores_that_know_them() -> None:
    assert await limited(PlacingStore()).block_locations("a") == [BlockLocation(0, 1, ("here",))]
    with pytest.raises(Unavailable, match="memory: does not tell where 'a'"):
        await limited(MemoryStore()).block_locations("a")


async def test_each_operation_has_the_whole_deadline(
    autojump_clock: MockClock,
) -> None:
    store = limited(SlowStore(MemoryStore(), 2))
    await publish(store, "object", b"1")
    assert await read_all(store, "object", 1) == b"1"
    assert trio.current_time() >= 10


async def test_a_write_past_its_deadline_ends_the_writer(
    autojump_clock: MockClock,
) -> None:
    memory = MemoryStore()
    async with limited(HangingStore(memory, {"write"})).create("object") as writer:
        with pytest.raises(Transient):
            await writer.write(b"1")
    assert await memory.list() == []


async def test_so_many_operations_at_once(autojump_clock: MockClock) -> None:
    store = limited(SlowStore(MemoryStore(), 2), operations=3)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(store.list)
    assert trio.current_time() - start == 8


async def test_waiting_for_others_is_not_held_against_an_operation(
    autojump_clock: MockClock,
) -> None:
    store = limited(SlowStore(MemoryStore(), 2), deadline_s=3, operations=1)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(store.list)
    assert trio.current_time() >= 10


async def test_the_callers_own_deadline_is_not_swallowed(
    autojump_clock: MockClock,
) -> None:
    with trio.move_on_after(1) as scope:
        await limited(HangingStore(MemoryStore())).list()
    assert scope.cancelled_caught


async def test_an_open_object_holds_no_place(autojump_clock: MockClock) -> None:
    store = limited(MemoryStore(), operations=1)
    await publish(store, "object", b"1")
    async with store.open("object") as one, store.open("object") as two:
        assert await one.pread(0, 1) == await two.pread(0, 1)
    with pytest.raises(Closed):
        await one.pread(0, 1)

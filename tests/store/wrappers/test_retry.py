from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from bootseer.errors import Closed, Conflict, Denied, NotFound, Transient
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.backoff import Backoff
from bootseer.store.wrappers.base import WrappedStore
from bootseer.store.wrappers.limit import LimitStore
from bootseer.store.wrappers.retry import RetryStore
from bootseer.testing.fault_store import (
    FlakyStore,
    HangingStore,
    OpenCountingStore,
    ReadOnlyStore,
    every,
    first,
)

T = TypeVar("T")

CONTENT = bytes(range(200))


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


# Backoff


@given(st.floats(0, 3600))
def test_one_that_lasts_does_not_give_up_before(seconds: float) -> None:
    backoff = Backoff.lasting(seconds)
    shortest_s = sum(
        min(backoff.longest_s, backoff.first_s * 2.0 ** min(n, 30)) / 2
        for n in range(backoff.attempts - 1)
    )
    assert shortest_s >= seconds - 1e-6


@pytest.mark.parametrize(("seconds", "attempts"), [(0, 5), (1.56, 7), (8.15, 9), (8.16, 10)])
def test_one_that_lasts_makes_as_many_attempts_as_it_needs(seconds: float, attempts: int) -> None:
    """Where each pause is as short as it can be: 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5 s."""
    assert Backoff.lasting(seconds).attempts == attempts


def test_pauses_double() -> None:
    backoff = Backoff(first_s=1, longest_s=20)
    for attempt, whole_s in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 20)):
        assert whole_s / 2 <= backoff.pause_s(attempt) <= whole_s


@given(st.integers(1, 10_000), st.floats(0, 10), st.floats(0, 100))
def test_pauses_grow_within_bounds(attempt: int, first_s: float, longest_s: float) -> None:
    backoff = Backoff(first_s=first_s, longest_s=longest_s)
    whole = min(longest_s, first_s * 2.0 ** min(attempt - 1, 30))
    assert whole / 2 <= backoff.pause_s(attempt) <= whole


async def test_gives_up_after_so_many_attempts(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    flaky = FlakyStore(memory, every(1))
    with pytest.raises(Transient, match=r"flaky on purpose \(gave up after 4 attempts\)"):
        await RetryStore(flaky, Backoff(attempts=4, first_s=1, longest_s=2)).stat("a")
    assert flaky.calls == [("stat", "a")] * 4
    assert 2.5 <= trio.current_time() <= 5


async def test_only_passing_failures_are_repeated(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    flaky = FlakyStore(ReadOnlyStore(memory), lambda *_: False)
    with pytest.raises(NotFound):
        await RetryStore(flaky).stat("a")
    with pytest.raises(NotFound):
        await read_all(RetryStore(flaky), "a", 1)
    with pytest.raises(Denied):
        await RetryStore(flaky).mkdir("a")
    assert len(flaky.calls) == 3


async def test_a_pause_can_be_cancelled(memory: MemoryStore, autojump_clock: MockClock) -> None:
    store = RetryStore(FlakyStore(memory, every(1)), Backoff(first_s=60, longest_s=60))
    with trio.move_on_after(1) as scope:
        await store.stat("a")
    assert scope.cancelled_caught


# Reads


async def test_reads_on_from_a_fresh_reader(memory: MemoryStore, autojump_clock: MockClock) -> None:
    await publish(memory, "object", CONTENT)
    counting = OpenCountingStore(FlakyStore(memory, first(3, "pread")))
    async with RetryStore(counting).open("object") as reader:
        assert await reader.pread(10, 20) == CONTENT[10:30]
        assert counting.open_now == 1
        assert await reader.pread(100, 200) == CONTENT[100:]
        assert counting.opened == 4
    assert counting.open_now == 0
    with pytest.raises(Closed):
        await reader.pread(0, 1)


async def test_many_reads_share_what_is_opened_anew(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    await publish(memory, "object", CONTENT)
    counting = OpenCountingStore(FlakyStore(memory, every(3)))
    store = RetryStore(counting, Backoff(attempts=50))

    async def read(offset: int) -> None:
        assert await reader.pread(offset, 10) == CONTENT[offset : offset + 10]

    async with store.open("object") as reader:
        async with trio.open_nursery() as nursery:
            for offset in range(0, 200, 10):
                nursery.start_soon(read, offset)
        assert counting.open_now <= 1
    assert counting.open_now == 0


async def test_what_is_being_opened_anew_is_closed_with_the_rest(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    class Slow(WrappedStore):
        async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
            await trio.sleep(operation == "open")
            return await call()

    async def read() -> None:
        with pytest.raises(Closed):
            await reader.pread(0, 1)

    await publish(memory, "object", CONTENT)
    counting = OpenCountingStore(Slow(FlakyStore(memory, first(1, "pread"))))
    store = RetryStore(counting, Backoff(first_s=0.1))
    async with trio.open_nursery() as nursery, store.open("object") as reader:
        nursery.start_soon(read)
        await trio.sleep(0.5)
    assert (counting.opened, counting.open_now) == (2, 0)


async def test_never_mixes_versions(memory: MemoryStore, autojump_clock: MockClock) -> None:
    await publish(memory, "object", b"first")
    flaky = FlakyStore(memory, lambda count, operation, name: count == 3)
    async with RetryStore(flaky).open("object") as reader:
        assert await reader.pread(0, 2) == b"fi"
        await publish(memory, "object", b"other")
        with pytest.raises(Conflict, match="was replaced"):
            await reader.pread(2, 3)


@pytest.mark.parametrize("is_version", [False, True])
async def test_what_alone_was_known_does_not_say_which_version_is_read_on(
    memory: MemoryStore, autojump_clock: MockClock, is_version: bool
) -> None:
    """Its reader knows by the content; a version is held to all that the first opening told."""
    await publish(memory, "object", b"first")
    told = await memory.stat("object")
    known = replace(told, version="")
    store = RetryStore(FlakyStore(memory, first(1, "pread")))
    async with store.open("object", known=known, version=known if is_version else None) as reader:
        await publish(memory, "object", b"other")
        await memory.set_mtime("object", told.mtime_ns)
        if is_version:
            with pytest.raises(Conflict):
                await reader.pread(0, 5)
        else:
            assert await reader.pread(0, 5) == b"other"


async def test_what_is_of_another_length_by_now_is_not_read_on(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    await publish(memory, "object", b"first")
    counting = OpenCountingStore(FlakyStore(memory, first(1, "pread")))
    known = await memory.stat("object")
    async with RetryStore(counting).open("object", known=known) as reader:
        await publish(memory, "object", b"longer")
        with pytest.raises(Conflict, match="'object' in memory: was replaced while it was read"):
            await reader.pread(0, 5)
        assert (counting.opened, counting.open_now) == (2, 0)


async def test_a_hung_read_is_repeated_after_its_deadline(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    await publish(memory, "object", CONTENT)
    hanging = HangingStore(memory, {"pread"})
    limited = LimitStore(hanging, deadline_s=5, operations=trio.CapacityLimiter(2))

    async def recover() -> None:
        await trio.sleep(7)
        hanging.operations = ()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recover)
        assert await read_all(RetryStore(limited), "object", 200) == CONTENT
    assert 10 < trio.current_time() < 11


# Writes


async def test_what_may_not_be_made_is_refused_before_anything_is_written(
    memory: MemoryStore,
) -> None:
    with pytest.raises(Denied):
        async with RetryStore(ReadOnlyStore(memory)).create("object"):
            pass


async def test_the_object_begun_again_is_made_as_asked(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    store = RetryStore(FlakyStore(memory, first(1, "commit")))
    async with store.create("object", mode=0o400) as writer:
        await writer.commit()
    assert (await memory.stat("object")).mode == 0o400


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("operation", ["create", "write", "commit"])
@pytest.mark.parametrize("overwrite", [True, False])
async def test_begins_the_object_again(
    memory: MemoryStore, operation: str, overwrite: bool, late: bool, autojump_clock: MockClock
) -> None:
    """Whether the failed step was carried out or not, the object is whole and written once."""
    flaky = FlakyStore(memory, first(2, operation), late=late)
    async with RetryStore(flaky).create("object", overwrite=overwrite) as writer:
        for start in range(0, 200, 50):
            await writer.write(CONTENT[start : start + 50])
        await writer.commit()
    assert await read_all(memory, "object", 200) == CONTENT


async def test_a_buffer_that_is_used_again_is_replayed_as_it_was(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    buffer = bytearray(b"one")
    async with RetryStore(FlakyStore(memory, first(1, "commit"))).create("object") as writer:
        await writer.write(buffer)
        buffer[:] = b"two"
        await writer.write(buffer)
        await writer.commit()
    assert await read_all(memory, "object", 6) == b"onetwo"


@pytest.mark.parametrize(
    ("failures", "theirs"), [(1, b"hers"), (1, b"longer"), (1, b""), (0, b"mine")]
)
async def test_a_conflict_with_another_writer_stays_one(
    memory: MemoryStore, autojump_clock: MockClock, failures: int, theirs: bytes
) -> None:
    """Also after a commit whose answer was lost, if it is not what was written here."""
    flaky = FlakyStore(memory, first(failures, "commit"))
    async with RetryStore(flaky).create("object", overwrite=False) as writer:
        await writer.write(b"mine")
        await publish(memory, "object", theirs)
        with pytest.raises(Conflict):
            await writer.commit()
    assert await read_all(memory, "object", 9) == theirs


async def test_keeps_no_more_than_its_limit(memory: MemoryStore, autojump_clock: MockClock) -> None:
    flaky = FlakyStore(memory, lambda count, operation, name: False)
    async with RetryStore(flaky, replay_limit_bytes=100).create("object") as writer:
        for start in range(0, 200, 50):
            await writer.write(CONTENT[start : start + 50])
        await writer.commit()
    assert await read_all(memory, "object", 200) == CONTENT
    assert len(flaky.calls) == 6


async def test_an_object_as_long_as_the_limit_is_begun_again(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    flaky = FlakyStore(memory, first(1, "commit"))
    async with RetryStore(flaky, replay_limit_bytes=200).create("object") as writer:
        await writer.write(CONTENT[:50])
        await writer.write(CONTENT[50:])
        await writer.commit()
    assert await read_all(memory, "object", 200) == CONTENT


async def test_a_failure_beyond_the_limit_is_the_callers(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    flaky = FlakyStore(memory, first(1, "commit"))
    async with RetryStore(flaky, replay_limit_bytes=199).create("object") as writer:
        await writer.write(CONTENT)
        with pytest.raises(Transient, match=r"flaky on purpose$"):
            await writer.commit()
        with pytest.raises(Closed):
            await writer.commit()
    assert await memory.list() == []


# Changes


@pytest.mark.parametrize("late", [False, True])
async def test_repeats_changes(memory: MemoryStore, late: bool, autojump_clock: MockClock) -> None:
    await publish(memory, "a", b"1")
    await publish(memory, "folder/b", b"2")

    def flaky(operation: str) -> RetryStore:
        return RetryStore(FlakyStore(memory, first(2, operation), late=late))

    await flaky("rename").rename("a", "c")
    await flaky("rename").rename("folder", "other")
    await flaky("delete").delete("c")
    await publish(memory, "folder/c", b"3")
    await flaky("delete_tree").delete_tree("folder")
    await flaky("mkdir").mkdir("new")
    assert [info.name for info in await memory.list()] == ["new", "other"]


async def test_a_rename_that_another_one_overtook_is_not_done(
    memory: MemoryStore, autojump_clock: MockClock
) -> None:
    """The source vanished after a failed attempt, and the target is not it."""
    await publish(memory, "source", b"1")
    await publish(memory, "target", b"22")

    class Overtaken(WrappedStore):
        async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
            names = [info.name for info in await memory.list()]
            if operation == "rename" and "source" in names:
                await memory.delete("source")
                raise Transient("lost")
            return await call()

    with pytest.raises(NotFound):
        await RetryStore(Overtaken(memory)).rename("source", "target", overwrite=True)
    await memory.delete("target")
    await publish(memory, "source", b"1")
    with pytest.raises(NotFound, match="'source'"):
        await RetryStore(Overtaken(memory)).rename("source", "target")


@pytest.mark.parametrize("operation", ["delete", "delete_tree"])
async def test_what_another_has_removed_meanwhile_is_not_found(
    memory: MemoryStore, autojump_clock: MockClock, operation: str
) -> None:
    """Where no attempt has failed, it was not this one that has removed it."""
    await publish(memory, "object", b"1")

    class Overtaken(WrappedStore):
        async def around(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
            if operation != "stat":
                await memory.delete("object")
            return await call()

    with pytest.raises(NotFound):
        await getattr(RetryStore(Overtaken(memory)), operation)("object")


@pytest.mark.parametrize("operation", ["delete", "delete_tree", "rename"])
async def test_nothing_to_change_is_not_found(
    memory: MemoryStore, autojump_clock: MockClock, operation: str
) -> None:
    """Nor after an attempt that failed."""
    store = RetryStore(FlakyStore(memory, first(1, operation)))
    names = ("missing", "other") if operation == "rename" else ("missing",)
    with pytest.raises(NotFound):
        await getattr(store, operation)(*names)

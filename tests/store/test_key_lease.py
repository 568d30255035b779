"""Of all who miss something one makes it, and one who has died does not hold up the others."""

import json
import time
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from bootseer.errors import NotFound, Transient
from bootseer.store import key_lease
from bootseer.store.api.base import publish, read_all
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore

FOLDER = "env/claims/" + "ab" * 32


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "store")


async def claims(store, count):
    """The claims that so many get who try at once."""
    found = []

    async def one(number):
        mine = await key_lease.acquire(store, FOLDER, f"user {number}")
        if mine is not None:
            found.append(mine)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number)
    return found


async def numbers(store):
    return [info.name.rpartition("/")[2] for info in await store.list(FOLDER)]


async def test_of_all_who_try_at_once_one_gets_it(store):
    (mine,) = await claims(store, 20)
    assert mine.number == 1
    found = await key_lease.read_lease(store, FOLDER)
    assert (found.holder, found.token, found.is_live) == (mine.holder, mine.token, True)
    assert await claims(store, 5) == []


async def test_one_that_has_run_out_is_taken_over_once(store, monkeypatch):
    monkeypatch.setattr(key_lease, "LASTS_S", -1.0)
    await claims(store, 1)
    monkeypatch.undo()
    (mine,) = await claims(store, 20)
    assert mine.number == 2
    assert await numbers(store) == ["0001.json", "0002.json"]


async def test_another_key_is_another_claim(store):
    await claims(store, 1)
    assert await key_lease.acquire(store, "env/claims/other", "user") is not None


DAMAGE = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "another format": b'{"format": "x", "version": 1}',
    "another version": b'{"format": "bootseer lease", "version": 2}',
    "no time": b'{"format": "bootseer lease", "version": 1, "who": "", "token": ""}',
    "too long": b" " * 5000,
    "a name of two lines": json.dumps(
        {
            "format": "bootseer lease",
            "version": 1,
            "who": "a\nb",
            "token": "",
            "until_ns": 1 << 62,
        }
    ).encode(),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_one_that_is_damaged_is_free(damage):
    store = MemoryStore()
    await publish(store, f"{FOLDER}/0007.json", DAMAGE[damage])
    assert await key_lease.read_lease(store, FOLDER) == key_lease.KeyLease(7, "", "", 0)
    (mine,) = await claims(store, 5)
    assert mine.number == 8


async def test_one_that_is_let_go_while_it_is_read_is_free():
    inner = MemoryStore()
    await claims(inner, 1)

    def is_gone(count, operation, name):
        if operation == "open":
            raise NotFound("let go")
        return False

    found = await key_lease.read_lease(FlakyStore(inner, is_gone), FOLDER)
    assert found == key_lease.KeyLease(1, "", "", 0)


def test_it_has_run_out_when_its_time_has_come(monkeypatch):
    monkeypatch.setattr(key_lease, "time", SimpleNamespace(time_ns=lambda: 1000))
    found = [key_lease.KeyLease(1, "user", "", until_ns).is_live for until_ns in (999, 1000, 1001)]
    assert found == [False, False, True]


async def test_what_is_no_claim_does_not_count():
    store = MemoryStore()
    await publish(store, f"{FOLDER}/note.txt", b"")
    await publish(store, f"{FOLDER}/-1.json", b"")
    (mine,) = await claims(store, 1)
    assert mine.number == 1


async def test_it_is_kept_up_and_let_go(store, nursery, monkeypatch):
    monkeypatch.setattr(key_lease, "_RENEW_S", 0.01)
    monkeypatch.setattr(key_lease, "LASTS_S", 5.0)
    (mine,) = await claims(store, 1)
    async with key_lease.held(store, FOLDER, mine, nursery):
        first = await key_lease.read_lease(store, FOLDER)
        assert first.token == mine.token
        with trio.fail_after(5):
            while (await key_lease.read_lease(store, FOLDER)).until_ns == first.until_ns:
                await trio.sleep(0.01)
        assert await claims(store, 3) == []
    assert await store.list("env/claims") == []
    assert len(await claims(store, 3)) == 1


@pytest.mark.parametrize("how", [ValueError, trio.Cancelled])
async def test_it_is_let_go_however_the_block_ends(store, nursery, how):
    (mine,) = await claims(store, 1)
    if how is ValueError:
        with pytest.raises(ValueError, match="it failed"):
            async with key_lease.held(store, FOLDER, mine, nursery):
                raise ValueError("it failed")
    else:
        with trio.move_on_after(0.01):
            async with key_lease.held(store, FOLDER, mine, nursery):
                await trio.sleep_forever()
    assert await store.list("env/claims") == []


class Slow(FlakyStore):
    """Takes a while to write, and says in which order what has been done."""

    def __init__(self, inner):
        super().__init__(inner, lambda *_: False)
        self.done = []
        self.begun, self.goes_on = trio.Event(), trio.Event()

    async def around(self, operation, name, call):
        if operation == "commit":
            self.begun.set()
            await self.goes_on.wait()
        found = await super().around(operation, name, call)
        if operation in ("commit", "delete"):
            self.done.append((operation, name))
        return found


async def test_what_keeps_it_up_has_arrived_before_it_is_let_go(nursery, monkeypatch):
    monkeypatch.setattr(key_lease, "_RENEW_S", 0.0)
    inner = MemoryStore()
    (mine,) = await claims(inner, 1)
    slow = Slow(inner)

    async def go_on():
        await trio.testing.wait_all_tasks_blocked()
        slow.goes_on.set()

    async with key_lease.held(slow, FOLDER, mine, nursery):
        await slow.begun.wait()
        monkeypatch.setattr(key_lease, "_RENEW_S", 60.0)
        nursery.start_soon(go_on)
    name = f"{FOLDER}/0001.json"
    assert slow.done[:2] == [("commit", name), ("delete", name)]


async def test_it_is_kept_up_now_and_then(autojump_clock, nursery):
    """Often enough that one or two may be late."""
    watched = FlakyStore(MemoryStore(), lambda *_: False)
    (mine,) = await claims(watched, 1)
    async with key_lease.held(watched, FOLDER, mine, nursery):
        await trio.sleep(key_lease.LASTS_S + 1)
    commits = [operation for operation, _ in watched.calls].count("commit")
    assert 3 <= commits <= 10


async def test_one_that_was_taken_over_is_left_to_who_has_it_now(nursery, monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(key_lease, "LASTS_S", -1.0)
    (slow,) = await claims(store, 1)
    async with key_lease.held(store, FOLDER, slow, nursery):
        monkeypatch.setattr(key_lease, "LASTS_S", 60.0)
        (mine,) = await claims(store, 1)
    found = await key_lease.read_lease(store, FOLDER)
    assert found.token == mine.token
    assert found.is_live


async def test_a_store_that_fails_in_passing_does_not_end_it(nursery, monkeypatch):
    monkeypatch.setattr(key_lease, "_RENEW_S", 0.01)
    inner = MemoryStore()
    (mine,) = await claims(inner, 1)
    failing = FlakyStore(inner, lambda *_: True)
    async with key_lease.held(failing, FOLDER, mine, nursery):
        with trio.fail_after(5):
            while len(failing.calls) < 3:
                await trio.sleep(0.01)
    assert (await key_lease.read_lease(inner, FOLDER)).token == mine.token  # until it runs out
    with pytest.raises(Transient):
        await key_lease.acquire(failing, FOLDER, "user")


async def test_a_claim_says_who_has_it_and_until_when():
    store = MemoryStore()
    before = time.time_ns()
    await key_lease.acquire(store, FOLDER, "user on node")
    document = json.loads(await read_all(store, f"{FOLDER}/0001.json", 4096))
    assert document.pop("until_ns") - before >= key_lease.LASTS_S * 10**9
    assert len(document.pop("token")) == 16
    assert document == {"format": "bootseer lease", "version": 1, "who": "user on node"}


@given(st.lists(st.sampled_from(["try", "let go", "run out", "damage"]), max_size=30))
@settings(deadline=None, max_examples=60)
def test_never_more_than_one_has_it(steps):
    async def main():
        store = MemoryStore()
        mine = None
        for step in steps:
            if step == "try":
                found = await claims(store, 3)
                assert len(found) == (0 if mine else 1)
                mine = mine or found[0]
            elif mine:
                name = f"{FOLDER}/{mine.number:04}.json"
                if step == "let go":
                    async with (
                        trio.open_nursery() as nursery,
                        key_lease.held(store, FOLDER, mine, nursery),
                    ):
                        pass
                elif step == "damage":
                    await publish(store, name, b"{")
                else:
                    old = key_lease.LASTS_S
                    key_lease.LASTS_S = -1.0
                    try:
                        await publish(store, name, key_lease._encoded(mine))
                    finally:
                        key_lease.LASTS_S = old
                mine = None

    trio.run(main)


async def test_who_waits_for_the_end_of_a_lease_asks_with_stats_only(nursery, autojump_clock):
    store = MemoryStore()
    watched = FlakyStore(store, lambda *_: False)
    lease = await key_lease.acquire(store, FOLDER, "alice on n1")
    pauses = key_lease.pauses(2, 1.0, 5.0)

    async def hold():
        async with key_lease.held(store, FOLDER, lease, nursery):
            await trio.sleep(300)

    nursery.start_soon(hold)
    assert await key_lease.wait_for_end(watched, FOLDER, lease, pauses)
    assert 300 <= trio.current_time() <= 306
    assert {operation for operation, _ in watched.calls} == {"stat"}
    assert 60 <= len(watched.calls) <= 130


async def test_nobody_waits_for_a_holder_that_has_died(autojump_clock):
    store = MemoryStore()
    lease = await key_lease.acquire(store, FOLDER, "alice on n1")
    pauses = key_lease.pauses(2, 1.0, 5.0)
    assert not await key_lease.wait_for_end(store, FOLDER, lease, pauses)
    assert key_lease.LASTS_S <= trio.current_time() <= key_lease.LASTS_S + 11

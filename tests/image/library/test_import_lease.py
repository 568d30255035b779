"""One node imports, the others wait, and none waits for what does not come."""

import collections
import os

import pytest
import trio
import trio.testing

from bootseer.errors import NotFound, Transient
from bootseer.image.library import catalog
from bootseer.image.library.import_lease import (
    ANNOUNCE_S,
    FOLDER,
    JobImport,
    announced,
    until_slow,
    wait_for_import,
)
from bootseer.image.library.upload import UploadProgress
from bootseer.store import key_lease
from bootseer.store.api.base import publish
from bootseer.store.local.store import LocalStore
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore

NAME = "docker://registry#image:tag"
DIGEST = "ab" * 32
HOLDER = "alice on n1"


@pytest.fixture
def shared():
    """An import as one of two nodes sees it; all calls of its stores are counted."""
    leases = FlakyStore(MemoryStore(), lambda *_: False)
    images = FlakyStore(MemoryStore(), lambda *_: False)
    return JobImport("c.7", NAME, leases, images)


async def import_it(shared, takes_s, *, begins_s=0.0, fails=False):
    """Import as the step's first node does."""
    await trio.sleep(begins_s)
    # As another process, whose calls do not count.
    shared = JobImport(shared.run, shared.image, shared.leases._inner, shared.images._inner)
    async with trio.open_nursery() as nursery, announced(shared, HOLDER, nursery):
        await trio.sleep(takes_s)
        if not fails:
            await catalog.give_name(shared.images, NAME, DIGEST, 7)


async def wait(shared, nodes=2, limit_s=900.0):
    """Wait; returns the result, and for how long."""
    began = trio.current_time()
    result = await wait_for_import(shared, nodes, limit_s)
    return result, trio.current_time() - began


@pytest.mark.parametrize("takes_s", [0.1, 2.0, 20.0, 300.0])
async def test_a_node_waits_until_the_image_is_in_the_store(
    shared, nursery, autojump_clock, takes_s
):
    nursery.start_soon(import_it, shared, takes_s)
    result, took_s = await wait(shared)
    assert result.why == "" and takes_s <= took_s <= takes_s + 6
    assert result.holder == (HOLDER if takes_s > 1 else "")


async def test_a_first_node_that_begins_late_is_waited_for(shared, nursery, autojump_clock):
    nursery.start_soon(lambda: import_it(shared, 60, begins_s=ANNOUNCE_S / 2))
    result, took_s = await wait(shared)
    assert (result.holder, result.why) == (HOLDER, "") and took_s > 60


async def test_a_failed_import_ends_the_wait(shared, nursery, autojump_clock):
    nursery.start_soon(lambda: import_it(shared, 30, fails=True))
    result, took_s = await wait(shared)
    assert f"{HOLDER} has not added it to the store" in result.why and 30 <= took_s <= 36


async def test_no_announcement_ends_the_wait(shared, autojump_clock):
    result, took_s = await wait(shared)
    assert (result.holder, "no other node has announced" in result.why) == ("", True)
    assert took_s <= ANNOUNCE_S
    assert len(shared.leases.calls) <= 5


async def test_a_node_that_dies_ends_the_wait(shared, autojump_clock):
    await key_lease.acquire(shared.leases, shared.folder, HOLDER)
    result, took_s = await wait(shared)
    assert result.why == f"{HOLDER} has stopped importing it"
    assert key_lease.LASTS_S < took_s < key_lease.LASTS_S + 15


async def test_the_wait_has_a_limit(shared, nursery, autojump_clock):
    nursery.start_soon(import_it, shared, 200)
    result, took_s = await wait(shared, limit_s=50)
    assert result.why == "waited the longest time allowed, 50 s" and took_s == 50


async def test_an_image_that_comes_though_its_node_died_is_found(shared, autojump_clock):
    await key_lease.acquire(shared.leases, shared.folder, HOLDER)
    await catalog.give_name(shared.images, NAME, DIGEST, 7)
    result, _ = await wait(shared)
    assert result.why == ""


async def test_an_old_lease_is_no_announcement(shared, monkeypatch, autojump_clock):
    monkeypatch.setattr(key_lease, "LASTS_S", -1.0)
    await key_lease.acquire(shared.leases, shared.folder, HOLDER)
    result, took_s = await wait(shared)
    assert "no other node has announced" in result.why and took_s <= ANNOUNCE_S


@pytest.mark.parametrize("operation", ["list", "open", "stat"])
async def test_a_store_that_fails_ends_the_wait(shared, nursery, autojump_clock, operation):
    nursery.start_soon(import_it, shared, 100)
    failing = FlakyStore(shared.leases, lambda _count, name, _object: name == operation)
    result, took_s = await wait(JobImport(shared.run, NAME, failing, shared.images))
    assert "cannot find out" in result.why and "flaky on purpose" in result.why
    assert took_s < 6


async def test_each_poll_is_one_stat(shared, nursery, autojump_clock):
    nursery.start_soon(import_it, shared, 300)
    await wait(shared)
    calls = collections.Counter(operation for operation, _ in shared.leases.calls)
    assert calls.pop("pread") == calls["open"] == calls["list"] == 1
    assert set(calls) == {"list", "open", "stat"}
    assert 60 <= calls["stat"] <= 130
    assert [operation for operation, _ in shared.images.calls] == ["open", "pread"]


async def test_a_node_of_many_polls_seldom(shared, nursery, autojump_clock):
    nursery.start_soon(import_it, shared, 300)
    result, took_s = await wait(shared, nodes=16_384)
    assert result.why == "" and took_s <= 330
    assert len(shared.leases.calls) + len(shared.images.calls) <= 25


@pytest.mark.parametrize("nodes", [2, 100, 1000, 16_384])
def test_many_nodes_do_not_ask_in_the_same_second(nodes):
    seconds = collections.Counter()
    for _ in range(nodes):
        at, backoff = 0.0, key_lease.pauses(nodes, 1.0, 5.0)
        for attempt in range(1, 20):
            at += backoff.pause_s(attempt)
            seconds[int(at)] += 1
    # The first look is a list and the reading of a lease.
    assert max(seconds.values()) <= 2300


async def test_only_one_step_of_a_job_announces_an_image(shared, nursery):
    async with announced(shared, HOLDER, nursery):
        with pytest.raises(NotFound, match="another step"):
            async with announced(shared, "alice on n3", nursery):
                raise AssertionError
        other = JobImport("c.8", NAME, shared.leases, shared.images)
        async with announced(other, HOLDER, nursery):
            assert len(await shared.leases.list(FOLDER)) == 2
    assert await shared.leases.list(FOLDER) == []


async def test_nobody_is_told_to_wait_for_an_image_that_cannot_be_added(shared, nursery):
    refuses = FlakyStore(shared.images, lambda _count, operation, _name: operation == "create")
    with pytest.raises(Transient):
        async with announced(JobImport("c.7", NAME, shared.leases, refuses), HOLDER, nursery):
            raise AssertionError
    assert await shared.leases.list(FOLDER) == []


async def test_announcing_writes_nothing_to_the_image_store(shared, nursery):
    async with announced(shared, HOLDER, nursery):
        with pytest.raises(NotFound):
            await catalog.resolve(shared.images, NAME)
        assert await shared.images.list("image-names") == []


async def test_leases_of_nodes_that_died_are_removed(shared, nursery, monkeypatch):
    for lasts_s, run in ((-4000.0, "c.1"), (-60.0, "c.2"), (60.0, "c.3")):
        monkeypatch.setattr(key_lease, "LASTS_S", lasts_s)
        left = JobImport(run, NAME, shared.leases, shared.images)
        await key_lease.acquire(shared.leases, left.folder, HOLDER)
    async with announced(shared, HOLDER, nursery):
        pass
    assert len(await shared.leases.list(FOLDER)) == 2


@pytest.mark.parametrize(
    ("rate", "total", "gives_up_s"),
    [(2.0, 100, None), (0.9, 100, 25), (0.0, 100, 25), (0.0, 0, 25)],
)
async def test_an_upload_that_takes_longer_than_the_import_is_not_waited_for(
    nursery, autojump_clock, rate, total, gives_up_s
):
    progress = UploadProgress()

    async def upload():
        progress.total_bytes = total
        while progress.done_bytes < total:
            await trio.sleep(0.5)
            progress.add(0.5 * rate)

    nursery.start_soon(upload)
    with trio.move_on_after(60) as scope:
        await until_slow(progress, 100)
        assert trio.current_time() == pytest.approx(gives_up_s)
    assert scope.cancelled_caught is (gives_up_s is None)
    nursery.cancel_scope.cancel()


async def test_an_upload_that_becomes_slow_is_not_waited_for(nursery, autojump_clock):
    progress = UploadProgress(total_bytes=100)

    async def upload():
        for _ in range(20):
            progress.add(3)
            await trio.sleep(1)

    nursery.start_soon(upload)
    await until_slow(progress, 100)
    assert 60 < trio.current_time() < 100


FORGED = {
    "nothing": b"",
    "no lease": b"\0" * 100,
    "without an end": b'{"format": "bootseer lease", "version": 1, "who": "%s", '
    b'"token": "", "until_ns": 9000000000000000000}' % (b"x" * 300),
    "too long": b" " * 100_000,
}


@pytest.mark.parametrize("what", FORGED)
async def test_a_forged_lease_costs_its_owner_a_minute(shared, autojump_clock, what):
    """It is the user's own store: nobody else reads it."""
    await publish(shared.leases, f"{shared.folder}/0001.json", FORGED[what])
    result, took_s = await wait(shared)
    assert result.why and took_s < key_lease.LASTS_S + 15


@pytest.mark.root
@pytest.mark.parametrize("whose", [FOLDER, ""])
async def test_a_lease_of_another_user_is_not_read(tmp_path, autojump_clock, whose):
    store = LocalStore(tmp_path / "store", os.getuid())
    shared = JobImport("c.7", NAME, store, MemoryStore())
    claim = await key_lease.acquire(store, shared.folder, "mallory on n1")
    os.chown(tmp_path / "store" / (whose or shared.folder), 65534, 65534)
    assert claim is not None
    with trio.fail_after(key_lease.LASTS_S):
        result = await wait_for_import(shared, 2, 900)
    assert result.holder == "" and result.why


async def test_cancelling_a_wait_leaves_nothing(shared, autojump_clock):
    with trio.move_on_after(3):
        await wait_for_import(shared, 2, 900)
    assert await shared.leases.list("") == [] and await shared.images.list("") == []

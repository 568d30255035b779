"""What all nodes read as a job starts is read from the store once for many of them."""

import time
from collections import Counter

import pytest
import trio
from bootseer_dev.actors.epilog import EpilogInStore, jobs, recording
from bootseer_dev.actors.peers import NAME, SECRET, as_server, listen, nodes_of
from bootseer_dev.material.stored_image import manifest_of, store_image

from bootseer.errors import Corrupt, Denied, NotFound, Unavailable, UnknownImage
from bootseer.image.hot.pack_store import open_pack
from bootseer.image.hot.repository import read_hot_set
from bootseer.image.library import catalog
from bootseer.parallel import for_each
from bootseer.peers import client as peer_client
from bootseer.peers import grid, start_objects, whole_object, wire
from bootseer.startup.plans import read_plan
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.testing.fault_store import FlakyStore
from bootseer.units import KIB, MIB

CONTENT = bytes(range(256)) * 1024
SOON_S = 0.5
LATE_S = peer_client._OBJECT_S + 1.0
"""With what a busy machine adds."""


def home_of(nodes):
    """Return the home of small objects, in a job of one row."""
    return nodes.clients[0].grid.homes(peer_client._OBJECTS, 0)[0]


def other_than(*indexes):
    return next(node for node in range(9) if node not in indexes)


async def read(nodes, node, name=NAME):
    return await read_all(nodes.starts[node], name, 8 * MIB)


def calls_of(nodes):
    return sum((Counter(store.calls) for store in nodes.own), Counter())


async def first_start(store):
    """Read what a start reads of the store, as if it were the first."""
    assert await read_plan(store, "alice", "train") is None
    assert await read_hot_set(store, "d" * 64) is None
    with pytest.raises(UnknownImage):
        await catalog.resolve(store, "bootseer://train:v2")
    assert await catalog.read_token(store, "d" * 64) is None
    assert await open_pack(store, manifest_of(CONTENT, 64 * KIB), "d" * 64) is None


FIRST_READS = 5


@pytest.mark.parametrize("count", [1, 8, 64, 512])
@pytest.mark.parametrize("is_warm", [True, False])
async def test_a_start_asks_the_store_for_each_object_once(count, is_warm, monkeypatch):
    """Of 512 nodes, 22 rows have a home each, and one of these reads the store."""
    monkeypatch.setattr(start_objects, "FRESH_S", 1000.0)
    manifest = manifest_of(CONTENT, 64 * KIB)
    async with nodes_of(count, MIB) as nodes:
        if is_warm:
            (job,) = jobs("alice", 1, 1)
            recorded = recording(0, is_warm=False, ranges=8)
            written = FlakyStore(nodes.memory, lambda *_: False)
            await EpilogInStore(job, recorded, {"image.traces_per_run": 4}, written).run()
            image = await store_image(nodes.memory, CONTENT, "train:v2", 64 * KIB)

        async def warm_start(store):
            plan = await read_plan(store, "alice", "train")
            assert await read_hot_set(store, plan.images[0].digest)
            assert await catalog.resolve(store, "bootseer://train:v2") == image
            assert await catalog.read_token(store, image)
            assert await open_pack(store, manifest, image) is None

        async def start(node):
            await (warm_start if is_warm else first_start)(nodes.starts[node])

        await for_each(range(count), start, 64)
        found = {"open": 5, "pread": 4} if is_warm else {"open": 5}
        assert calls_of(nodes) == found, "however many nodes there are"
        assert not any(nodes.notes)


async def test_an_object_is_whole_and_as_the_store_describes_it():
    async with nodes_of(3, 3 * MIB) as nodes:
        await publish(nodes.memory, "empty", b"")
        for node in range(3):
            assert await read(nodes, node) == nodes.content
            assert await read(nodes, node, "empty") == b""
            async with nodes.starts[node].open(NAME) as reader:
                assert reader.info == await nodes.memory.stat(NAME)
                assert await reader.pread(3 * MIB - 1, 10) == nodes.content[-1:]
                assert await reader.pread(9 * MIB, 10) == b""
        assert calls_of(nodes) == {"open": 2, "pread": 2}


async def test_what_is_not_small_is_read_from_the_store():
    async with nodes_of(3, whole_object.MAX_BYTES + 1) as nodes:
        node = other_than(home_of(nodes))
        assert await read(nodes, node) == nodes.content
        assert nodes.read_bytes == len(nodes.content) == nodes.own[node].read_bytes
        assert not any(nodes.notes)


async def test_a_version_that_is_known_is_that_of_the_store():
    async with nodes_of(3, 100) as nodes:
        info = await nodes.memory.stat(NAME)
        for options in ({"known": info}, {"version": info}):
            async with nodes.starts[0].open(NAME, **options) as reader:
                assert await reader.pread(0, 100) == nodes.content
        assert Counter(nodes.own[0].calls) == {"open": 2, "pread": 2}


async def test_a_later_start_sees_what_was_written_meanwhile(monkeypatch):
    async with nodes_of(4, 100) as nodes:
        for node in range(4):
            assert await read(nodes, node) == nodes.content
            with pytest.raises(NotFound):
                await read(nodes, node, "plans/new")
        await publish(nodes.memory, NAME, b"another")
        await publish(nodes.memory, "plans/new", b"new")
        monkeypatch.setattr(start_objects, "FRESH_S", 0.0)  # later
        for node in range(4):
            assert await read(nodes, node) == b"another"
            assert await read(nodes, node, "plans/new") == b"new"


async def test_with_rows_it_is_not_older_than_twice_as_long(autojump_clock):
    """A home may be given what another one read some time ago."""
    first, second = start_objects.StartObjects(), start_objects.StartObjects()
    written_s = 0.0

    async def from_store():
        return str(trio.current_time()).encode()

    async def from_first():
        return await first.get((0, "x"), from_store)

    for _ in range(100):
        told = await second.get((0, "x"), from_first)
        written_s = float(told)
        assert trio.current_time() - written_s <= 2 * start_objects.FRESH_S + 0.01
        await trio.sleep(0.7)
    assert written_s > 50


async def test_whoever_asks_meanwhile_waits_for_the_same_read(autojump_clock):
    objects, reads = start_objects.StartObjects(), []

    async def slow():
        reads.append(trio.current_time())
        await trio.sleep(3)
        raise Unavailable("not now")

    async def ask():
        assert await objects.get((0, "x"), slow) is None

    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(ask)
    assert len(reads) == 1
    await trio.sleep(start_objects.FRESH_S)
    await ask()
    assert len(reads) == 2


async def test_nothing_is_kept_that_nobody_is_given(autojump_clock):
    objects = start_objects.StartObjects()

    async def found():
        return bytes(1000)

    for n in range(200):
        await objects.get((0, str(n)), found)
        await trio.sleep(0.5)
    assert len(objects._entries) <= start_objects.FRESH_S / 0.5 + 2


@pytest.mark.parametrize("error", [Denied, Unavailable, Corrupt])
async def test_what_another_nodes_store_refuses_a_node_asks_its_own_for(error):
    async with nodes_of(3, 100) as nodes:
        home = home_of(nodes)

        async def refuse(operation, name, call):
            raise error("not for you")

        nodes.own[home].around = refuse
        node = other_than(home)
        assert await read(nodes, node) == nodes.content
        assert nodes.own[node].read_bytes == 100 and not any(nodes.notes)
        with pytest.raises(error):
            await read(nodes, home)


async def test_a_home_that_is_gone_is_met_once():
    async with nodes_of(4, 100) as nodes:
        home = home_of(nodes)
        nodes.kill(home)
        await trio.testing.wait_all_tasks_blocked()
        node = other_than(home)
        began_s = trio.current_time()
        for name in (NAME, NAME, NAME):
            assert await read(nodes, node, name) == nodes.content
        assert trio.current_time() - began_s < SOON_S
        assert len(nodes.notes[node]) == 1
        assert calls_of(nodes) == {"open": 1, "pread": 1}, "of the next candidate"


async def test_without_the_node_that_reads_for_all_rows_another_one_does(monkeypatch):
    monkeypatch.setattr(grid, "FLAT_NODES", 4)
    async with nodes_of(11, 100) as nodes:
        readers = [nodes.clients[node].grid.readers(peer_client._OBJECTS, 0) for node in range(11)]
        first = max(readers, key=len)[0]
        nodes.kill(first)
        await trio.testing.wait_all_tasks_blocked()
        for node in range(11):
            if node != first:
                assert await read(nodes, node) == nodes.content
        assert calls_of(nodes) == {"open": 1, "pread": 1}


async def test_a_home_behind_a_firewall_is_met_once(monkeypatch):
    def connect(address, timeout_s):
        time.sleep(timeout_s)
        raise TimeoutError("timed out")

    async with nodes_of(4, 100) as nodes:
        monkeypatch.setattr("bootseer.peers.connection.socket.create_connection", connect)
        began_s = trio.current_time()
        for _ in range(5):
            assert await read(nodes, 0) == nodes.content
        assert trio.current_time() - began_s < LATE_S
        assert nodes.notes[0] and nodes.own[0].calls.count("open") == 5


async def test_servers_that_have_not_started_keep_no_small_job(monkeypatch):
    async with nodes_of(8, 100, down=set(range(8))) as nodes:
        nodes.clients[0].begun_s = time.monotonic()
        began_s = trio.current_time()
        for _ in range(5):
            assert await read(nodes, 0) == nodes.content
        assert trio.current_time() - began_s < 0.3
        assert not nodes.notes[0]


async def test_servers_that_have_not_started_are_waited_for_as_long_as_the_store_would_take(
    monkeypatch,
):
    monkeypatch.setattr(peer_client, "_STARTS_PER_S", 1.0)  # as for many nodes
    async with nodes_of(3, 100, down={0, 1, 2}) as nodes, trio.open_nursery() as nursery:
        nodes.clients[0].begun_s = time.monotonic()

        async def begin(node):
            await trio.sleep(0.3)
            await nodes.servers[node].serve(listen(nodes.hosts[node], nodes.port))

        for node in range(3):
            nursery.start_soon(begin, node)
        assert await read(nodes, 0) == nodes.content
        assert nodes.clients[0].received_bytes and not nodes.notes[0]
        nursery.cancel_scope.cancel()


def _answering(answer):
    """Return what a node does that answers all alike; None for not at all."""

    async def behave(stream):
        while await stream.receive_some():
            if answer is not None:
                data = await answer()
                await stream.send_all(wire.encode_answer(wire.Status.DATA, len(data)) + data)

    return behave


async def test_a_home_that_is_silent_is_waited_for_once():
    async with nodes_of(3, 100, down={0, 1, 2}) as nodes, trio.open_nursery() as nursery:
        for node in range(3):
            nursery.start_soon(as_server, nodes, SECRET, _answering(None), node)
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        for _ in range(5):
            assert await read(nodes, 0) == nodes.content
        assert trio.current_time() - began_s < LATE_S
        assert nodes.notes[0] and nodes.own[0].calls.count("open") == 5
        nursery.cancel_scope.cancel()


async def test_a_home_whose_store_hangs_is_waited_for_once():
    async with nodes_of(3, 100) as nodes:
        home = home_of(nodes)
        nodes.own[home].delay_s = 60.0
        node = other_than(home)
        began_s = trio.current_time()
        for name in (NAME, "plans/x", NAME):
            if name == NAME:
                assert await read(nodes, node) == nodes.content
            else:
                with pytest.raises(NotFound):
                    await read(nodes, node, name)
        assert trio.current_time() - began_s < LATE_S
        assert any("soon" in note for note in nodes.notes[node])


async def _answer(data=b"right", number=0, name=NAME):
    store = MemoryStore()
    if data is not None:
        await publish(store, name, data)
    return await whole_object.read_answer(store, number, name)


async def _wrong_byte():
    return (await _answer())[:-1] + b"?"


async def _cut_short():
    return (await _answer())[:-1]


async def _another_object():
    return await _answer(name="images/another")


async def _another_stores():
    return await _answer(number=1)


async def _none_of_another():
    return await _answer(None, name="images/another")


async def _nothing():
    return b""


WRONG = [_wrong_byte, _cut_short, _another_object, _another_stores, _none_of_another, _nothing]


@pytest.mark.parametrize("answer", WRONG)
async def test_wrong_bytes_are_read_from_the_store(answer):
    async with nodes_of(3, 100, down={0, 1, 2}) as nodes, trio.open_nursery() as nursery:
        home = home_of(nodes)
        nursery.start_soon(as_server, nodes, SECRET, _answering(answer), home)
        await trio.testing.wait_all_tasks_blocked()
        node = other_than(home)
        assert await read(nodes, node) == nodes.content
        assert any("wrong bytes" in note for note in nodes.notes[node])
        nursery.cancel_scope.cancel()


async def test_what_a_start_does_not_open_is_asked_of_the_store_itself():
    async with nodes_of(3, 100) as nodes:
        store = nodes.starts[other_than(home_of(nodes))]
        await publish(store, "new", b"1")
        assert (await store.stat("new")).size_bytes == 1
        assert [info.name for info in await store.list("")] == ["images", "new"]

"""Parts of checkpoints that several nodes read leave the store once; others take the short way."""

import random

import pytest
import trio
import xxhash
from bootseer_dev.actors.peers import SECRET, as_server, nodes_of, wrong_bytes

from bootseer.checkpoint.files.source import StripedSource
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest, UnitPlace
from bootseer.parallel import for_each
from bootseer.peers import grid, server
from bootseer.peers.shared_files import SharedFiles
from bootseer.store.api.base import publish
from bootseer.units import MIB

UNIT = 2 * MIB
UNITS = 8
SHORT = 333
"""So much the last unit is shorter."""
ID = f"{7:032x}"
PARTS = f"run/{PARTS_FOLDER}/{ID}"


class Striped:
    """A striped file in the store of a job's nodes, and a source of it on each node."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.content = random.Random(2).randbytes(UNITS * UNIT - SHORT)
        self.shared = [
            SharedFiles(nodes.own[n], 0, nodes.clients[n]) for n in range(len(nodes.own))
        ]
        self.sources = []

    async def put(self):
        """Its units are in two parts in turn."""
        pieces = [self.content[at : at + UNIT] for at in range(0, len(self.content), UNIT)]
        store = self.nodes.own[0]
        await publish(store, f"{PARTS}/0000", b"".join(pieces[0::2]))
        await publish(store, f"{PARTS}/0001", b"".join(pieces[1::2]))
        units = tuple(
            UnitPlace(n % 2, n // 2 * UNIT, xxhash.xxh3_128_intdigest(piece))
            for n, piece in enumerate(pieces)
        )
        layout = StripeManifest(len(self.content), UNIT, ID, 2, units)
        await publish(store, "run/file", layout.encode())
        info = await store.stat("run/file")
        for own, shared in zip(self.nodes.own, self.shared, strict=True):
            own.calls.clear()
            own.read_bytes = 0
            self.sources.append(StripedSource(own, info, layout, shared))

    async def read(self, node, units=range(UNITS)):
        """Read units one after the other, and compare them."""
        for unit in units:
            found = await self.sources[node].fetch(unit)
            assert found == self.content[unit * UNIT : (unit + 1) * UNIT]

    async def ask(self, node):
        """Return what a node is told now, however recently it has asked."""
        return await self.shared[node].file(ID).is_shared()

    async def close(self):
        for source in self.sources:
            await source.close()


@pytest.fixture
def striped():
    made = []

    async def make(nodes):
        made.append(Striped(nodes))
        await made[0].put()
        return made[0]

    return make


@pytest.mark.parametrize("count", [2, 5])
async def test_what_all_nodes_read_leaves_the_store_once(striped, count):
    async with nodes_of(count) as nodes:
        file = await striped(nodes)
        for node in range(count):
            await file.ask(node)
        assert await file.ask(0), "the first one is told when it asks again"
        await for_each(range(count), file.read, count)
        assert nodes.read_bytes == len(file.content)
        await file.close()


async def test_what_nodes_begin_to_read_at_once_leaves_the_store_little_more_than_once(striped):
    """The first node reads on its own until it asks again."""
    async with nodes_of(4) as nodes:
        file = await striped(nodes)
        for own in nodes.own:
            own.delay_s = 0.1
        await for_each(range(4), file.read, 4)
        assert nodes.read_bytes <= len(file.content) + 2 * UNIT
        await file.close()


async def test_what_one_node_reads_takes_no_second_link(striped):
    async with nodes_of(3) as nodes:
        file = await striped(nodes)
        await file.read(1)
        assert nodes.own[1].read_bytes == len(file.content)
        assert nodes.own[1].calls.count("pread") == UNITS
        assert not sum(server.served.sent_bytes for server in nodes.servers)
        await file.close()


async def test_two_files_are_not_one(striped):
    async with nodes_of(3) as nodes:
        file = await striped(nodes)
        assert not await file.shared[0].file("one").is_shared()
        assert not await file.shared[1].file("other").is_shared()
        assert await file.shared[2].file("one").is_shared()


async def test_a_node_that_has_asked_twice_is_one_node(striped):
    async with nodes_of(2) as nodes:
        file = await striped(nodes)
        assert [await file.ask(0) for _ in range(3)] == [False] * 3
        assert await file.ask(1)


async def test_who_has_not_read_for_long_reads_no_more(striped, monkeypatch):
    async with nodes_of(2) as nodes:
        file = await striped(nodes)
        await file.ask(0)
        monkeypatch.setattr(server, "_SHARED_S", 0.05)
        await trio.sleep(0.06)
        assert not await file.ask(1)


async def test_few_questions_are_asked(striped, autojump_clock, monkeypatch):
    asked = []

    async def is_shared(number, name):
        asked.append(name)
        await trio.sleep(0.01)
        return len(asked) > 8

    async with nodes_of(2) as nodes:
        file = await striped(nodes)
        monkeypatch.setattr(nodes.clients[0], "is_shared", is_shared)

        one = file.shared[0].file(ID)

        async def read(_):
            await one.is_shared()

        with trio.move_on_after(60):
            while True:
                await for_each(range(24), read, 24)
                await trio.sleep(0.001)
    assert 10 <= len(asked) <= 12, "after 0.1, 0.2, 0.4 s and so on, and then each 20 s"


async def test_of_many_nodes_each_row_finds_out_by_itself(striped, monkeypatch):
    monkeypatch.setattr(grid, "FLAT_NODES", 4)
    async with nodes_of(11) as nodes:
        file = await striped(nodes)
        for node in [*range(11), *range(11)]:
            await file.ask(node)
        await for_each(range(11), file.read, 11)
        assert nodes.read_bytes == len(file.content)
        await file.close()


async def test_wrong_bytes_are_read_again_from_the_store(striped):
    async with nodes_of(3, down={1}) as nodes, trio.open_nursery() as nursery:
        file = await striped(nodes)
        nursery.start_soon(as_server, nodes, SECRET, wrong_bytes)
        await trio.testing.wait_all_tasks_blocked()
        await file.ask(2)
        await file.read(0)
        assert any("wrong bytes" in note for note in nodes.notes[0])
        assert nodes.clients[0].received_bytes > 0
        await file.close()
        nursery.cancel_scope.cancel()


async def test_where_nobody_answers_the_store_is_read(striped):
    async with nodes_of(3, down={0, 1, 2}) as nodes:
        file = await striped(nodes)
        with trio.fail_after(20):
            await file.read(0)
        assert nodes.own[0].read_bytes == len(file.content)
        await file.close()


async def test_a_node_that_goes_away_meanwhile_is_done_without(striped):
    async with nodes_of(3) as nodes:
        file = await striped(nodes)
        for node in (0, 1, 0):
            await file.ask(node)
        await file.read(0, range(2))
        nodes.kill(1)
        nodes.kill(2)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(20):
            await file.read(0, range(2, UNITS))
        await file.close()


async def test_parts_that_have_moved_are_found(striped):
    async with nodes_of(2) as nodes:
        file = await striped(nodes)
        for node in (0, 1, 0):
            await file.ask(node)
        store = nodes.own[0]
        await store.rename("run", "moved")
        for source in file.sources:
            source.move("moved/file")
        await for_each(range(2), file.read, 2)
        assert nodes.read_bytes == len(file.content)
        await file.close()

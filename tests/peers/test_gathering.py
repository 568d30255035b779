"""Nodes give their events to one of them, over TCP, which says when they are in the store."""

import time
from contextlib import asynccontextmanager

import pytest
import trio
from bootseer_dev.actors.peers import nodes_of

from bootseer.peers import gathering
from bootseer.peers.gathering import EventGathering, give, take, tell_stored
from bootseer.units import KIB, MIB

LONG_S = 20
"""Nothing here takes so long, however busy the machine is."""


@asynccontextmanager
async def group_of(count, most_bytes=MIB, **more):
    """Start nodes of which the first one gathers."""
    async with nodes_of(count, 1, **more) as nodes:
        nodes.servers[0].gathering = EventGathering(count - 1, most_bytes)
        yield nodes


class Givers:
    """Nodes that give their events, and what they were told."""

    def __init__(self, nodes, events=b"events of "):
        self.nodes = nodes
        self.events = events
        self.told = {}

    async def give(self, node):
        events = self.events + b"%d" % node
        self.told[node] = await give(self.nodes.clients[node], 0, f"n{node}", events)


async def test_nodes_are_told_once_their_events_are_in_the_store():
    async with group_of(8) as nodes, trio.open_nursery() as nursery:
        givers = Givers(nodes)
        for node in range(1, 8):
            nursery.start_soon(givers.give, node)
        began_s = trio.current_time()
        count, given = await take(nodes.clients[0], MIB)
        assert trio.current_time() - began_s < LONG_S
        assert count == 7
        assert sorted(given.split(b"events of ")) == [b"", *(b"%d" % n for n in range(1, 8))]
        await trio.sleep(0.3)
        assert not givers.told, "they are not there yet"
        await tell_stored(nodes.clients[0])
    assert givers.told == dict.fromkeys(range(1, 8), True)
    assert not any(nodes.notes)


async def test_all_are_taken_as_soon_as_all_are_there(monkeypatch):
    monkeypatch.setattr(gathering, "_COLLECT_S", 1000.0)
    async with group_of(3) as nodes, trio.open_nursery() as nursery:
        givers = Givers(nodes)
        with trio.fail_after(LONG_S):
            nursery.start_soon(givers.give, 1)
            nursery.start_soon(givers.give, 2)
            assert (await take(nodes.clients[0], MIB))[0] == 2
            await tell_stored(nodes.clients[0])


async def test_a_late_node_is_not_waited_for_and_told_at_once():
    async with group_of(3) as nodes, trio.open_nursery() as nursery:
        givers = Givers(nodes)
        nursery.start_soon(givers.give, 1)
        assert (await take(nodes.clients[0], MIB))[0] == 1
        began_s = time.monotonic()
        await givers.give(2)
        assert time.monotonic() - began_s < 0.9, "it does not wait for what will not come"
        await tell_stored(nodes.clients[0])
    assert givers.told == {1: True, 2: False}
    assert not any(nodes.notes), "the gatherer is well"


async def test_where_nobody_takes_them_nodes_do_not_wait_long():
    async with group_of(3) as nodes, trio.open_nursery() as nursery:
        givers = Givers(nodes)
        with trio.fail_after(LONG_S):
            await givers.give(1)
        assert givers.told == {1: False}
        nursery.start_soon(givers.give, 2)
        count, given = await take(nodes.clients[0], MIB)
        assert (count, given) == (1, b"events of 2"), "the other node has written its own"
        await tell_stored(nodes.clients[0])


async def test_who_takes_them_and_dies_has_stored_nothing():
    async with group_of(3) as nodes, trio.open_nursery() as nursery:
        givers = Givers(nodes)
        nursery.start_soon(givers.give, 1)
        nursery.start_soon(givers.give, 2)
        assert (await take(nodes.clients[0], MIB))[0] == 2
        nodes.kill(0)
    assert givers.told == {1: False, 2: False}
    assert nodes.notes[1] and nodes.notes[2]


async def test_who_takes_them_and_says_nothing_is_not_waited_for():
    async with group_of(2) as nodes, trio.open_nursery() as nursery:
        givers = Givers(nodes)
        nursery.start_soon(givers.give, 1)
        assert await take(nodes.clients[0], MIB) == (1, b"events of 1")
        assert await take(nodes.clients[0], MIB) is None, "they are taken once"
        with trio.fail_after(LONG_S):
            while 1 not in givers.told:
                await trio.sleep(0.05)
    assert givers.told == {1: False}


async def test_a_node_that_is_no_gatherer_or_gone_takes_nothing():
    async with group_of(3, down={0}) as nodes:
        givers = Givers(nodes)
        await givers.give(1)
        assert not await give(nodes.clients[1], 2, "n1", b"events")
        assert await take(nodes.clients[2], MIB) is None
    assert givers.told == {1: False}
    assert len(nodes.notes[1]) == 1 and not nodes.notes[2]


async def test_what_a_gatherer_keeps_is_limited():
    async with group_of(5, 250 * KIB) as nodes, trio.open_nursery() as nursery:
        givers = Givers(nodes, bytes(100 * KIB))
        assert not await give(nodes.clients[4], 0, "n4", bytes(MIB + 1))
        for node in (1, 2, 3):
            nursery.start_soon(givers.give, node)
        count, given = await take(nodes.clients[0], MIB)
        await tell_stored(nodes.clients[0])
    assert count == 2 and 200 * KIB < len(given) <= 250 * KIB
    assert sorted(givers.told.values()) == [False, True, True]


async def test_more_nodes_than_belong_to_the_group_are_refused():
    async with group_of(4) as nodes, trio.open_nursery() as nursery:
        nodes.servers[0].gathering.givers = 1
        givers = Givers(nodes)
        for node in (1, 2, 3):
            nursery.start_soon(givers.give, node)
        assert (await take(nodes.clients[0], MIB))[0] == 1
        await tell_stored(nodes.clients[0])
    assert sorted(givers.told.values()) == [False, False, True]


async def test_a_node_that_gives_again_is_packed_once():
    async with group_of(3) as nodes, trio.open_nursery() as nursery:
        first, second = Givers(nodes), Givers(nodes, b"later ")
        nursery.start_soon(first.give, 1)
        await trio.sleep(0.3)
        nursery.start_soon(second.give, 1)
        await trio.sleep(0.3)
        assert await take(nodes.clients[0], MIB) == (1, b"later 1")
        await tell_stored(nodes.clients[0])
        assert not nodes.servers[0].gathering._given, "all have been told"
    assert second.told == {1: True}


@pytest.mark.parametrize("secret", [b"another job's", b""])
async def test_a_stranger_gives_and_takes_nothing(secret):
    async with group_of(3) as nodes:
        stranger = nodes.clients[2]
        stranger.secret = secret
        assert not await give(stranger, 0, "n2", b"events")
        stranger.grid = nodes.clients[0].grid
        assert await take(stranger, MIB) is None
        assert not nodes.servers[0].gathering._given
        assert not nodes.servers[0].gathering._taken.is_set()
    assert nodes.notes[2]

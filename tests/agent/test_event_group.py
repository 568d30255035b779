"""Epilogs of a job's nodes, with servers over TCP: groups store events, and none is lost."""

import re
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from bootseer_dev.actors.epilog import EpilogInStore, jobs, recording
from bootseer_dev.actors.peers import SECRET, listen

from bootseer.agent.workers.event_group import event_group, gathering
from bootseer.agent.workers.job_peers import connect_peers
from bootseer.config import Config
from bootseer.core.event import FALLBACK
from bootseer.errors import Unavailable
from bootseer.image.hot.repository import is_among
from bootseer.peers import client as peer_client
from bootseer.peers import connection as peer_connection
from bootseer.peers import gathering as peer_gathering
from bootseer.peers.grid import PeerGrid
from bootseer.peers.piece_cache import PieceCache
from bootseer.peers.server import PeerServer
from bootseer.startup.run_events import read_run
from bootseer.store.memory import MemoryStore
from bootseer.store.wrappers.base import WrappedStore
from bootseer.testing.fault_store import FlakyStore

CONFIG = {"image.traces_per_run": 4, "peers.ports": 1}
PAGE = Path(__file__).parents[2] / "docs/design/034-calls-of-a-job.md"
SIZES = (1, 8, 64, 512)
EVENTS = {"create": 1, "write": 1, "commit": 1}


def table():
    """Return the page's calls for events by number of nodes, in groups and one object each."""
    text = PAGE.read_text().partition("a group's object each")[2].partition("Beyond")[0]
    rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", text, re.MULTILINE)
    numbers = [[int(cell.replace(",", "")) for cell in row] for row in rows]
    return {nodes: (in_groups, alone) for nodes, in_groups, alone in numbers}


def hosts(nodes):
    """Return a node list of addresses of this machine."""
    rows = [f"127.0.{n}.[2-{min(200, nodes - 200 * n) + 1}]" for n in range(-(-nodes // 200))]
    return ",".join(rows)


def calls_for_events(store):
    return Counter(call[0] for call in store.calls if call[1].startswith("runs/"))


class SlowStore(WrappedStore):
    """A store whose changes take long, or fail."""

    def __init__(self, inner, delay_s=0.0, fails=False):
        super().__init__(inner)
        self.delay_s = delay_s
        self.fails = fails

    async def around(self, operation, name, call):
        await trio.sleep(self.delay_s)
        if self.fails:
            raise Unavailable("no space")
        return await call()


class Group:
    """The nodes of a job, each with a server, whose epilogs begin when a test says so."""

    def __init__(self, nodes):
        first = listen("127.0.0.2")
        port = first.getsockname()[1]
        first.close()
        self.config = CONFIG | {"peers.first_port": port}
        self.store = MemoryStore()
        more = {"nodelist": hosts(nodes), "secret": SECRET.hex()}
        self.jobs = [job._replace(**more) for job in jobs("alice", 1, nodes)]
        self.own = [FlakyStore(self.store, lambda *_: False) for _ in range(nodes)]
        self.scopes = [trio.CancelScope() for _ in range(nodes)]
        self.epilogs = {}
        settings = Config(self.config, "test")
        self.groups = [event_group(job, settings) for job in self.jobs]
        self.servers = []
        for job in self.jobs:
            asking = connect_peers(job, settings, lambda _: None)
            if asking is not None:
                taking = gathering(job, settings)
                server = PeerServer(SECRET, [self.store], PieceCache(0), asking, gathering=taking)
                self.servers.append(server)

    @property
    def gatherers(self):
        return sorted({group.gatherer for group in self.groups if group})

    def givers(self):
        return [
            node for node, group in enumerate(self.groups) if group and node not in self.gatherers
        ]

    def name(self, node):
        return self.jobs[node].node

    async def serve(self, node):
        client = self.servers[node].client
        with self.scopes[node]:
            await self.servers[node].serve(listen(client.hosts[node], client.ports[0]))

    async def end(self, node, wrap=lambda store: store):
        """Have a node's epilog publish; as on nodes, its server ends after it."""
        job, recorded = self.jobs[node], recording(node, is_warm=True, ranges=200)
        recorded = recorded._replace(images=[])
        epilog = EpilogInStore(job, recorded, self.config, wrap(self.own[node]))
        self.epilogs[node] = epilog
        await epilog.run()
        self.scopes[node].cancel()

    async def end_all(self, nodes=None):
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for node in range(len(self.jobs)) if nodes is None else nodes:
                    nursery.start_soon(self.end, node)

    async def runs(self):
        return {run.node: run for run in await read_run(self.store, self.jobs[0].run)}

    async def objects(self):
        names = [info.name for info in await self.store.list(f"runs/{self.jobs[0].run}")]
        packs = [name for name in names if name.endswith(".jsonl.gz")]
        return packs, [name for name in names if name not in packs]

    async def assert_all_are_there(self):
        assert set(await self.runs()) == {job.node for job in self.jobs}
        assert all(epilog.published.ok for epilog in self.epilogs.values())

    async def fallen_back(self):
        events = [event for run in (await self.runs()).values() for event in run.events]
        return [event for event in events if event.status == FALLBACK]

    async def stages(self, node):
        return {event.stage: event for event in (await self.runs())[self.name(node)].events}


@asynccontextmanager
async def group_of(nodes, down=()):
    group = Group(nodes)
    async with trio.open_nursery() as nursery:
        for node in range(len(group.servers)):
            if node not in down:
                nursery.start_soon(group.serve, node)
        await trio.testing.wait_all_tasks_blocked()
        try:
            yield group
        finally:
            nursery.cancel_scope.cancel()
            for server in group.servers:
                server.client.close()
                server.cache.close()


@pytest.fixture
def patient(monkeypatch):
    """Have nodes wait for each other, however busy the machine is."""
    for name in ("_UNTAKEN_S", "_COLLECT_S", "_STORED_S"):
        monkeypatch.setattr(peer_gathering, name, 100.0)
    monkeypatch.setattr(peer_client, "_STORE_S", 100.0)
    for name in ("_SILENCE_S", "_CONNECT_S"):
        monkeypatch.setattr(peer_connection, name, 100.0)


@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 64, 65, 512, 16_384])
def test_groups_are_rows_without_the_nodes_that_write_more(nodes):
    settings = Config(CONFIG, "test")
    more = {"nodelist": "n[1-2]", "secret": SECRET.hex()}
    groups = {
        job.node_index: event_group(job._replace(**more), settings)
        for job in jobs("alice", 1, nodes)[:: max(1, nodes // 512)]
    }
    grid = PeerGrid(nodes, 0)
    for node, group in groups.items():
        if is_among(4, nodes, node):
            assert group is None
        elif group is not None:
            row = PeerGrid(nodes, node).row_nodes
            assert node in row and group.gatherer in row
            assert 1 <= group.givers < len(row) <= -(-nodes // grid.rows)
            assert not is_among(4, nodes, group.gatherer)
        else:
            assert nodes < 8
    assert len({group.gatherer for group in groups.values() if group}) <= grid.rows


def test_calls_of_a_large_job_are_those_of_the_table():
    settings, more = Config(CONFIG, "test"), {"nodelist": "n", "secret": SECRET.hex()}
    groups = [event_group(job._replace(**more), settings) for job in jobs("alice", 1, 16_384)]
    packs = {group.gatherer for group in groups if group}
    assert (3 * (len(packs) + groups.count(None)), 3 * 16_384) == table()[16_384]


@pytest.mark.parametrize("nodes", SIZES)
async def test_events_of_a_group_are_one_object(nodes, patient):
    async with group_of(nodes) as group:
        await group.end_all()
        await group.assert_all_are_there()
        packs, single = await group.objects()
        rows = PeerGrid(nodes, 0).rows
        assert len(packs) == len(group.gatherers) == (rows if nodes > 4 else 0)
        told = [each.detail for each in await group.fallen_back()]
        assert len(single) == min(nodes, 4), told
        calls = [Counter(call[0] for call in own.calls) for own in group.own]
        of_events = Counter()
        for own in group.own:
            of_events += calls_for_events(own)
        assert set(of_events.values()) == {len(packs) + len(single)}
        assert (of_events.total(), 3 * nodes) == table()[nodes]
        for node in group.givers():
            assert not calls[node]
        for node in group.gatherers:
            assert calls[node] == EVENTS
        writes = sum(each["create"] for each in calls)
        # Those that write the plan do so as well, and may find each other at it.
        assert writes <= rows + min(nodes, 4) + 10
        if nodes == 512:
            stage = (await group.stages(group.gatherers[0]))["peers.gather"]
            givers = group.groups[group.gatherers[0]].givers
            assert stage.detail == f"{givers} of {givers} nodes have given their events"


async def test_without_a_gatherer_each_node_writes_its_own():
    async with group_of(8) as group:
        (gatherer,) = group.gatherers
        group.scopes[gatherer].cancel()
        await trio.testing.wait_all_tasks_blocked()
        nodes = [node for node in range(8) if node != gatherer]
        await group.end_all(nodes)
        assert set(await group.runs()) == {group.name(node) for node in nodes}
        for node in group.givers():
            stage = (await group.stages(node))["peers.give"]
            assert "too late for 127.0.0." in stage.detail, "its epilog may have ended"


async def test_a_gatherer_that_is_silent_is_not_waited_for_long():
    async with group_of(8) as group:
        (gatherer,) = group.gatherers
        server, client = group.servers[gatherer], group.servers[gatherer].client
        group.scopes[gatherer].cancel()
        await trio.testing.wait_all_tasks_blocked()
        with listen(client.hosts[gatherer], client.ports[0]):  # as one that was stopped
            began_s = time.monotonic()
            await group.end_all(node for node in range(8) if node != gatherer)
            assert time.monotonic() - began_s < 10
        assert not server.gathering._given
        for node in group.givers():
            stage = (await group.stages(node))["peers.give"]
            assert stage.status == FALLBACK and "127.0.0." in stage.detail


async def test_a_gatherer_whose_server_has_ended_writes_its_own():
    async with group_of(8) as group:
        (gatherer,) = group.gatherers
        group.scopes[gatherer].cancel()
        await trio.testing.wait_all_tasks_blocked()
        await group.end_all()
        await group.assert_all_are_there()
        assert (await group.stages(gatherer))["peers.gather"].status == FALLBACK
        assert await group.objects() == ([], [*(await group.objects())[1]])


async def test_a_gatherer_whose_epilog_comes_later_is_not_waited_for():
    async with group_of(8) as group:
        (gatherer,) = group.gatherers
        began_s = time.monotonic()
        await group.end_all(node for node in range(8) if node != gatherer)
        assert time.monotonic() - began_s < 10
        await group.end(gatherer)
        await group.assert_all_are_there()
        assert not (await group.objects())[0]


async def test_nodes_that_come_late_write_their_own():
    async with group_of(8) as group:
        late = group.givers()[-1]
        await group.end_all(node for node in range(8) if node != late)
        await group.end(late)
        await group.assert_all_are_there()


async def test_a_late_node_is_told_while_the_pack_is_written():
    async with group_of(8) as group:
        (gatherer,), givers = group.gatherers, group.givers()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.end, gatherer, lambda store: SlowStore(store, delay_s=0.5))
            for node in givers[:-1]:
                nursery.start_soon(group.end, node)
            await trio.sleep(1.2)
            await group.end(givers[-1])
        await group.end_all(node for node in range(8) if group.groups[node] is None)
        await group.assert_all_are_there()
        assert len((await group.objects())[0]) == 1
        stage = (await group.stages(givers[-1]))["peers.give"]
        assert "too late" in stage.detail and stage.status != FALLBACK


@pytest.mark.parametrize("how", ["refuses", "hangs"])
async def test_events_are_there_though_the_gatherer_cannot_store_them(how):
    more = {"fails": True} if how == "refuses" else {"delay_s": 30.0}
    async with group_of(8) as group:
        (gatherer,) = group.gatherers

        async def gather():
            with trio.move_on_after(6):  # as its epilog's time ends
                await group.end(gatherer, lambda store: SlowStore(store, **more))
            group.scopes[gatherer].cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather)
            others = [node for node in range(8) if node != gatherer]
            began_s = time.monotonic()
            await group.end_all(others)
            assert time.monotonic() - began_s < 30
        assert set(await group.runs()) == {group.name(node) for node in others}
        assert not (await group.objects())[0]
        assert all(group.epilogs[node].published.ok for node in others)
        published = group.epilogs[gatherer].published
        assert published is None or not published.ok, "its agent keeps its events"


async def test_a_gatherer_that_dies_once_it_has_written_leaves_duplicates(monkeypatch):
    async def die(client):
        group.scopes[client.grid.index].cancel()

    monkeypatch.setattr("bootseer.agent.workers.event_group.tell_stored", die)
    async with group_of(8) as group:
        await group.end_all()
        await group.assert_all_are_there()
        packs, single = await group.objects()
        assert len(packs) == 1 and len(single) == 8 - 1
        for node in group.givers():
            assert "peers.give" in await group.stages(node), "what the node wrote has more"

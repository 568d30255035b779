"""Nodes read from each other, over TCP, and from the store what the others do not give."""

import socket
import time
from collections import Counter
from contextlib import suppress

import pytest
import trio
from bootseer_dev.actors.peers import NAME, SECRET, as_server, listen, nodes_of, wrong_bytes

from bootseer.errors import NotFound
from bootseer.parallel import for_each
from bootseer.peers import grid, wire
from bootseer.peers.client import ports_of_job
from bootseer.peers.connection import connect
from bootseer.units import KIB, MIB

LONG_S = 20
"""Nothing here takes so long, however busy the machine is."""


@pytest.mark.parametrize("count", [2, 3, 8])
async def test_each_byte_leaves_the_store_once(count):
    async with nodes_of(count) as nodes, trio.open_nursery() as nursery:

        async def read(node):
            assert await nodes.read(node) == nodes.content

        for node in range(count):
            nursery.start_soon(read, node)
    assert nodes.read_bytes == len(nodes.content)
    assert sum(store.calls.count("open") for store in nodes.own) <= count
    assert not any(nodes.notes)


async def test_rows_read_it_once_as_well(monkeypatch):
    monkeypatch.setattr(grid, "FLAT_NODES", 4)
    async with nodes_of(11, 9 * MIB + 5) as nodes, trio.open_nursery() as nursery:

        async def read(node):
            assert await nodes.read(node) == nodes.content

        for node in range(11):
            nursery.start_soon(read, node)
    assert nodes.read_bytes == len(nodes.content)


@pytest.mark.parametrize("count", [1, 8, 64, 512])
async def test_what_a_job_asks_of_the_store_does_not_grow_with_its_nodes(count):
    """Two pieces: of 512 nodes, 22 rows have a home for each, and one of these reads the store."""
    async with nodes_of(count, 2 * MIB, memory_mib=2) as nodes:

        async def read(node):
            assert await nodes.read(node) == nodes.content

        await for_each(range(count), read, 64)
        calls = Counter(call for store in nodes.own for call in store.calls)
        rows = nodes.clients[0].grid.rows
        assert calls == {"open": calls["open"], "pread": 2}
        assert calls["open"] <= 2 + rows, "of each row, one node tells the others its size"
        assert nodes.read_bytes == 2 * MIB and not any(nodes.notes)


RANGES = [
    (0, 1),
    (MIB - 1, 2),
    (MIB, MIB),
    (3 * MIB - 7, 2 * MIB + 100),
    (5 * MIB + 330, 100),
    (5 * MIB + 333, 10),
    (50 * MIB, 10),
    (256 * KIB - 1, 2),
    (7, 0),
]


@pytest.mark.parametrize(("start", "size"), RANGES)
async def test_any_range_is_the_stores(start, size):
    async with nodes_of(3) as nodes:
        for node in range(3):
            assert await nodes.read(node, start, size) == nodes.content[start : start + size]
    assert nodes.read_bytes <= min(size + 2 * 256 * KIB, len(nodes.content))


async def test_small_reads_bring_no_whole_pieces():
    async with nodes_of(4) as nodes:
        for node in range(4):
            await nodes.read(node, 2 * MIB + 10, 4 * KIB)
    assert nodes.read_bytes == 256 * KIB


async def test_what_was_replaced_in_memory_is_read_again():
    async with nodes_of(2, 40 * MIB, memory_mib=16) as nodes:
        for _ in range(2):
            assert await nodes.read(1) == nodes.content
    assert len(nodes.content) < nodes.read_bytes <= 2 * len(nodes.content)


async def test_more_readers_than_memory_go_to_the_store():
    async with nodes_of(2, 8 * MIB, memory_mib=0) as nodes:
        assert await nodes.read(0) == nodes.content
    assert not any(nodes.notes)


async def test_a_node_that_is_gone_is_done_without():
    async with nodes_of(4, 8 * MIB, down={2}) as nodes:
        for node in (0, 1, 3):
            assert await nodes.read(node) == nodes.content
        assert nodes.read_bytes == len(nodes.content), "another node reads what it would have"
        assert any("127.0.0.4" in note for note in nodes.notes[0])


async def test_where_nobody_answers_nobody_is_asked_again_and_again(monkeypatch):
    asked = []

    def connect(address, timeout_s):
        asked.append(address[0])
        raise TimeoutError("timed out")  # as behind a firewall

    async with nodes_of(40, 40 * MIB) as nodes:
        monkeypatch.setattr("bootseer.peers.connection.socket.create_connection", connect)
        client = nodes.clients[0]
        client.ports = [nodes.port, nodes.port + 1]
        assert await nodes.read(0) == nodes.content
        assert len(asked) < 20, "of 40 nodes some, at one port each, and then none"
        assert nodes.own[0].read_bytes == 40 * MIB and len(nodes.notes[0]) < 10
        monkeypatch.undo()
        assert await nodes.read(0) == nodes.content and not client.received_bytes
        client._off_until = 0.0  # later
        assert await nodes.read(0) == nodes.content and client.received_bytes > 30 * MIB


async def test_what_an_object_is_the_store_tells_until_the_servers_are_up():
    async with nodes_of(3, MIB, down={0, 1, 2}) as nodes:
        nodes.clients[0].begun_s = time.monotonic()
        began_s = trio.current_time()
        async with nodes.shared[0].open(NAME) as reader:
            assert reader.size_bytes == MIB
        assert trio.current_time() - began_s < 1.5, "it does not wait for their start"
        assert not nodes.notes[0]


async def test_a_node_that_ends_meanwhile_is_done_without():
    async with nodes_of(3, 8 * MIB) as nodes:
        assert await nodes.read(0, 0, 3 * MIB) == nodes.content[: 3 * MIB]
        nodes.kill(1)
        await trio.testing.wait_all_tasks_blocked()
        assert await nodes.read(0) == nodes.content


async def _silent(stream):
    await trio.sleep_forever()


async def _ending(stream):
    await stream.receive_some()
    await stream.aclose()


async def _slow(stream):
    """1 Mbit/s."""
    await stream.receive_some()
    await stream.send_all(wire.encode_answer(wire.Status.DATA, MIB))
    for _ in range(1000):
        await stream.send_all(bytes(12_500))
        await trio.sleep(0.1)


async def _endless(stream):
    await stream.receive_some()
    await stream.send_all(wire.encode_answer(wire.Status.DATA, 2**32 - 1))
    await trio.sleep_forever()


async def _nonsense(stream):
    await stream.receive_some()
    await stream.send_all(b"\xff" * 100)
    await trio.sleep_forever()


async def _waiting(stream):
    while True:
        await stream.send_all(wire.encode_answer(wire.Status.WAIT))
        await trio.sleep(0.1)


@pytest.mark.parametrize("behave", [_silent, _ending, _slow, _endless, _nonsense, _waiting, None])
async def test_a_node_that_behaves_otherwise_is_done_without(behave):
    """None is a node of another job."""
    secret = SECRET if behave else b"another job's"
    async with nodes_of(3, 6 * MIB, down={1}) as nodes, trio.open_nursery() as nursery:
        nursery.start_soon(as_server, nodes, secret, behave or _silent)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(LONG_S):
            assert await nodes.read(0) == nodes.content
        nursery.cancel_scope.cancel()
    assert nodes.clients[0].received_bytes > 0, "the others are asked all the same"


async def test_wrong_bytes_are_read_again_from_the_store():
    async with nodes_of(3, 6 * MIB, down={1}) as nodes, trio.open_nursery() as nursery:
        nursery.start_soon(as_server, nodes, SECRET, wrong_bytes)
        await trio.testing.wait_all_tasks_blocked()
        wrong = 0
        async with nodes.shared[0].open(NAME) as reader:
            for at in range(0, 6 * MIB, MIB):
                if await reader.pread(at, MIB) != nodes.content[at : at + MIB]:
                    wrong += 1
                    assert reader.distrust(at, MIB)
                    assert await reader.pread(at, MIB) == nodes.content[at : at + MIB]
                    assert not reader.distrust(at, MIB), "it came from the store"
        assert wrong == 1, "and that node is asked nothing any more"
        assert any("wrong bytes" in note for note in nodes.notes[0])
        nursery.cancel_scope.cancel()


async def test_a_wrong_size_is_found_as_well():
    async def lying(stream):
        await stream.receive_some()
        info = b'[5, 0, ""]'
        await stream.send_all(wire.encode_answer(wire.Status.DATA, len(info)) + info)
        await trio.sleep_forever()

    async with nodes_of(2, down={0, 1}) as nodes, trio.open_nursery() as nursery:
        for node in range(2):
            nursery.start_soon(as_server, nodes, SECRET, lying, node)
        await trio.testing.wait_all_tasks_blocked()
        async with nodes.shared[0].open(NAME) as reader:
            assert len(await reader.pread(0, 100)) == 5
            assert reader.distrust(0, 100)
            assert await reader.pread(0, 100) == nodes.content[:100]
        nursery.cancel_scope.cancel()


async def test_a_store_that_takes_long_is_waited_for():
    async with nodes_of(3, MIB) as nodes:
        for store in nodes.own:
            store.delay_s = 1.0  # as long as a node may be silent, with what comes before
        home = grid.PeerGrid(3, 0).homes(NAME, 0)[0]
        other = next(node for node in range(3) if node != home)
        assert await nodes.read(other) == nodes.content
        assert not nodes.own[other].read_bytes and not any(nodes.notes)


async def test_what_the_store_says_is_said():
    async with nodes_of(2) as nodes:
        with pytest.raises(NotFound):
            async with nodes.shared[0].open("images/none"):
                pass
        assert not any(nodes.notes)


async def test_it_waits_for_servers_only_while_the_job_begins():
    async with nodes_of(3, 3 * MIB, down={0, 1, 2}) as nodes, trio.open_nursery() as nursery:
        client = nodes.clients[0]
        client.begun_s = time.monotonic()
        nursery.start_soon(_late, nodes)
        assert await nodes.read(0) == nodes.content
        assert client.received_bytes >= 2 * MIB and not nodes.notes[0]
        nursery.cancel_scope.cancel()


async def test_a_server_that_starts_late_is_passed_over_until_it_is_there():
    async with nodes_of(3, 6 * MIB, down={1}) as nodes, trio.open_nursery() as nursery:
        nodes.clients[0].begun_s = time.monotonic() - 10
        assert await nodes.read(0, 0, 3 * MIB) == nodes.content[: 3 * MIB]
        assert nodes.read_bytes == 3 * MIB, "its pieces have another home meanwhile"
        nursery.start_soon(nodes.servers[1].serve, listen(nodes.hosts[1], nodes.port))
        await trio.testing.wait_all_tasks_blocked()
        assert await nodes.read(0) == nodes.content
        assert nodes.servers[1].served.sent_bytes and not nodes.notes[0]
        nursery.cancel_scope.cancel()


async def _late(nodes):
    await trio.sleep(0.3)
    async with trio.open_nursery() as nursery:
        for server, host in zip(nodes.servers, nodes.hosts, strict=True):
            nursery.start_soon(server.serve, listen(host, nodes.port))


# Strangers


async def test_a_stranger_learns_nothing():
    async with nodes_of(2) as nodes:
        another = wire.Proofs(b"x", 0, nodes.port, b"", b"").client
        for proof in (b"", bytes(wire.PROOF_BYTES), another):
            stream = await trio.open_tcp_stream(nodes.hosts[0], nodes.port)
            greeting = await stream.receive_some()
            assert greeting[: len(wire.MAGIC)] == wire.MAGIC
            assert len(greeting) == len(wire.MAGIC) + wire.NONCE_BYTES
            ask = wire.PeerRequest(wire.Kind.READ, 0, NAME, 0, 100).encode()
            await stream.send_all(bytes(wire.NONCE_BYTES) + proof.ljust(wire.PROOF_BYTES) + ask)
            async with stream:
                with suppress(trio.BrokenResourceError):
                    assert not await stream.receive_some()
        assert nodes.servers[0].served.strangers == 3
        assert nodes.read_bytes == 0


def test_a_proof_is_of_one_side_one_server_and_one_connection():
    server, client = bytes(16), bytes(range(16))
    proofs = [
        wire.Proofs(secret, node, port, first, second)
        for secret in (SECRET, b"another")
        for node, port in ((1, 47_100), (2, 47_100), (1, 47_101))
        for first, second in ((server, client), (client, server))
    ]
    assert len({side for one in proofs for side in (one.client, one.server)}) == 24


async def test_nothing_is_said_to_who_hands_it_on_to_another_node():
    """A stranger took node 1's port, and asks node 0 for what he needs to be believed."""
    seen = bytearray()

    async def relay(stream):
        async def copy(one, other):
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in one:
                    seen.extend(data)
                    await other.send_all(data)

        other = await trio.open_tcp_stream(nodes.hosts[0], nodes.port)
        async with other, stream, trio.open_nursery() as nursery:
            nursery.start_soon(copy, stream, other)
            await copy(other, stream)
            nursery.cancel_scope.cancel()

    async with nodes_of(2, down={1}) as nodes, trio.open_nursery() as nursery:
        listener = trio.socket.from_stdlib_socket(listen(nodes.hosts[1], nodes.port))
        nursery.start_soon(trio.serve_listeners, relay, [trio.SocketListener(listener)])
        await trio.testing.wait_all_tasks_blocked()
        assert await nodes.read(0) == nodes.content
        assert nodes.servers[0].served.strangers > 0
        assert seen.startswith(wire.MAGIC) and NAME.encode() not in seen
        nursery.cancel_scope.cancel()


async def test_strangers_do_not_keep_the_nodes_out():
    async with nodes_of(2, down={1}) as nodes:
        strangers = [socket.create_connection((nodes.hosts[0], nodes.port)) for _ in range(100)]
        await trio.testing.wait_all_tasks_blocked()
        nodes.clients[1].begun_s = time.monotonic()
        assert await nodes.read(1) == nodes.content
        assert nodes.clients[1].received_bytes > 0
        for stranger in strangers:
            stranger.close()


async def test_a_request_beyond_its_piece_ends_the_connection():
    async with nodes_of(2) as nodes:
        for bad in (
            wire.PeerRequest(wire.Kind.READ, 0, NAME, 1, MIB),
            wire.PeerRequest(wire.Kind.READ, 0, "x" * 1025, 0, 1),
        ):
            connection = await trio.to_thread.run_sync(
                connect, nodes.hosts[0], nodes.port, 0, SECRET
            )
            connection.sendall(bad.encode())
            with suppress(ConnectionResetError):
                assert await trio.to_thread.run_sync(connection.recv, 1) == b""
            connection.close()


@pytest.mark.parametrize("request_", [(7, NAME), (0, "../etc/passwd"), (0, "/etc/passwd")])
async def test_a_name_that_is_none_is_refused(request_):
    async with nodes_of(2) as nodes:
        request = wire.PeerRequest(wire.Kind.READ, *request_, 0, 10)
        assert await nodes.clients[1].read(request) is None
        assert not any(nodes.notes)


def test_a_job_has_several_ports_to_try():
    ports = range(47_100, 47_500)
    assert ports_of_job(ports, 0) == [47_100, 47_101, 47_102, 47_103]
    for job_id in range(1000):
        assert len(set(ports_of_job(ports, job_id))) == 4
        assert set(ports_of_job(ports, job_id)) <= set(ports)
    assert ports_of_job(range(50_000, 50_001), 9) == [50_000]

"""Starts of many nodes, simulated."""

import pytest

from bootseer.simulate import start
from bootseer.simulate.start import Machines, Need, predict
from bootseer.units import MIB

MACHINES = Machines(
    store_bytes_per_s=200 * MIB, node_bytes_per_s=50 * MIB, store_latency_s=0, node_latency_s=0
)
SHARED = Need(shared_bytes=400 * MIB)


def test_one_node_takes_what_its_link_takes_and_the_rest():
    need = Need(shared_bytes=400 * MIB, own_bytes=100 * MIB, rest_s=3)
    told = predict(MACHINES, need, 1, has_peers=True)
    assert told.ready_s == pytest.approx(8 + 2 + 3, rel=0.01)
    assert told.store_bytes == 500 * MIB


def test_nodes_by_themselves_share_the_store():
    for nodes in (2, 4):  # their links are as fast as the store
        told = predict(MACHINES, SHARED, nodes, has_peers=False)
        assert told.ready_s == pytest.approx(8, rel=0.02)
    told = predict(MACHINES, SHARED, 64, has_peers=False)
    assert told.ready_s == pytest.approx(64 * 400 / 200, rel=0.02)
    assert told.store_bytes == 64 * 400 * MIB


@pytest.mark.parametrize("nodes", [2, 8, 64, 65, 512, 1024])
def test_what_nodes_read_from_each_other_leaves_the_store_once(nodes):
    told = predict(MACHINES, SHARED, nodes, has_peers=True)
    assert told.store_bytes == pytest.approx(400 * MIB, rel=0.01)
    # No start is faster than the link of one node, and none waits much for others.
    assert 8 <= told.ready_s < 2 * 8


def test_own_data_are_bound_by_the_store():
    need = Need(shared_bytes=0, own_bytes=100 * MIB)
    told = predict(MACHINES, need, 64, has_peers=True)
    assert told.ready_s == pytest.approx(64 * 100 / 200, rel=0.01)
    assert told.store_bytes == 64 * 100 * MIB


def test_a_slow_answer_costs_little_where_much_is_asked_for_at_once():
    slow = Machines(
        store_bytes_per_s=200 * MIB,
        node_bytes_per_s=50 * MIB,
        store_latency_s=0.01,
        node_latency_s=0.001,
    )
    for nodes in (1, 8, 64):
        soon = predict(MACHINES, SHARED, nodes, has_peers=True).ready_s
        late = predict(slow, SHARED, nodes, has_peers=True).ready_s
        assert soon < late < 1.2 * soon


def test_nodes_that_need_nothing_are_ready_after_the_rest():
    told = predict(MACHINES, Need(shared_bytes=0, rest_s=2.5), 16, has_peers=True)
    assert (told.ready_s, told.store_bytes) == (2.5, 0)


def test_a_part_of_the_data_stands_for_all_of_them(monkeypatch):
    """Its begin and end count for more than they would for all."""
    whole = predict(MACHINES, SHARED, 512, has_peers=True)
    monkeypatch.setattr(start, "_MOST_PIECES", 512 * 100)
    part = predict(MACHINES, SHARED, 512, has_peers=True)
    assert part.store_bytes == pytest.approx(whole.store_bytes, rel=0.01)
    assert whole.ready_s <= part.ready_s < 1.5 * whole.ready_s


def test_nodes_that_read_in_the_same_order_wait_for_the_same_homes():
    first = Need(shared_bytes=400 * MIB, is_first=True)
    told = predict(MACHINES, first, 512, has_peers=True)
    assert told.ready_s > 1.15 * predict(MACHINES, SHARED, 512, has_peers=True).ready_s


def test_nodes_of_one_machine_wait_for_its_processors():
    machines = Machines(store_bytes_per_s=200 * MIB, node_bytes_per_s=50 * MIB, processors=2)
    need = Need(shared_bytes=0, rest_s=3, cpu_s=2)
    told = [predict(machines, need, nodes, has_peers=True).ready_s for nodes in (1, 2, 8)]
    assert told == [3, 3, 3 + 2 * 3]

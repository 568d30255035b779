"""Which nodes of a job are spare nodes, and how long they wait."""

from itertools import pairwise

import pytest
import trio

from bootseer.agent.workers.spare_node import Patience, missing_after, patience, spare_number
from bootseer.image.hot.repository import is_among

COUNT = 4


@pytest.mark.parametrize("nodes", [1, 4, 5, 15, 16, 17, 64, 1000])
def test_each_spare_node_has_a_number_of_its_own(nodes):
    numbers = {node: spare_number(COUNT, nodes, node) for node in range(nodes)}
    spares = [number for number in numbers.values() if number is not None]
    assert len(spares) == len(set(spares)) == min(16, nodes) - min(COUNT, nodes)
    assert set(spares) <= set(range(12))
    assert all(numbers[n] is None for n in range(nodes) if is_among(COUNT, nodes, n))


def test_those_that_look_first_are_spread_over_the_job():
    first = [node for node in range(64) if spare_number(COUNT, 64, node) in range(COUNT)]
    assert {b - a for a, b in pairwise(first)} == {16}


def test_a_node_of_a_job_whose_nodes_are_not_known_is_no_spare_node():
    assert spare_number(COUNT, 0, 0) is None


def test_each_waits_longer_than_the_one_before_and_where_events_took_long():
    idle, busy = ([patience(n, COUNT, own_s) for n in range(12)] for own_s in (0.1, 3.0))
    assert all(a.whole_s < b.whole_s for waits in (idle, busy) for a, b in pairwise(waits))
    assert idle[0] == Patience(0.5, 2.0)
    assert busy[0].whole_s == 6.0


@pytest.mark.parametrize("appears_s", [0.0, 0.6, 1.9, 3.0])
async def test_what_appears_in_time_is_not_missing(appears_s, autojump_clock):
    began_s, looks = trio.current_time(), []

    async def is_there(item):
        looks.append(item)
        return item == "slow" and trio.current_time() - began_s >= appears_s

    missing = await missing_after(Patience(0.5, 2.0), ["slow", "never"], is_there)
    assert missing == (["never"] if appears_s < 2 else ["slow", "never"])
    assert trio.current_time() - began_s == pytest.approx(2.0)
    assert looks.count("never") <= 5


async def test_nothing_is_asked_once_all_is_there(autojump_clock):
    looks = []

    async def is_there(item):
        looks.append(item)
        return True

    assert not await missing_after(Patience(0.5, 2.0), ["a", "b"], is_there)
    assert looks == ["a", "b"]
    assert trio.current_time() < 0.6

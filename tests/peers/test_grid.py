from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.peers.grid import FLAT_NODES, PeerGrid

SIZES = [1, 2, 3, 63, 64, 65, 100, 255, 1000, 1023, 16_384]


def reader(grid: PeerGrid, name: str, piece: int) -> int:
    """Return the node that reads a piece from the store when all of them are well."""
    home = grid.homes(name, piece)[0]
    of_home = PeerGrid(grid.nodes, home)
    return (of_home.readers(name, piece) or [home])[0]


@pytest.mark.parametrize("nodes", SIZES)
def test_each_piece_is_read_by_one_node(nodes):
    for piece in (0, 1, 7, 1000):
        readers = {reader(PeerGrid(nodes, n), "object", piece) for n in range(nodes)}
        assert len(readers) == 1 and readers <= set(range(nodes))


@given(st.integers(1, 20_000), st.data())
def test_homes_are_other_nodes_of_the_row(nodes, data):
    grid = PeerGrid(nodes, data.draw(st.integers(0, nodes - 1)))
    piece = data.draw(st.integers(0, 2**44))
    homes = grid.homes("object", piece)
    assert len(set(homes)) == len(homes) == min(2, grid.columns)
    assert all(0 <= home < nodes for home in homes)
    assert all(abs(home - grid.index) <= nodes // grid.rows + 1 for home in homes)
    assert reader(grid, "object", piece) == reader(PeerGrid(nodes, 0), "object", piece)
    assert grid.index not in grid.readers("object", piece)


@pytest.mark.parametrize("nodes", SIZES)
def test_a_node_talks_to_few_others(nodes):
    grid = PeerGrid(nodes, nodes // 2)
    talks_to = set()
    for piece in range(3 * nodes):
        talks_to.update(grid.homes("object", piece))
        if grid.homes("object", piece)[0] == grid.index:
            talks_to.update(grid.readers("object", piece))
    assert len(talks_to) <= (nodes if nodes <= FLAT_NODES else 2 * isqrt(nodes) + 4)


@pytest.mark.parametrize("nodes", [2, 8, 64, 65, 1000])
def test_the_nodes_read_alike_much(nodes):
    grid, read = PeerGrid(nodes, 0), [0] * nodes
    for piece in range(20 * nodes):
        read[reader(grid, "object", piece)] += 1
    homes = [count for count in read if count]
    assert len(homes) >= grid.rows * grid.columns * 0.99
    assert max(homes) <= 2 * 20 * nodes / len(homes)

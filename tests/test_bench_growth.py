"""What is predicted for jobs of many nodes from what few have taken."""

import io

import pytest
from bootseer_dev.bench import growth
from bootseer_dev.bench.growth import Measured
from bootseer_dev.bench.many_epilogs import simulate, writing_jobs
from rich.console import Console

from bootseer.simulate.start import Machines, Need, predict
from bootseer.units import MIB

MACHINES = Machines(store_bytes_per_s=20 * MIB, node_bytes_per_s=10 * MIB, processors=2)


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    monkeypatch.setattr(growth, "SIZES", (64, 512))


def test_starts_that_are_as_simulated_have_ratios_of_one():
    need = Need(shared_bytes=100 * MIB, rest_s=2.5, cpu_s=2, is_first=True)
    measured = {}
    for nodes in (1, 2, 8):
        told = predict(MACHINES, need, nodes, has_peers=True)
        measured[nodes] = Measured(told.ready_s, told.store_bytes)
    out = io.StringIO()
    figures, ratios = growth.compare(MACHINES, measured, Console(file=out, width=100))
    assert {name: pytest.approx(1) for name in ratios} == ratios
    assert set(ratios) == {
        "simulated_over_measured_2",
        "simulated_over_measured_8",
        "simulated_over_measured_store_2",
        "simulated_over_measured_store_8",
    }
    values = {figure.name: figure.median for figure in figures}
    assert values["simulated_store_512_nodes_mb"] < 1.1 * values["simulated_store_1_nodes_mb"]
    assert "512" in out.getvalue()
    assert values["simulated_ready_512_nodes_s"] < 100, "it has more than two processors"


def test_a_start_that_took_twice_as_long_is_seen():
    measured = {1: Measured(12, 100 * MIB), 4: Measured(40, 100 * MIB)}
    _, ratios = growth.compare(MACHINES, measured, Console(file=io.StringIO()))
    assert ratios["simulated_over_measured_4"] < 0.6


def test_calls_grow_by_those_of_each_node():
    measured = {nodes: [7 * nodes + 40] for nodes in (4, 16, 48)} | {1: [20]}
    out = io.StringIO()
    figures, ratios = growth.predict_calls(measured, Console(file=out))
    assert ratios == {"simulated_over_measured_calls_16": pytest.approx(1)}
    values = {figure.name: figure.median for figure in figures}
    assert values["simulated_namenode_calls_512_alone"] == pytest.approx(7 * 512 + 40)
    writers = len(writing_jobs(1, 512))
    assert writers < 60
    assert values["simulated_namenode_calls_512_nodes"] == pytest.approx(7 * writers + 40)
    assert "7.0 a node and 40 a job" in out.getvalue()


def test_the_end_of_a_large_job_asks_little_more_than_that_of_a_small_one():
    small, large = (simulate(nodes, 0.002, is_warm=True) for nodes in (64, 4096))
    rows = 64
    assert small.calls < large.calls <= small.calls + 3 * rows + 12, (
        "and each spare node looks once"
    )
    assert large.ended_s < 15 and large.ended_s <= small.ended_s + 1


def test_a_distant_store_takes_longer():
    near, far = (simulate(64, latency_s, is_warm=False).ended_s for latency_s in (0.002, 0.1))
    assert far > near + 0.5


def test_from_one_size_nothing_is_predicted():
    assert growth.predict_calls({1: [20], 4: [60]}, Console(file=io.StringIO())) == ([], {})

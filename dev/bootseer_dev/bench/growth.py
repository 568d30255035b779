"""What is predicted for jobs of many nodes, beside what is measured on a few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bootseer.simulate.start import Machines, Need, predict
from bootseer.units import format_duration, format_size
from bootseer_dev.bench import many_epilogs
from bootseer_dev.bench.figures import Figure

SIZES = (64, 512, 1024, 4096, 16_384)
LATENCIES_S = (0.002, 0.05)
_START_CPU_S = 2.0
"""What the agent of a node takes to start and serve an image; see `make bench`."""
_RECORDING = 4
"""Nodes of a job that record what its start has read."""


class Measured(NamedTuple):
    """A measured start: seconds until all nodes were ready, and bytes that left the store."""

    ready_s: float
    store_bytes: float


def compare(
    machines: Machines, measured: Mapping[int, Measured], console: Console
) -> tuple[list[Figure], dict[str, float]]:
    """Predict starts from that of one node, print them, and return figures and ratios.

    Nodes of the sizes that cannot be measured have processors of their own.

    Args:
        machines: on which they were measured.
        measured: starts without a hot set by the number of their nodes, one node among them.
        console: for the table.
    """
    alone = measured[1]
    need = Need(shared_bytes=round(alone.store_bytes), cpu_s=_START_CPU_S, is_first=True)
    of_links = predict(machines, need, 1, has_peers=True).ready_s
    need = replace(need, rest_s=max(0.0, alone.ready_s - of_links))
    table = Table("nodes", "measured", "predicted", "from the store", "each by itself")
    figures, ratios = [], {}
    for nodes in (*sorted(measured), *SIZES):
        seen = measured.get(nodes)
        where = machines if seen else replace(machines, processors=0)
        told = predict(where, need, nodes, has_peers=True)
        lonely = predict(where, need, nodes, has_peers=False)
        table.add_row(
            f"{nodes:,}",
            format_duration(seen.ready_s) if seen else "",
            format_duration(told.ready_s),
            format_size(told.store_bytes),
            format_duration(lonely.ready_s),
        )
        figures.append(Figure(f"simulated_ready_{nodes}_nodes_s", "s", (told.ready_s,)))
        figures.append(Figure(f"simulated_store_{nodes}_nodes_mb", "MB", (told.store_bytes / 1e6,)))
        if seen and nodes > 1:
            ratios[f"simulated_over_measured_{nodes}"] = told.ready_s / seen.ready_s
            ratios[f"simulated_over_measured_store_{nodes}"] = told.store_bytes / seen.store_bytes
    console.print(table)
    return figures, ratios


def predict_calls(
    measured: Mapping[int, Sequence[float]], console: Console
) -> tuple[list[Figure], dict[str, float]]:
    """Predict the NameNode calls of an epilog from those of the smallest and largest job.

    A job's calls are those of each node, and those of the few nodes that record; the latter are
    complete in jobs of `_RECORDING` nodes. Where nodes give their events to another one, only those
    count that write objects of their own.

    Args:
        measured: calls of jobs by the number of their nodes.
        console: for the table.
    """
    sizes = sorted(nodes for nodes in measured if nodes >= _RECORDING)
    if len(sizes) < 2:
        return [], {}
    few, many = sizes[0], sizes[-1]
    means = {nodes: sum(calls) / len(calls) for nodes, calls in measured.items()}
    per_node = (means[many] - means[few]) / (many - few)
    shared = means[few] - few * per_node
    console.print(f"NameNode calls of an epilog: {per_node:.1f} a node and {shared:.0f} a job")
    figures, ratios = [], {}
    for nodes in (*sizes[1:-1], *SIZES):
        alone = shared + nodes * per_node
        if nodes in means:
            ratios[f"simulated_over_measured_calls_{nodes}"] = alone / means[nodes]
        calls = shared + len(many_epilogs.writing_jobs(1, nodes)) * per_node
        figures.append(Figure(f"simulated_namenode_calls_{nodes}_nodes", "calls", (calls,)))
        figures.append(Figure(f"simulated_namenode_calls_{nodes}_alone", "calls", (alone,)))
        console.print(f"  {nodes:,} nodes: {calls:,.0f} calls, {alone:,.0f} without groups")
    return figures, ratios


def simulate_epilogs(console: Console) -> list[Figure]:
    """Count what the end of large jobs asks of a store, and how long it takes."""
    table = Table(
        "nodes", "store answers after", "calls, first start", "calls, warm", "ended after"
    )
    figures = []
    for nodes in SIZES:
        for latency_s in LATENCIES_S:
            cold = many_epilogs.simulate(nodes, latency_s, is_warm=False)
            warm = many_epilogs.simulate(nodes, latency_s, is_warm=True)
            table.add_row(
                f"{nodes:,}",
                format_duration(latency_s),
                f"{cold.calls:,}",
                f"{warm.calls:,}",
                f"{format_duration(cold.ended_s)}, {format_duration(warm.ended_s)}",
            )
            name = f"{nodes}_nodes_{latency_s * 1e3:.0f}_ms"
            for kind, ended in (("cold", cold), ("warm", warm)):
                figures.append(Figure(f"store_calls_{kind}_{name}", "calls", (ended.calls,)))
                figures.append(Figure(f"epilogs_{kind}_{name}_s", "s", (ended.ended_s,)))
    console.print(table)
    return figures

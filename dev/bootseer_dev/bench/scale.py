"""What a job of many nodes asks of the NameNode and takes from the store, and how long it takes.

At the NameNode, nodes are processes that publish as agents do; Slurm and the agents themselves are
left out there.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from bootseer.errors import Unavailable
from bootseer_dev.bench import epilog_client, figures, growth, peers
from bootseer_dev.bench.figures import Figure
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.hdfs import Hdfs, HdfsSettings, hadoop_jars

USER = "alice"
_DATANODES = 2
_ENDED_S = 300


@dataclass(frozen=True, slots=True)
class ScaleSpec:
    """What is measured.

    Attributes:
        nodes: sizes of jobs.
        starts: of each size, the first without a hot set.
        exchanging: sizes of jobs whose nodes read the same data from each other.
        rounds: how often they do.
        build_dir: for Hadoop's jars and the figures.
    """

    nodes: tuple[int, ...]
    starts: int
    exchanging: tuple[int, ...]
    rounds: int
    build_dir: Path


def run_scale_bench(spec: ScaleSpec, console: Console) -> None:
    """Measure, print a table and write BUILD_DIR/bench-scale.json."""
    jars = hadoop_jars(spec.build_dir, console.print)
    measured: list[Figure] = []
    ratios: dict[str, float] = {}
    asked: dict[int, Sequence[int]] = {}
    machines = ClusterSpec(name="bench-scale", nodes=0, datanodes=_DATANODES)
    with Cluster.up(machines) as cluster:
        hdfs = Hdfs.start(cluster, jars, HdfsSettings(replication=1))
        for nodes in spec.nodes:
            starts = [_publish(hdfs, nodes, number, console) for number in range(spec.starts)]
            calls = [start.calls for start in starts]
            measured += [
                Figure(
                    f"publish_{nodes}_nodes_s", "s", tuple(s for x in starts for s in x.seconds)
                ),
                Figure(f"unpublished_{nodes}_nodes", "nodes", tuple(x.unpublished for x in starts)),
                Figure(f"namenode_calls_{nodes}_nodes", "calls", tuple(calls)),
            ]
            ratios[f"namenode_calls_per_node_{nodes}"] = max(calls) / nodes
            asked[nodes] = calls[1:]
    calls_of_many, ratios_of_many = growth.predict_calls(asked, console)
    measured += calls_of_many
    measured += growth.simulate_epilogs(console)
    ratios |= ratios_of_many
    if spec.exchanging:
        of_peers, ratios_of_peers = peers.measure(spec.exchanging, spec.rounds, jars, console)
        measured += of_peers
        ratios |= ratios_of_peers
    figures.show(console, measured, ratios)
    figures.write(spec.build_dir / "bench-scale.json", measured, ratios)


class _Start(NamedTuple):
    """One start of a job.

    Attributes:
        seconds: of each node, until its agent would end.
        unpublished: nodes whose events are not in the store.
        calls: of the NameNode.
    """

    seconds: Sequence[float]
    unpublished: int
    calls: int


def _publish(hdfs: Hdfs, nodes: int, number: int, console: Console) -> _Start:
    """Have all nodes of a job publish; the first job has no hot set."""
    folder = f"/user/{USER}/scale-{nodes}"
    hdfs.fs("-mkdir", "-p", folder, user=USER)
    before = hdfs.calls()
    kind = "warm" if number else "cold"
    argv = [sys.executable, "-m", epilog_client.MODULE]
    argv += [hdfs.url + folder, USER, str(100 + number), str(nodes), kind]
    ended = json.loads(hdfs.cluster.run(argv, user=USER, timeout_s=_ENDED_S).stdout)
    if len(ended) != nodes:
        raise Unavailable(f"{len(ended)} of {nodes} nodes have ended")
    asked = hdfs.calls_since(before)
    seconds, errors, roles, calls = zip(*ended, strict=True)
    start = _Start(seconds, sum(map(bool, errors)), sum(asked.values()))
    console.print(f"{nodes} nodes, {kind}: {start.calls} calls, at most {max(seconds):.1f} s")
    console.print(f"  NameNode: {_listed(asked)}")
    by_role: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for role, of_node in zip(roles, calls, strict=True):
        by_role[role].update(of_node)
    for role, of_role in by_role.items():
        console.print(f"  {roles.count(role)} {role}: {_listed(of_role)}")
    for error in set(errors) - {""}:
        console.print(f"  {error}", markup=False)
    return start


def _listed(calls: Mapping[str, int]) -> str:
    by_count = sorted(calls.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count}" for name, count in by_count)

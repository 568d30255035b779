"""How long jobs of several nodes take for the same data, and what of it leaves the store.

The data are an image, and a file of a checkpoint.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bootseer.errors import Unavailable
from bootseer.simulate.start import Machines
from bootseer.units import MIB, NS_PER_S
from bootseer_dev.bench import growth
from bootseer_dev.bench.figures import Figure
from bootseer_dev.bench.growth import Measured
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.hdfs import Hdfs, HdfsSettings
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import Lab

USER = "alice"
NAME = "shared:v1"
_IMAGE_BYTES = 192 * MIB
_CHECKPOINT_BYTES = 96 * MIB
_DATANODES = 2
_LINK_MBIT = 60
"""Of each node and DataNode, each way."""
_CACHE = "/var/cache/bootseer/images"
_COMMAND = "cat ${BOOTSEER_IMAGE:-$BOOTSEER_CKPT/weights} >/dev/null; echo ready $(date +%s%N)"
_READY = re.compile(r"^ready (\d+)$", re.MULTILINE)


def measure(
    nodes: Sequence[int], rounds: int, jars: Path, console: Console
) -> tuple[list[Figure], dict[str, float]]:
    """Run jobs that read all of an image on each node; returns figures and ratios.

    Links and store are slow, so that processors, which all nodes share here, do not count.

    Args:
        nodes: sizes of jobs, the smallest first.
        rounds: how often each is run.
        jars: Hadoop's.
        console: what is measured is printed there.
    """
    measured: dict[str, list[Measured]] = {}
    spec = ClusterSpec(
        name="bench-peers",
        nodes=max(nodes),
        link_rate=f"{_LINK_MBIT}mbit",
        datanodes=_DATANODES,
        datanode_rate=f"{_LINK_MBIT}mbit",
    )
    with Cluster.up(spec) as cluster:
        hdfs = Hdfs.start(cluster, jars, HdfsSettings(replication=_DATANODES))
        site.install(cluster, console.print)
        bench = _Bench(cluster, hdfs)
        bench.put_image()
        bench.put_checkpoint()
        most = max(nodes)
        for _ in range(rounds):
            for count in (1, *nodes):
                measured.setdefault(f"{count}_nodes", []).append(bench.start(count, min_nodes=2))
            for name, start, min_nodes in (
                (f"{most}_nodes_without_peers", bench.start, 0),
                (f"checkpoint_{most}_nodes", bench.start_with_checkpoint, 2),
                (f"checkpoint_{most}_nodes_without_peers", bench.start_with_checkpoint, 0),
            ):
                measured.setdefault(name, []).append(start(most, min_nodes=min_nodes))
    figures = []
    for name, starts in measured.items():
        figures.append(Figure(f"ready_{name}_s", "s", tuple(s.ready_s for s in starts)))
        sent = tuple(s.store_bytes / 1e6 for s in starts)
        figures.append(Figure(f"store_{name}_mb", "MB", sent))
    by_name = {figure.name: figure.median for figure in figures}
    ratios = {}
    for count in nodes:
        over_one = by_name[f"store_{count}_nodes_mb"] / by_name["store_1_nodes_mb"]
        ratios[f"store_bytes_over_one_node_{count}"] = over_one
        ready = by_name[f"ready_{count}_nodes_s"] / by_name[f"ready_{nodes[0]}_nodes_s"]
        if count != nodes[0]:
            ratios[f"ready_{count}_over_{nodes[0]}"] = ready
    of_checkpoint = f"checkpoint_{most}_nodes"
    over_unique = by_name[f"store_{of_checkpoint}_mb"] / (_CHECKPOINT_BYTES / 1e6)
    ratios[f"checkpoint_store_bytes_over_unique_{most}"] = over_unique
    by_itself = by_name[f"ready_{of_checkpoint}_without_peers_s"]
    ratios[f"checkpoint_ready_over_alone_{most}"] = by_name[f"ready_{of_checkpoint}_s"] / by_itself
    link = _LINK_MBIT * 1e6 / 8
    machines = Machines(
        store_bytes_per_s=_DATANODES * link,
        node_bytes_per_s=link,
        processors=os.cpu_count() or 1,
    )
    seen = {
        count: Measured(by_name[f"ready_{count}_nodes_s"], by_name[f"store_{count}_nodes_mb"] * 1e6)
        for count in (1, *nodes)
    }
    simulated, of_simulated = growth.compare(machines, seen, console)
    return figures + simulated, ratios | of_simulated


class _Bench:
    def __init__(self, cluster: Cluster, hdfs: Hdfs) -> None:
        self._cluster = cluster
        self._hdfs = hdfs
        self._lab = Lab(cluster, cluster.shared)

    def put_image(self) -> None:
        """Put an image of bytes that cannot be packed into the user's store."""
        content, image = self._cluster.state_dir / "content", self._cluster.shared / "image.sqsh"
        content.mkdir()
        (content / "data").write_bytes(random.Random(1).randbytes(_IMAGE_BYTES))
        argv = ["mksquashfs", str(content), str(image), "-noD", "-quiet", "-no-progress"]
        subprocess.run(argv, check=True, capture_output=True)
        self._set(0)
        add = [site.bootseer(), "image", "import", "/shared/image.sqsh", "--name", NAME, "-q"]
        self._cluster.run(add, user=USER, timeout_s=600)

    def put_checkpoint(self) -> None:
        """Write a checkpoint of one file, which no page cache has."""
        write = f"head -c {_CHECKPOINT_BYTES} /dev/urandom > $BOOTSEER_CKPT/weights"
        argv = ["srun", "-N1", "--bootseer=record", "-Jpeers", self._checkpoint, "sh", "-c", write]
        self._cluster.run(argv, user=USER, timeout_s=600)

    def start(self, nodes: int, *, min_nodes: int) -> Measured:
        """Run one job on nodes that have nothing of the image."""
        return self._start(nodes, min_nodes, f"--bootseer-image=bootseer://{NAME}")

    def start_with_checkpoint(self, nodes: int, *, min_nodes: int) -> Measured:
        """Run one job whose nodes all read the checkpoint."""
        return self._start(nodes, min_nodes, self._checkpoint)

    @property
    def _checkpoint(self) -> str:
        return f"--bootseer-ckpt={self._hdfs.url}/user/{USER}/run"

    def _start(self, nodes: int, min_nodes: int, option: str) -> Measured:
        self._set(min_nodes)
        for node in self._cluster.node_names:
            self._cluster.run(["rm", "-rf", _CACHE], node=node)
        self._lab.drop_caches()
        before = self._sent_bytes()
        began_ns = time.time_ns()
        argv = ["srun", f"-N{nodes}", "--ntasks-per-node=1", "--bootseer=record", "-Jpeers"]
        argv += [option, "sh", "-c", _COMMAND]
        said = self._cluster.run(argv, user=USER, timeout_s=600).stdout
        ready = [int(at) for at in _READY.findall(said)]
        if len(ready) != nodes:
            raise Unavailable(f"{len(ready)} of {nodes} nodes became ready: {said}")
        job = self._lab.newest_job()
        self._cluster.wait_for_job(job)
        self._lab.fallbacks(job)  # which it prints
        sent = self._sent_bytes() - before
        start = Measured((max(ready) - began_ns) / NS_PER_S, sent)
        how = "" if min_nodes else ", each by itself"
        what = option.partition("=")[0].removeprefix("--bootseer-")
        print(f"{what}, {nodes} nodes{how}: {start.ready_s:.1f} s, {sent / 1e6:.0f} MB sent")
        return start

    def _set(self, min_nodes: int) -> None:
        (self._cluster.etc_bootseer / "bootseer.toml").write_text(
            f'[store]\nurl = "{self._hdfs.url}/user/{{user}}/.bootseer"\n'
            "[image]\nways = []\nfill_mib_per_s = 0\n"
            f"[peers]\nmin_nodes = {min_nodes}\n"
        )

    def _sent_bytes(self) -> int:
        """Return what all DataNodes have sent so far."""
        names = self._cluster.spec.datanode_names
        return sum(self._hdfs.traffic(name).read_bytes for name in names)

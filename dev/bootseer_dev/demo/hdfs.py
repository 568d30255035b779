"""The demo's second act: the job loads a checkpoint from a real HDFS, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bootseer.units import MIB, format_duration, format_size
from bootseer_dev.bench import checkpoint_client
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.demo.demo import (
    KEY,
    SHARE,
    USER,
    Demo,
    DemoSpec,
    measure,
    mount_share,
    say_nodes,
)
from bootseer_dev.hdfs import Hdfs, hadoop_jars
from bootseer_dev.jobs import site
from bootseer_dev.material.images import cached_image, demo_image

DATANODES = 4
RATE = "400mbit"
RATE_BYTES_PER_S = 50e6
SHARD_BYTES = 256 * MIB
_RUN = f"/user/{USER}/run42"
_AFTERWORD = """
[bold]On your own cluster[/]
  bootseer ckpt import ./run42 hdfs://NAMENODE/user/me/run42     from files to stripes
  srun --bootseer --bootseer-ckpt=hdfs://NAMENODE/user/me/run42 …
                                        the job finds it under $BOOTSEER_CKPT, to read and to write
  bootseer report JOB                   shows where the time went
"""


class HdfsDemo(Demo):
    """The demo with a checkpoint of one shard for each node, in stripes in HDFS."""

    name = "demo-hdfs"
    _load = (
        'shard="rank_$SLURM_PROCID.pt"\n'
        'case "${2:-$BOOTSEER_CKPT}" in\n'
        f'  hdfs:*) {sys.executable} -m {checkpoint_client.MODULE} native_read "$2/$shard" ;;\n'
        '  *) cat "${2:-$BOOTSEER_CKPT}/$shard" ;;\n'
        "esac >/dev/null\n"
    )

    def __init__(
        self, cluster: Cluster, spec: DemoSpec, console: Console, image: Path, hdfs: Hdfs
    ) -> None:
        """Take over a cluster with the plugin installed and an HDFS."""
        super().__init__(cluster, spec, console, image)
        self._hdfs = hdfs
        self._url = hdfs.url + _RUN

    def prepare(self) -> None:
        """Put the checkpoint into HDFS, once as ordinary files and once in stripes."""
        super().prepare()
        folder = self._cluster.shared / "run42"
        self._cluster.run(["mkdir", str(folder)], user=USER)
        for rank in range(self._spec.nodes):
            (folder / f"rank_{rank}.pt").write_bytes(os.urandom(SHARD_BYTES))
        for options, url in (((), self._url), (("--plain",), f"{self._url}-plain")):
            argv = [site.bootseer(), "ckpt", "import", *options, str(folder), url]
            said = self._cluster.run(argv, user=USER, timeout_s=600).stdout
            self._console.print(f"  bootseer ckpt import {' '.join(options)}: {said.strip()}")

    def ways(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """Name the ways; "without" reads from where the cold start does."""
        what = "without BootSeer, from the share and by one stream of HDFS for each node"
        return {"without": (what, self._without), **super().ways()}

    def bound(self, in_memory_s: float) -> str:
        bytes_ = self._spec.nodes * SHARD_BYTES
        links_s = bytes_ / (DATANODES * RATE_BYTES_PER_S)
        return (
            f"{super().bound(in_memory_s)} {format_size(bytes_)} of checkpoint take "
            f"{format_duration(links_s)} through the links of all DataNodes."
        )

    def forget(self) -> None:
        self._hdfs.fs("-rm", "-r", "-f", "-skipTrash", f"/user/{USER}/.bootseer")

    def _without(self) -> float:
        return self._start(f"{SHARE}/{self._image.name}", f"{self._url}-plain")

    def _with_bootseer(self) -> float:
        image = f"{SHARE}/{self._image.name}"
        wanted = (f"--bootseer-image={image}", f"--bootseer-ckpt={self._url}:ro")
        return self._start(image, options=(f"--bootseer={KEY}", *wanted))

    def _from_local_copy(self, *, cold: bool = True) -> float:
        return self._start(str(self._local_copies), "/shared/run42", cold=cold)


def run_demo_hdfs(spec: DemoSpec, console: Console) -> None:
    """Run the second act and write BUILD_DIR/demo-hdfs.json.

    Raises:
        BootseerError: something it needs is missing; the cluster is down again then.
    """
    image = cached_image(demo_image(torch=spec.torch), spec.build_dir / "images", console.print)
    jars = hadoop_jars(spec.build_dir, console.print)
    say_nodes(spec, console)
    machines = ClusterSpec(
        name="demo-hdfs", nodes=spec.nodes, datanodes=DATANODES, datanode_rate=RATE
    )
    with Cluster.up(machines) as cluster:
        hdfs = Hdfs.start(cluster, jars)
        store = f'[store]\nurl = "{hdfs.url}/user/{{user}}/.bootseer"\n'
        site.install(cluster, console.print, config=store)
        mount_share(cluster, spec, console, image)
        console.print(f"HDFS: {hdfs.url}, {DATANODES} DataNodes behind links of {RATE}/s")
        demo = HdfsDemo(cluster, spec, console, image, hdfs)
        with console.status("preparing image and checkpoint"):
            demo.prepare()
        measure(demo, spec, console)
    console.print(_AFTERWORD)

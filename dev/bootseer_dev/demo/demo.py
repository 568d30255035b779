"""The demo: one job, run cold and then warm on a real Slurm cluster, and how near that is to a
start from a local copy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from bootseer.errors import Unavailable
from bootseer.units import NS_PER_S, format_duration, format_size
from bootseer_dev.bench import figures
from bootseer_dev.bench.figures import Figure
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.jobs import site
from bootseer_dev.material.images import cached_image, ch_run, demo_image

USER = "alice"
SHARE = "/mnt/share"
KEY = "demo"
_AFTERWORD = """
[bold]On your own cluster[/]
  pip install .                         of this checkout, on every node, where users can read it
  bootseer plugin install               builds the plugin and adds it to plugstack.conf.d
  srun --bootseer --bootseer-image=/path/to/image.sqsh …    the second start is warm
  bootseer report JOB                   shows where the time went
"""
_READY = re.compile(r"^ready (\S+) (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DemoSpec:
    """What the demo runs.

    Attributes:
        nodes: of the cluster.
        torch: the CUDA PyTorch image instead of the scientific stack.
        latency_s, bandwidth_bytes_per_s: of the slow share, the bandwidth of all nodes together.
        rounds: how often each way to start is measured.
        build_dir: for the image and the figures.
    """

    nodes: int = field(default_factory=lambda: os.cpu_count() or 1)
    torch: bool = False
    latency_s: float = 0.002
    bandwidth_bytes_per_s: float = 200e6
    rounds: int = 3
    build_dir: Path = Path("build")


class Demo:
    """The demo on a cluster that is up: a job that starts a container.

    Attributes:
        name: of the figures' file.
    """

    name = "demo"
    _load = ""
    """Shell line by which the job's script loads what it is given besides the image."""

    def __init__(self, cluster: Cluster, spec: DemoSpec, console: Console, image: Path) -> None:
        """Take over a cluster with the plugin installed."""
        self._cluster = cluster
        self._spec = spec
        self._console = console
        self._image = image
        self._command = demo_image(torch=spec.torch).command
        self._script = cluster.shared / "train.sh"
        self._mount_dir = cluster.state_dir / "containers"
        self._warm_job = 0
        self._local_copies = cluster.state_dir / "local-%N.sqsh"

    def prepare(self) -> None:
        """Write the job's script, and give each node a local copy of the image."""
        self._mount_dir.mkdir(mode=0o1777, exist_ok=True)
        self._mount_dir.chmod(0o1777)
        start = " ".join(ch_run(Path("$image"), self._mount_dir, *self._command))
        self._script.write_text(
            "#!/bin/sh -e\n"
            "# What a user's job script does: start the container, say when training begins.\n"
            'image=$(echo "$1" | sed "s/%N/$SLURMD_NODENAME/")\n'
            f"{start} >/dev/null\n"
            f"{self._load}"
            'echo "ready $SLURMD_NODENAME $(date +%s%N)"\n'
            f'[ -z "$BOOTSEER_SOCKET" ] || {site.bootseer()} mark first-step\n'
        )
        self._script.chmod(0o755)
        for node in self._cluster.node_names:
            shutil.copyfile(self._image, str(self._local_copies).replace("%N", node))

    def ways(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """List the ways to start, in their order, by name: what they are, and how long one takes.

        "warm" is the one that the last report shows.
        """
        command = f"srun --bootseer={KEY} … train.sh"
        return {
            "cold": (f"cold start: {command}", self._cold),
            "warm": (f"warm start: {command}", self._warm),
            "local": ("without BootSeer, from a local copy on each node", self._from_local_copy),
            "memory": ("the same from memory", lambda: self._from_local_copy(cold=False)),
        }

    def bound(self, in_memory_s: float) -> str:
        """Say what a warm start on this machine cannot be faster than.

        Args:
            in_memory_s: what a start takes that reads nothing from anywhere.
        """
        hot_bytes, nodes = self._hot_bytes(), self._spec.nodes
        share_s = nodes * hot_bytes / self._spec.bandwidth_bytes_per_s
        larger = "the share" if share_s > in_memory_s else "the processors"
        return (
            f"what bounds the warm start: {larger}. {nodes} x {format_size(hot_bytes)} take "
            f"{format_duration(share_s)} through the share; with everything in memory, "
            f"{nodes} starts on {os.cpu_count()} processors take {format_duration(in_memory_s)}. "
            "The two overlap."
        )

    def forget(self) -> None:
        """Make the next start a first one."""
        self._cluster.run(["rm", "-rf", ".bootseer"], user=USER)

    def show_report(self) -> None:
        """Print the last warm job's report, the cold start before it beside it."""
        columns = {"COLUMNS": str(self._console.width), "TERM": "xterm-256color"}
        if self._console.is_terminal:
            columns["FORCE_COLOR"] = "1"
        argv = [site.bootseer(), "report", str(self._warm_job)]
        self._console.print(f"[bold]{' '.join(['bootseer', *argv[1:]])}[/]")
        print(self._cluster.run(argv, user=USER, env=columns).stdout)

    def _start(self, *arguments: str, options: tuple[str, ...] = (), cold: bool = True) -> float:
        """Run the job once, from cold page caches unless told otherwise.

        Returns:
            Seconds from its submission on the idle cluster to when the slowest node was ready.
        """
        if cold:
            # Each node's view of the share, and the disk's below it.
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3\n")
        argv = ["srun", "-N", str(self._spec.nodes), "--ntasks-per-node=1", "-J", "train"]
        began_ns = time.time_ns()
        result = self._cluster.run(
            [*argv, *options, "/shared/train.sh", *arguments], user=USER, timeout_s=600
        )
        ready = {node: int(ns) for node, ns in _READY.findall(result.stdout)}
        if len(ready) != self._spec.nodes:
            raise Unavailable(f"not every node became ready:\n{result.stdout}{result.stderr}")
        self._cluster.wait_for_job(self._last_job())
        for line in result.stderr.splitlines():
            self._console.print(f"  {line}", markup=False)
        return (max(ready.values()) - began_ns) / NS_PER_S

    def _cold(self) -> float:
        self.forget()
        return self._with_bootseer()

    def _warm(self) -> float:
        took_s = self._with_bootseer()
        self._warm_job = self._last_job()
        return took_s

    def _with_bootseer(self) -> float:
        """Run the job from the slow share, as a user would."""
        image = f"{SHARE}/{self._image.name}"
        return self._start(image, options=(f"--bootseer={KEY}", f"--bootseer-image={image}"))

    def _from_local_copy(self, *, cold: bool = True) -> float:
        return self._start(str(self._local_copies), cold=cold)

    def _hot_bytes(self) -> int:
        argv = [site.bootseer(), "hot", "ls", "--json"]
        found = json.loads(self._cluster.run(argv, user=USER).stdout)
        return max(int(hot_set["hot_bytes"]) for hot_set in found)

    def _last_job(self) -> int:
        answer = self._cluster.run(["squeue", "--states=all", "--noheader", "--format=%A"])
        return max(int(line) for line in answer.stdout.split())


def run_demo(spec: DemoSpec, console: Console) -> None:
    """Run the whole demo and write BUILD_DIR/demo.json.

    Raises:
        BootseerError: something it needs is missing; the cluster is down again then.
    """
    image = cached_image(demo_image(torch=spec.torch), spec.build_dir / "images", console.print)
    say_nodes(spec, console)
    with Cluster.up(ClusterSpec(name="demo", nodes=spec.nodes)) as cluster:
        site.install(cluster, console.print)
        demo = Demo(cluster, spec, console, image)
        mount_share(cluster, spec, console, image)
        with console.status("giving each node a local copy of the image, for comparison"):
            demo.prepare()
        measure(demo, spec, console)
    console.print(_AFTERWORD)


def say_nodes(spec: DemoSpec, console: Console) -> None:
    """Say what the cluster is."""
    nodes = f"{spec.nodes} node{'s' if spec.nodes > 1 else ''}"
    console.print(f"cluster: {nodes}, each with network, mounts and page cache of its own")


def mount_share(cluster: Cluster, spec: DemoSpec, console: Console, image: Path) -> None:
    """Mount the slow share with the image on every node."""
    cluster.mount_share(
        image.parent,
        at=SHARE,
        latency_s=spec.latency_s,
        bandwidth_bytes_per_s=spec.bandwidth_bytes_per_s,
    )
    console.print(
        f"slow share: {SHARE}, {spec.latency_s * 1000:g} ms a request, "
        f"{format_size(spec.bandwidth_bytes_per_s)}/s for all nodes together"
    )


def measure(demo: Demo, spec: DemoSpec, console: Console) -> None:
    """Start in all ways, in turn; print the last report and the figures, and write them."""
    seconds: dict[str, list[float]] = {name: [] for name in demo.ways()}
    for number in range(spec.rounds):
        console.print(f"\n[bold]round {number + 1} of {spec.rounds}[/]")
        for name, (what, start) in demo.ways().items():
            console.print(what)
            seconds[name].append(start())
            console.print(f"  ready after [bold]{format_duration(seconds[name][-1])}[/]")
    console.print()
    demo.show_report()
    found = {name: Figure(f"{name}_ready_s", "s", tuple(times)) for name, times in seconds.items()}
    warm = found["warm"].median
    ratios = {
        f"{name}_over_warm": found[name].median / warm
        for name in ("without", "cold")
        if name in found
    }
    ratios["warm_over_local"] = warm / found["local"].median
    figures.show(console, [*found.values()], ratios)
    console.print(demo.bound(found["memory"].median))
    figures.write(spec.build_dir / f"{demo.name}.json", [*found.values()], ratios)

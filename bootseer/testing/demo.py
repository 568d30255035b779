"""The demo: one job, run cold and then warm on a real Slurm cluster, and how near that is to a
start from a local copy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from bootseer.errors import Unavailable
from bootseer.testing import figures, site
from bootseer.testing.cluster import Cluster, ClusterSpec
from bootseer.testing.figures import Figure
from bootseer.testing.images import cached_image, ch_run, demo_image
from bootseer.units import NS_PER_S, format_duration, format_size

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
        rounds: how often cold, warm and local are measured.
        build_dir: for the image and the figures.
    """

    nodes: int = field(default_factory=lambda: os.cpu_count() or 1)
    torch: bool = False
    latency_s: float = 0.002
    bandwidth_bytes_per_s: float = 200e6
    rounds: int = 3
    build_dir: Path = Path("build")


class Demo:
    """The demo on a cluster that is up."""

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
            'echo "ready $SLURMD_NODENAME $(date +%s%N)"\n'
            f'[ -z "$BOOTSEER_SOCKET" ] || {site.bootseer()} mark first-step\n'
        )
        self._script.chmod(0o755)
        for node in self._cluster.node_names:
            shutil.copyfile(self._image, str(self._local_copies).replace("%N", node))

    def start(self, image: str, *options: str, cold: bool = True) -> tuple[float, str]:
        """Run the job once, from cold page caches unless told otherwise.

        Returns:
            Seconds from its submission on the idle cluster to the slowest node's end of the
            import, and what srun said.
        """
        if cold:
            # Each node's view of the share, and the disk's below it.
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3\n")
        argv = ["srun", "-N", str(self._spec.nodes), "--ntasks-per-node=1", "-J", "train"]
        began_ns = time.time_ns()
        result = self._cluster.run(
            [*argv, *options, "/shared/train.sh", image], user=USER, timeout_s=600
        )
        ready = {node: int(ns) for node, ns in _READY.findall(result.stdout)}
        if len(ready) != self._spec.nodes:
            raise Unavailable(f"not every node became ready:\n{result.stdout}{result.stderr}")
        self._cluster.wait_for_job(self.last_job())
        return (max(ready.values()) - began_ns) / NS_PER_S, result.stderr

    def from_share(self) -> tuple[float, str]:
        """Run the job from the slow share with BootSeer, as a user would."""
        image = f"{SHARE}/{self._image.name}"
        result = self.start(image, f"--bootseer={KEY}", f"--bootseer-image={image}")
        self._warm_job = self.last_job()
        return result

    def from_local_copy(self, *, cold: bool) -> float:
        """Run the job from each node's own copy of the image, without BootSeer."""
        return self.start(str(self._local_copies), cold=cold)[0]

    def hot_bytes(self) -> int:
        """Return the size of the image's hot set."""
        argv = [site.bootseer(), "hot", "ls", "--json"]
        found = json.loads(self._cluster.run(argv, user=USER).stdout)
        return max(int(hot_set["hot_bytes"]) for hot_set in found)

    def forget(self) -> None:
        """Make the next start a first one."""
        self._cluster.run(["rm", "-rf", ".bootseer"], user=USER)

    def show_report(self) -> None:
        """Print the last job's report, the cold start before it beside it."""
        columns = {"COLUMNS": str(self._console.width), "TERM": "xterm-256color"}
        if self._console.is_terminal:
            columns["FORCE_COLOR"] = "1"
        argv = [site.bootseer(), "report", str(self._warm_job)]
        self._console.print(f"[bold]{' '.join(['bootseer', *argv[1:]])}[/]")
        print(self._cluster.run(argv, user=USER, env=columns).stdout)

    def last_job(self) -> int:
        """Return the id of the newest job."""
        answer = self._cluster.run(["squeue", "--states=all", "--noheader", "--format=%A"])
        return max(int(line) for line in answer.stdout.split())


def run_demo(spec: DemoSpec, console: Console) -> None:
    """Run the whole demo and write BUILD_DIR/demo.json.

    Raises:
        BootseerError: something it needs is missing; the cluster is down again then.
    """
    say = console.print
    image = cached_image(demo_image(torch=spec.torch), spec.build_dir / "images", say)
    nodes = f"{spec.nodes} node{'s' if spec.nodes > 1 else ''}"
    say(f"cluster: {nodes}, each with network, mounts and page cache of its own")
    with Cluster.up(ClusterSpec(name="demo", nodes=spec.nodes)) as cluster:
        site.install(cluster, say)
        cluster.mount_share(
            image.parent,
            at=SHARE,
            latency_s=spec.latency_s,
            bandwidth_bytes_per_s=spec.bandwidth_bytes_per_s,
        )
        say(
            f"slow share: {SHARE}, {spec.latency_s * 1000:g} ms a request, "
            f"{format_size(spec.bandwidth_bytes_per_s)}/s for all nodes together"
        )
        demo = Demo(cluster, spec, console, image)
        with console.status("giving each node a local copy of the image, for comparison"):
            demo.prepare()
        _measure(demo, spec, console)
    say(_AFTERWORD)


def _measure(demo: Demo, spec: DemoSpec, console: Console) -> None:
    cold: list[float] = []
    warm: list[float] = []
    local: list[float] = []
    memory: list[float] = []
    for number in range(spec.rounds):
        demo.forget()
        for kind, seconds in (("cold", cold), ("warm", warm)):
            console.print(f"\n[bold]{kind} start[/] {number + 1} of {spec.rounds}: ", end="")
            console.print(f"srun --bootseer={KEY} … train.sh")
            took, said = demo.from_share()
            seconds.append(took)
            console.print(f"  {said.strip()}\n  ready after [bold]{format_duration(took)}[/]")
        local.append(demo.from_local_copy(cold=True))
        memory.append(demo.from_local_copy(cold=False))
        console.print(
            f"\nthe same start without BootSeer, from a local copy on each node: "
            f"[bold]{format_duration(local[-1])}[/] from a dropped page cache, "
            f"{format_duration(memory[-1])} from a warm one"
        )
    console.print()
    demo.show_report()
    measured = [
        Figure("cold_ready_s", "s", tuple(cold)),
        Figure("warm_ready_s", "s", tuple(warm)),
        Figure("local_ready_s", "s", tuple(local)),
        Figure("memory_ready_s", "s", tuple(memory)),
    ]
    ratios = {
        "cold_over_warm": measured[0].median / measured[1].median,
        "warm_over_local": measured[1].median / measured[2].median,
    }
    figures.show(console, measured, ratios)
    console.print(_bounds(spec, demo.hot_bytes(), measured[3].median))
    figures.write(spec.build_dir / "demo.json", measured, ratios)


def _bounds(spec: DemoSpec, hot_bytes: int, in_memory_s: float) -> str:
    """Say what a warm start on this machine cannot be faster than."""
    share_s = spec.nodes * hot_bytes / spec.bandwidth_bytes_per_s
    larger = "the share" if share_s > in_memory_s else "the processors"
    return (
        f"what bounds the warm start: {larger}. {spec.nodes} x {format_size(hot_bytes)} take "
        f"{format_duration(share_s)} through the share; with the whole image in memory, "
        f"{spec.nodes} starts on {os.cpu_count()} processors take {format_duration(in_memory_s)}. "
        "The two overlap."
    )

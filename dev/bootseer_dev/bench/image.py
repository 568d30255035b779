"""How long a start takes from an image in a slow store, in each way there is."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from rich.console import Console

from bootseer.errors import Unavailable
from bootseer.image.library.upload import about_now, add
from bootseer.store.local.store import LocalStore
from bootseer.units import NS_PER_S, format_duration, format_size
from bootseer_dev.bench import figures, read_speed
from bootseer_dev.bench.figures import Figure
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import SHARE, Lab
from bootseer_dev.material.images import cached_image, ch_run, demo_image

USER = "alice"
NAME = "train:v1"
_CACHE = "/var/cache/bootseer/images"
_TREE = "/var/tmp/tree"
_SPEED_PAIRS = 3
"""Of measurements in each round: a disk's speed changes from one second to the next."""
_TICKS = (
    "cat $(grep -ls '[b]ootseer.agent' /proc/[0-9]*/cmdline | sed s/cmdline/stat/) 2>/dev/null | "
    "awk '{ticks += $14 + $15} END {print ticks}';"
)
"""Prints the processor time of our processes so far, in clock ticks."""
_READY = re.compile(r"^ready (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ImageBenchSpec:
    """What is measured.

    Attributes:
        rounds: how often each way.
        torch: with the CUDA PyTorch image; otherwise the demo's smaller one.
        latency_s, bandwidth_bytes_per_s: of the store.
        build_dir: for images and figures.
    """

    rounds: int = 3
    torch: bool = True
    latency_s: float = 0.002
    bandwidth_bytes_per_s: float = 200e6
    build_dir: Path = Path("build")


class ImageBench:
    """One node, one image, on a cluster that is up.

    Attributes:
        store_bytes: read from the store by the last start.
        hot_bytes: of the hot set.
        memory_mib: that the server had at most, while all of the image was read; of each time.
        miss_cpu_s_per_gb: processor time of all our processes on the node for a GB that was read
            from the store, by one reader in order; of each time.
    """

    def __init__(self, cluster: Cluster, spec: ImageBenchSpec, console: Console, share: Path):
        """Take over a cluster with the plugin installed, and the folder behind its share."""
        self.store_bytes = 0.0
        self.hot_bytes = 0.0
        self.memory_mib: list[float] = []
        self.miss_cpu_s_per_gb: list[float] = []
        self._lab = Lab(cluster, share)
        self._cluster = cluster
        self._console = console
        self._share = share
        self._local = cluster.state_dir / "local.sqsh"
        self._script = cluster.shared / "train.sh"
        self._command = demo_image(torch=spec.torch).command

    def prepare(self) -> None:
        """Write the job's script, and give the node a copy of the image."""
        shutil.copyfile(self._share / "image.sqsh", self._local)
        mount = site.libexec(self._cluster) / "bootseer-squashfuse"
        start = " ".join(ch_run(Path("$image"), self._lab.containers, *self._command))
        self._script.write_text(
            "#!/bin/sh -e\n"
            'image="${1:-$BOOTSEER_IMAGE}"\n'
            '[ "$1" != rootfs ] || image="$BOOTSEER_ROOTFS"\n'
            f'[ "$1" != tree ] || {{ mkdir -p {_TREE}; {mount} "$BOOTSEER_IMAGE" {_TREE}; '
            f"image={_TREE}; }}\n"
            '[ -z "$2" ] || { cp "$image" "$2"; image="$2"; }\n'
            f"{start} >/dev/null\n"
            'echo "ready $(date +%s%N)"\n'
            f'[ "$1" != tree ] || fusermount3 -uz {_TREE}\n'
            f'[ -z "$BOOTSEER_SOCKET" ] || {site.bootseer()} mark first-step\n'
        )
        self._script.chmod(0o755)

    def ways(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """List the ways to start, by name: what they are, and how long one takes."""
        image = f"{SHARE}/image.sqsh"
        copy = "/var/tmp/copy.sqsh"
        return {
            "squashfuse": ("squashfuse on the slow share", lambda: self._start(image)),
            "copy": ("a full copy, then the start", lambda: self._start(image, copy)),
            "served": ("served, recorded", self._served),
            "served_warm": ("served and warm, on a node that has none of it", self._served_warm),
            "served_again": ("served and warm, on a node that has it", self._serve),
            "tree_warm": (
                "mounted by bootseer-squashfuse and warm, on a node that has none of it",
                self._tree_warm,
            ),
            "kernel_warm": (
                "mounted by the kernel and warm; the time after the prolog",
                self._kernel_warm,
            ),
            "local_cold": ("a local copy, cold", lambda: self._start(str(self._local))),
            "local_warm": (
                "a local copy, in memory",
                lambda: self._start(str(self._local), is_cold=False),
            ),
        }

    def speeds(self) -> Iterator[tuple[str, float]]:
        """Measure how fast a served image that is wholly on the node is read, and a local file.

        Yields:
            Name and MB/s. Sequential reads find the node's blocks in memory, and nothing of the
            mount's; random ones find nothing in memory.
        """
        options = self._options("record")  # nothing is prefetched
        mounted, local = "$BOOTSEER_IMAGE", str(self._local)
        self._forget_blocks()
        cpu_s = self._read_all(options)
        self.miss_cpu_s_per_gb.append(cpu_s / (self._stages()["image.serve"]["bytes"] / 1e9))
        for how in ("sequential", "random") * _SPEED_PAIRS:
            for name, path, more in (("mount", mounted, options), ("local", local, ())):
                self._lab.drop_caches()
                if how == "sequential":
                    self._cluster.run(
                        ["sh", "-c", f"cat {_CACHE}/*/data {local} > /dev/null"], node="n1"
                    )
                said = self._run(f"{sys.executable} -m {read_speed.MODULE} {how} {path}", *more)
                yield f"{how}_{name}_mb_per_s", float(said.split()[-1])

    def _read_all(self, options: tuple[str, ...]) -> float:
        """Bring all of a served image to the node, and note what the server took for it.

        Returns:
            Seconds of processor time of all our processes.
        """
        peak = "grep VmHWM /proc/$(pgrep -x bs-serve_image)/status"
        said = self._run(
            f"{_TICKS} cat $BOOTSEER_IMAGE > /dev/null; sleep 1; {_TICKS} {peak}", *options
        )
        before, after, _, peak_kib, _ = said.split()
        self.memory_mib.append(int(peak_kib) / 1024)
        return (int(after) - int(before)) / os.sysconf("SC_CLK_TCK")

    def _run(self, command: str, *options: str) -> str:
        """Run something that is not the start of the image; returns what it says."""
        if options:  # and let the window close
            command = f"{site.bootseer()} mark first-step && sleep 1 && {command}"
        argv = ["srun", "-N1", *options, "sh", "-c", command]
        said = self._cluster.run(argv, user=USER, timeout_s=600).stdout
        self._cluster.wait_for_job(self._lab.newest_job())
        return said

    def _served(self) -> float:
        self._forget_blocks()
        return self._serve(key="record")

    def _served_warm(self) -> float:
        self._forget_blocks()
        took_s = self._serve()
        self.hot_bytes = self._stages()["hotset.read"]["bytes"]
        return took_s

    def _tree_warm(self) -> float:
        self._forget_blocks()
        took_s = self._start("tree", options=self._options("bench"))
        ahead = self._stages().get("image.decompress", {}).get("bytes", 0)
        self._console.print(f"  {format_size(ahead)} decompressed ahead")
        return took_s

    def _kernel_warm(self) -> float:
        """Start from the tree that the kernel has mounted, once the prolog has read its hot files.

        Returns:
            Seconds from the end of the prolog to when the job was ready.
        """
        self._read_all(self._options("bench"))
        options = (*self._options("bench"), "--bootseer-wait=60")
        took_s = self._start("rootfs", options=options)
        prolog = self._stages()["prolog"]
        prolog_s: float = prolog["end_s"] - prolog["start_s"]
        return took_s - prolog_s

    def _serve(self, key: str = "bench") -> float:
        took_s = self._start(options=self._options(key))
        stages = self._stages()
        self.store_bytes = stages["image.serve"]["bytes"]
        self._console.print(f"  {format_size(self.store_bytes)} from the store")
        return took_s

    def _start(self, *arguments: str, options: tuple[str, ...] = (), is_cold: bool = True) -> float:
        """Run the job once; returns seconds from its submission to when it was ready."""
        self._cluster.run(["rm", "-f", "/var/tmp/copy.sqsh"], node="n1")
        if is_cold:
            self._lab.drop_caches()
        began_ns = time.time_ns()
        argv = ["srun", "-N1", "-J", "train", *options, "/shared/train.sh", *arguments]
        result = self._cluster.run(argv, user=USER, timeout_s=600)
        ready = _READY.search(result.stdout)
        if ready is None:
            raise Unavailable(f"the job did not become ready:\n{result.stdout}{result.stderr}")
        self._cluster.wait_for_job(self._lab.newest_job())
        return (int(ready[1]) - began_ns) / NS_PER_S

    @staticmethod
    def _options(key: str) -> tuple[str, ...]:
        return f"--bootseer={key}", f"--bootseer-image=bootseer://{NAME}"

    def _forget_blocks(self) -> None:
        self._cluster.run(["rm", "-rf", _CACHE], node="n1")

    def _stages(self) -> dict[str, dict[str, Any]]:
        stages = self._lab.stages(self._lab.newest_job())
        for name, stage in stages.items():
            if stage["status"] == "fallback":
                self._console.print(f"  fallback: {name}: {stage['detail']}")
        return stages

    def show_report(self) -> None:
        """Print the last job's report."""
        argv = [site.bootseer(), "report", str(self._lab.newest_job()), "--alone"]
        print(self._cluster.run(argv, user=USER, env={"COLUMNS": "150"}).stdout)


def run_image_bench(spec: ImageBenchSpec, console: Console) -> None:
    """Measure, print a table and write BUILD_DIR/bench-image.json.

    Raises:
        BootseerError: something it needs is missing; the cluster is down again then.
    """
    image = cached_image(demo_image(torch=spec.torch), spec.build_dir / "images", console.print)
    share = (spec.build_dir / "bench-image").absolute()
    if share.exists():  # each run writes another image there
        shutil.rmtree(share)
    share.mkdir()
    linked = share / "image.sqsh"
    os.link(image, linked)
    with console.status("putting the image into the store"):
        digest = _store(share, linked, NAME)
    config = f'[image]\nstore_url = "file://{SHARE}/store"\nkernel_mount = ["{digest}"]\n'
    with Cluster.up(ClusterSpec(name="bench-image", nodes=1)) as cluster:
        site.install(cluster, console.print, config=config)
        cluster.mount_share(
            share,
            at=SHARE,
            latency_s=spec.latency_s,
            bandwidth_bytes_per_s=spec.bandwidth_bytes_per_s,
        )
        bench = ImageBench(cluster, spec, console, share)
        bench.prepare()
        seconds: dict[str, list[float]] = {name: [] for name in bench.ways()}
        store_over_hot: list[float] = []
        speeds: dict[str, list[float]] = {}
        for number in range(spec.rounds):
            console.print(f"\n[bold]round {number + 1} of {spec.rounds}[/]")
            for name, (what, start) in bench.ways().items():
                console.print(what)
                seconds[name].append(start())
                console.print(f"  ready after [bold]{format_duration(seconds[name][-1])}[/]")
                if name == "served_warm":
                    store_over_hot.append(bench.store_bytes / bench.hot_bytes)
                    if number == spec.rounds - 1:
                        bench.show_report()
            console.print("reading a served image that is on the node, and a local file")
            for name, value in bench.speeds():
                speeds.setdefault(name, []).append(value)
    found = {name: Figure(f"{name}_ready_s", "s", tuple(times)) for name, times in seconds.items()}
    rates = {name: Figure(name, "MB/s", tuple(values)) for name, values in speeds.items()}
    store = Figure("store_bytes_over_hot_set", "x", tuple(store_over_hot))
    memory = Figure("server_memory_mib", "MiB", tuple(bench.memory_mib))
    miss_cpu = Figure("miss_cpu_s_per_gb", "s", tuple(bench.miss_cpu_s_per_gb))
    measured = [*found.values(), store, memory, miss_cpu, *rates.values()]
    ratios = {
        "served_warm_over_local_cold": found["served_warm"].median / found["local_cold"].median,
        "tree_warm_over_local_cold": found["tree_warm"].median / found["local_cold"].median,
        "kernel_warm_over_local_warm": found["kernel_warm"].median / found["local_warm"].median,
        "store_bytes_over_hot_set": store.median,
        "miss_cpu_s_per_gb": miss_cpu.median,
        "random_mount_over_local": statistics.median(
            mount / local
            for mount, local in zip(
                speeds["random_mount_mb_per_s"], speeds["random_local_mb_per_s"], strict=True
            )
        ),
    }
    figures.show(console, measured, ratios)
    figures.write(spec.build_dir / "bench-image.json", measured, ratios)


def _store(share: Path, path: Path, name: str) -> str:
    """Put an image into the store behind the share; returns its digest."""

    async def work() -> str:
        about = about_now(f"{SHARE}/{path.name}", "root")
        return (await add(LocalStore(share / "store"), path, name, about)).digest

    return trio.run(work)

"""What BootSeer costs: a job that does not use it, a job that does, and the agent's memory."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bootseer.errors import Unavailable
from bootseer.units import MIB
from bootseer_dev.bench import figures
from bootseer_dev.bench.figures import Figure
from bootseer_dev.bench.first_instruction import first_instruction
from bootseer_dev.bench.start_cost import start_cost
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import IMAGE, SHARE, Lab

LARGE_BYTES = 3_200_000_000
LARGE_RANGES = 4000
LARGE_HOT_BYTES = 250_000_000
_FIRST_READ = "image.identify"
_ROLES = {"broker", "lender", "supervisor", "warm_up", "publish"}


def run_bench(build_dir: Path, console: Console, pairs: int = 40, starts: int = 10) -> None:
    """Measure, print a table and write BUILD_DIR/bench.json."""
    with _cluster("bench-with") as lab:
        site.install(lab.cluster)
        with _cluster("bench-without") as other:
            console.print(f"srun hostname, {pairs} pairs, with the plugin unused and without it")
            unused, absent = _pairs(lab, other, pairs)
        with _cluster("bench-systemd", systemd=True) as systemd:
            site.install(systemd.cluster)
            console.print(f"{pairs} starts with and without systemd, until the first instruction")
            first, first_ratios = first_instruction(systemd, lab, pairs)
        console.print(f"{starts} warm starts: from the prolog's start to the agent's first read")
        lab.put_image()
        lab.mount_share()
        warm = _warm_starts(lab, starts)
        added = added_ms(warm)
        console.print(f"the agent has read before the job's end in {len(added)} of {len(warm)}")
        console.print(f"{starts} starts with a checkpoint: the prolog, and until it can be read")
        prolog, mount = _checkpoint_mounted(lab, starts)
        console.print(f"{starts} starts with and without: processor time of a node, and the epilog")
        cost = start_cost(lab, starts)
        console.print("memory of its processes, with a hot set of 250 MB of a 3.2 GB image")
        memory = _memory_or_none(lab, console)
    measured = [
        Figure("srun_absent_ms", "ms", tuple(absent)),
        Figure("srun_unused_ms", "ms", tuple(unused)),
        *first,
        *([Figure("prolog_added_ms", "ms", tuple(added))] if added else []),
        Figure("checkpoint_prolog_ms", "ms", tuple(prolog)),
        *([Figure("checkpoint_mount_ms", "ms", tuple(mount))] if mount else []),
        *cost,
        *(Figure(f"{name}_pss_mib", "MiB", (mib,)) for name, mib in memory.items()),
        *([Figure("job_pss_mib", "MiB", (sum(memory.values()),))] if memory else []),
    ]
    ratios = {"unused_over_absent": measured[1].median / measured[0].median, **first_ratios}
    figures.show(console, measured, ratios)
    figures.write(build_dir / "bench.json", measured, ratios)


@contextmanager
def _cluster(name: str, *, systemd: bool = False) -> Iterator[Lab]:
    with (
        tempfile.TemporaryDirectory(prefix="bootseer-bench-", dir="/var/tmp") as images,
        Cluster.up(ClusterSpec(name=name, nodes=2, systemd=systemd)) as cluster,
    ):
        Path(images).chmod(0o755)
        yield Lab(cluster, Path(images))


def _pairs(lab: Lab, other: Lab, pairs: int) -> tuple[list[float], list[float]]:
    """Time the same job on both clusters in turn, in milliseconds."""
    unused: list[float] = []
    absent: list[float] = []
    for number in range(-2, pairs):
        for cluster, times in ((lab.cluster, unused), (other.cluster, absent)):
            began = time.perf_counter()
            cluster.run(["srun", "-N2", "hostname"], user="alice")
            if number >= 0:  # the first ones load caches
                times.append((time.perf_counter() - began) * 1000)
    return unused, absent


def added_ms(starts: Sequence[Mapping[str, Any]]) -> list[float]:
    """Milliseconds from the prolog's start to the agent's first read, where it came to that.

    Args:
        starts: stages by name, of each start on each node. A job may be over before the agent has
            read anything.
    """
    return [stages[_FIRST_READ]["start_s"] * 1000 for stages in starts if _FIRST_READ in stages]


def _warm_starts(lab: Lab, starts: int) -> list[dict[str, dict[str, Any]]]:
    """Start warm so often; returns the stages of each start on each node."""
    # The job waits, for it is over sooner than the image is warm.
    options = ("--bootseer=bench", f"--bootseer-image={IMAGE}", "--bootseer-wait=10")
    lab.srun(*options)
    warm = []
    for _ in range(starts):
        # The image leaves the page cache with its mount; programs stay in it, as on a node in use.
        lab.cluster.unmount_share()
        lab.mount_share()
        job = lab.srun(*options, command=lab.start())
        lab.assert_clean()
        warm += [lab.stages(job, node) for node in lab.cluster.node_names]
    return warm


def _checkpoint_mounted(lab: Lab, starts: int) -> tuple[list[float], list[float]]:
    """Milliseconds that the prolog takes on each node, and until a checkpoint can be read there."""
    lab.cluster.run(["mkdir", "-p", "/shared/run"], user="alice")
    prolog: list[float] = []
    mount: list[float] = []
    for _ in range(starts):
        job = lab.srun("--bootseer-ckpt=file:///shared/run", command="ls $BOOTSEER_CKPT")
        lab.assert_clean()
        for node in lab.cluster.node_names:
            stages = lab.stages(job, node)
            for name, times in (("prolog", prolog), ("checkpoint.mount", mount)):
                if name in stages:  # a job may be over before its mount is
                    times.append((stages[name]["end_s"] - stages[name]["start_s"]) * 1000)
    return prolog, mount


def _memory_or_none(lab: Lab, console: Console) -> dict[str, float]:
    """Measure the memory; nothing if the machine is too slow for it, which is then printed."""
    try:
        return _memory(lab)
    except Unavailable as error:
        console.print(f"left out: {error}", markup=False)
        return {}


def _memory(lab: Lab) -> dict[str, float]:
    """Proportional MiB of a job's processes by role, without what is pinned."""
    with (lab.images / "large.img").open("wb") as file:
        file.truncate(LARGE_BYTES)
        file.write(os.urandom(4096))
    image = f"{SHARE}/large.img"
    step = LARGE_BYTES // LARGE_RANGES
    read = (
        "import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); "
        "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM); "
        f"size = {LARGE_HOT_BYTES // LARGE_RANGES}; "
        f"[os.pread(fd, size, n * {step}) for n in range({LARGE_RANGES})]"
    )
    lab.cluster.unmount_share()
    lab.mount_share(bandwidth=2e9, latency_s=0)
    options = ("--bootseer=large", f"--bootseer-image={image}")
    lab.drop_caches()
    lab.srun(*options, command=f"python3 -c '{read}' {image}", timeout_s=300)
    job_id, running = lab.start_in_background(*options, "--bootseer-wait=60")
    try:
        wait_until(lambda: _is_prefetched(lab), "the hot set in memory", timeout_s=120)
        mine = [p for p in lab.cluster.processes("n1") if f"jobs/{job_id}" in p.command]
        cache_uid = int(lab.cluster.run(["id", "-u", "bootseer-cache"]).stdout)
        unnamed = {0: "broker", cache_uid: "lender"}
        found = {
            unnamed.get(p.uid, p.name.removeprefix("bs-")): _proportional_mib(p.pid) for p in mine
        }
    finally:
        lab.end(job_id, running)
    if len(found) != len(mine) or found.keys() != _ROLES:
        raise Unavailable(f"job {job_id} has not one process of each kind, but {found}")
    return found


def _is_prefetched(lab: Lab) -> bool:
    images = [image for job in lab.status("n1") for image in job["images"]]
    return any(image["done_bytes"] >= 0.9 * LARGE_HOT_BYTES for image in images)


def _proportional_mib(pid: int) -> float:
    """Proportional set without locked pages, in MiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", rollup, re.M))
    return max(0, int(fields["Pss"]) - int(fields["Locked"])) * 1024 / MIB

"""Random operations through the checkpoint mount on a real HDFS, for as long as one likes.

Each round has a seed, a tree and a mount of its own, and goes on to the first difference. At its
end the tree is mounted again, compared whole, verified, and searched for parts that are nobody's.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bootseer.errors import Corrupt
from bootseer.units import KIB
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.files import fsx
from bootseer_dev.files.checkpoint_mount import MOUNTPOINT, mounted
from bootseer_dev.hdfs import Hdfs, HdfsSettings, hadoop_jars

USER = "alice"
OPERATIONS = 500
"""Of one round, for which a seed is tried."""
_LAST = 40
_HANGS_S = 120.0
_UNITS = (64 * KIB, 64 * KIB, 4 * KIB)
_HELD = (2, 32)
"""Units that the mount holds of what it reads ahead: with few, most go to the page cache."""


@dataclass(frozen=True, slots=True)
class RoundsSpec:
    """What is tried.

    Attributes:
        seed: of the first round; the next ones count up.
        rounds: how many; None for as many as there is time for.
        seconds: begin no round later than that.
        build_dir: for Hadoop's jars.
    """

    seed: int
    rounds: int | None
    seconds: float
    build_dir: Path


class Different(Corrupt):
    """A file system that is tried has done something else than one that is right."""


@contextmanager
def small_hdfs(name: str, build_dir: Path) -> Iterator[Hdfs]:
    """Start an HDFS for a while."""
    with Cluster.up(ClusterSpec(name=name, nodes=0, datanodes=3)) as cluster:
        yield Hdfs.start(cluster, hadoop_jars(build_dir), HdfsSettings(replication=2))


def run_rounds(spec: RoundsSpec, hdfs: Hdfs, console: Console) -> Counter[str]:
    """Do rounds until there are enough of them; returns how many operations there were, by kind.

    Raises:
        Different: something was otherwise; the text has the seed and the last operations.
    """
    total: Counter[str] = Counter()
    began = time.monotonic()
    seed = spec.seed
    while spec.rounds is None or seed - spec.seed < spec.rounds:
        if time.monotonic() - began > spec.seconds and seed > spec.seed:
            break
        total += run_round(hdfs, seed)
        console.print(
            f"seed {seed}: {total.total()} operations in {time.monotonic() - began:.0f} s"
        )
        seed += 1
    return total


def run_round(hdfs: Hdfs, seed: int, operations: int = OPERATIONS) -> Counter[str]:
    """Do the operations of one seed; returns how many there were of each kind.

    Raises:
        Different: see `run_rounds`.
    """
    cluster = hdfs.cluster
    unit_bytes, held = _UNITS[seed % len(_UNITS)], _HELD[seed % len(_HELD)]
    folder = f"/user/{USER}/fsx-{seed}"
    hdfs.fs("-mkdir", folder, user=USER)
    mirror = cluster.run(["mktemp", "-d"], user=USER).stdout.strip()
    write = {"unit_bytes": unit_bytes, "width": 4, "streams": 8, "memory_bytes": 16 * unit_bytes}
    fetch = {"memory_bytes": held * unit_bytes}
    options = ("--write", json.dumps(write), "--fetch", json.dumps(fetch))
    same = ("--seed", str(seed), "--unit", str(unit_bytes))
    with mounted(cluster, hdfs.url + folder, USER, *options):
        done = _run(hdfs, seed, mirror, *same, "--operations", str(operations))
    with mounted(cluster, hdfs.url + folder, USER, *options):
        _run(hdfs, seed, mirror, *same)
    for words in (("verify", "-R"), ("gc", "--dry-run", "--older-than", "0s")):
        bootseer = str(Path(sys.executable).with_name("bootseer"))
        argv = [bootseer, "ckpt", *words, "--quiet", hdfs.url + folder]
        said = cluster.run(argv, user=USER, check=False, timeout_s=_HANGS_S)
        if said.returncode or said.stdout or said.stderr:
            raise Different(f"seed {seed}: bootseer ckpt {words[0]}: {said.stdout}{said.stderr}")
    cluster.run(["rm", "-rf", mirror], user=USER)
    hdfs.fs("-rm", "-r", "-skipTrash", folder, user=USER)
    return done


def _run(hdfs: Hdfs, seed: int, mirror: str, *options: str) -> Counter[str]:
    """Run the operations, or none, and then compare everything."""
    argv = [sys.executable, "-m", fsx.MODULE, MOUNTPOINT, mirror, *options]
    process = hdfs.cluster.popen(argv, user=USER, cwd="/", stderr=None)
    hangs = threading.Timer(_HANGS_S, process.kill)
    hangs.start()
    with process:
        assert process.stdout is not None
        last = deque((line.rstrip() for line in process.stdout), _LAST)
    hangs.cancel()
    if process.returncode:
        told = "\n".join(last)
        raise Different(
            f"seed {seed}: exit code {process.returncode}; the last operations:\n{told}"
        )
    return Counter(json.loads(last[-1]))

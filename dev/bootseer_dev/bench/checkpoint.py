"""How fast checkpoints are read and written, against what HDFS's own tools and library do.

Every way is measured in turn in each round, so that what else the machine does meets all of them.
Each transfer is a process of its own, and the page cache is empty when it begins.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from rich.console import Console

from bootseer.errors import Unavailable
from bootseer.units import MIB, format_size
from bootseer_dev.bench import checkpoint_client, figures
from bootseer_dev.bench.figures import Figure
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.spec import HEAD, address
from bootseer_dev.files.checkpoint_mount import MOUNTPOINT, mounted
from bootseer_dev.hdfs import Hdfs, HdfsSettings, conf, hadoop_jars

USER = "alice"
FOLDER = f"/user/{USER}/bench"
RATE = "400mbit"
DATANODES = 4
_BLOCK_BYTES = 128 * MIB
"""HDFS's default."""
_SMALL_FILES = 2000
_STREAMS = 8
_STREAM_SIZES = 4
"""So many times the file's length is that of a stream."""
_SENDER_PORT = 9000
_SEND = """
import socket, sys
data = bytes(1 << 20)
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    while True:
        receiver, _ = server.accept()
        with receiver:
            for _ in range(int(sys.argv[2])):
                receiver.sendall(data)
"""
_POST = (
    "import sys, urllib.request as r; "
    "r.urlopen(r.Request(sys.argv[1], method='POST'), timeout=30).read()"
)


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """What is measured.

    Attributes:
        size_bytes: of the file that is read and written.
        rounds: how often each way.
        build_dir: for Hadoop's jars and the figures.
    """

    size_bytes: int
    rounds: int
    build_dir: Path


class _Transfer(NamedTuple):
    """What one transfer took: seconds, seconds of its processor time, and its bytes."""

    seconds: float
    cpu_s: float
    size_bytes: int


class _Bench:
    """A cluster with an HDFS and a mount of one of its folders on the head."""

    def __init__(self, hdfs: Hdfs, spec: BenchSpec, console: Console) -> None:
        self.hdfs = hdfs
        self.cluster = hdfs.cluster
        self.spec = spec
        self.console = console
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.cpu_s_per_gb: dict[str, list[float]] = defaultdict(list)

    @property
    def url(self) -> str:
        return self.hdfs.url + FOLDER

    def client(self, action: str, path: str, size_bytes: int = 0) -> _Transfer:
        """Run one transfer."""
        drop_caches()
        return self.transfer(action, path, size_bytes)

    def transfer(self, action: str, path: str, size_bytes: int = 0) -> _Transfer:
        """Run one transfer with the page cache as it is."""
        argv = [sys.executable, "-m", checkpoint_client.MODULE, action, path, str(size_bytes)]
        done = self.cluster.run(argv, user=USER, timeout_s=600)
        said = json.loads(done.stdout)
        return _Transfer(said["seconds"], said["cpu_seconds"], said["bytes"])

    def time(self, name: str, action: str, path: str, server: int | None = None) -> None:
        """Measure one way once; with the mount's server, also both's processor time."""
        before_s = self._cpu_s(server) if server is not None else 0.0
        took_s, cpu_s, done = self.client(action, path, self.spec.size_bytes)
        if done != self.spec.size_bytes:
            raise Unavailable(f"{name}: {done} bytes instead of {self.spec.size_bytes}")
        self._note(name, took_s)
        if server is not None:
            cpu_s += self._cpu_s(server) - before_s
            self.cpu_s_per_gb[name].append(cpu_s / (done / 1e9))

    def _cpu_s(self, pid: int) -> float:
        stat = self.cluster.run(["cat", f"/proc/{pid}/stat"]).stdout.rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def _note(self, name: str, seconds: float) -> None:
        self.seconds[name].append(seconds)
        self.console.print(f"  {name}: {self.spec.size_bytes / 1e6 / seconds:.0f} MB/s")

    def hadoop(self, name: str, *arguments: str) -> None:
        """Measure a command of Hadoop's; the start of its Java is part of it."""
        drop_caches()
        argv = ["bash", "-c", 'TIMEFORMAT=%R; time "$@" >&2', "bash"]
        done = self.cluster.run(
            [*argv, *self.hdfs.fs_command(*arguments)], user=USER, timeout_s=600
        )
        self._note(name, float(done.stderr.strip().splitlines()[-1]))

    def rates(self, name: str) -> Figure:
        """Return the rates of one way, in MB/s."""
        size_mb = self.spec.size_bytes / 1e6
        return Figure(f"{name}_mb_s", "MB/s", tuple(size_mb / s for s in self.seconds[name]))

    def spread_file(self, name: str) -> None:
        """Make an ordinary file whose blocks lie evenly and in turn on all DataNodes.

        Where a block goes is the NameNode's choice: files of one block each are made until there
        are enough on each machine, and joined.
        """
        blocks = self.spec.size_bytes // _BLOCK_BYTES
        wanted = math.ceil(blocks / DATANODES)
        found: dict[str, list[str]] = defaultdict(list)
        number = 0
        while len(found) < DATANODES or min(len(files) for files in found.values()) < wanted:
            path = f"{FOLDER}/piece-{number:04d}"
            self.transfer("native_write", self.hdfs.url + path, _BLOCK_BYTES)
            found[self.machines(path)[0]].append(path)
            number += 1
        chosen = [found[host][turn] for turn in range(wanted) for host in sorted(found)][:blocks]
        self.hdfs.fs("-mv", chosen[0], f"{FOLDER}/{name}")
        namenode = f"http://{address(HEAD)}:{conf.HTTP_PORT}/webhdfs/v1{FOLDER}/{name}"
        query = urlencode({"op": "CONCAT", "user.name": USER, "sources": ",".join(chosen[1:])})
        self.cluster.run([sys.executable, "-P", "-c", _POST, f"{namenode}?{query}"])
        self.hdfs.fs("-rm", "-f", f"{FOLDER}/piece-*")

    @contextmanager
    def senders(self) -> Iterator[str]:
        """Have the DataNodes' machines send a share of a file each to who connects; yields where.

        That is what the links carry: TCP without HDFS.
        """
        share = self.spec.size_bytes // DATANODES // MIB
        argv = [sys.executable, "-P", "-c", _SEND, str(_SENDER_PORT), str(share)]
        names = self.cluster.spec.datanode_names
        processes = [self.cluster.popen(argv, node=name, stderr=None) for name in names]
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            yield ",".join(f"{address(name)}:{_SENDER_PORT}" for name in names)
        finally:
            for process in processes:
                process.terminate()
                process.communicate()

    def machines(self, path: str) -> list[str]:
        """Name the first machine of each block of a file."""
        found = self.hdfs.webhdfs(path, "GETFILEBLOCKLOCATIONS")
        return [block["hosts"][0] for block in found["BlockLocations"]["BlockLocation"]]


def run_ckpt_bench(spec: BenchSpec, console: Console) -> None:
    """Measure, print a table and write BUILD_DIR/bench-ckpt.json."""
    jars = hadoop_jars(spec.build_dir, console.print)
    measured: list[Figure] = []
    ratios: dict[str, float] = {}
    with _bench(spec, console, jars, RATE) as bench:
        console.print(f"{DATANODES} DataNodes behind links of {RATE}, {spec.rounds} rounds")
        _rated(bench, measured, ratios)
    with _bench(spec, console, jars, None) as bench:
        console.print(f"the same without limits on the links, {spec.rounds} rounds")
        _unrated(bench, measured, ratios)
    figures.show(console, measured, ratios)
    figures.write(spec.build_dir / "bench-ckpt.json", measured, ratios)


@contextmanager
def _bench(spec: BenchSpec, console: Console, jars: Path, rate: str | None) -> Iterator[_Bench]:
    machines = ClusterSpec(name="bench-ckpt", nodes=0, datanodes=DATANODES, datanode_rate=rate)
    settings = HdfsSettings(replication=1, block_bytes=_BLOCK_BYTES)
    with Cluster.up(machines) as cluster:
        bench = _Bench(Hdfs.start(cluster, jars, settings), spec, console)
        bench.hdfs.fs("-mkdir", FOLDER, user=USER)
        yield bench


def _rated(bench: _Bench, measured: list[Figure], ratios: dict[str, float]) -> None:
    bench.spread_file("even")
    plain = f"{bench.url}/plain"
    bench.time("single_write", "native_write", plain)
    placed = bench.machines(f"{FOLDER}/plain")
    fullest = max(placed.count(machine) for machine in placed)
    allowed = len(placed) / fullest / DATANODES
    local = "/tmp/bench-file"
    with mounted(bench.cluster, bench.url, USER) as server, bench.senders() as senders:
        bench.time("striped_write", "write", f"{MOUNTPOINT}/striped")
        for _ in range(bench.spec.rounds):
            bench.time("links", "receive", senders)
            bench.hadoop("hadoop_get", "-get", "-f", f"{FOLDER}/plain", local)
            bench.hadoop("hadoop_put", "-put", "-f", local, f"{FOLDER}/put")
            bench.time("single_read", "native_read", plain)
            bench.time("ranged_read", "native_ranges", plain)
            bench.time("plain_mount", "read", f"{MOUNTPOINT}/plain")
            bench.time("even_plain_mount", "read", f"{MOUNTPOINT}/even")
            bench.time("striped_mount", "read", f"{MOUNTPOINT}/striped")
            bench.time("striped_reader", "reader", f"{bench.url}/striped")
            bench.time("single_write", "native_write", f"{bench.url}/written")
            bench.time("striped_write", "write", f"{MOUNTPOINT}/striped")
        _note_memory(bench, server, "rated_mount_memory_mib", measured)
    two = json.dumps({"replication": 2})
    with mounted(bench.cluster, bench.url, USER, "--write", two):
        for _ in range(bench.spec.rounds):
            bench.time("striped_write_2_copies", "write", f"{MOUNTPOINT}/two")
    measured += [bench.rates(name) for name in bench.seconds]
    rate = {name: bench.rates(name).median for name in bench.seconds}
    ratios["striped_mount_over_single"] = rate["striped_mount"] / rate["single_read"]
    ratios["striped_mount_over_links"] = rate["striped_mount"] / rate["links"]
    ratios["plain_mount_over_single"] = rate["even_plain_mount"] / rate["single_read"]
    ratios["plain_mount_over_placement"] = rate["plain_mount"] / (
        DATANODES * allowed * rate["single_read"]
    )
    ratios["striped_write_over_single"] = rate["striped_write"] / rate["single_write"]
    ratios["striped_write_2_copies_over_single"] = (
        rate["striped_write_2_copies"] / rate["single_write"]
    )


def _unrated(bench: _Bench, measured: list[Figure], ratios: dict[str, float]) -> None:
    bench.spread_file("even")
    even = f"{bench.url}/even"
    with mounted(bench.cluster, bench.url, USER) as server:
        bench.client("write", f"{MOUNTPOINT}/striped", bench.spec.size_bytes)
        for _ in range(bench.spec.rounds):
            bench.time("unrated_striped", "read", f"{MOUNTPOINT}/striped", server)
            bench.time("unrated_single", "native_read", even, server)
            bench.time("unrated_segments", "native_segments", even, server)
            before = _sent(bench)
            bench.time("unrated_mount", "read", f"{MOUNTPOINT}/even", server)
            again = bench.transfer("read", f"{MOUNTPOINT}/even")
            bench.seconds["second_rank"].append(again.seconds)
            sent = (_sent(bench) - before) / bench.spec.size_bytes
        _small_files(bench, measured)
        _note_memory(bench, server, "mount_memory_mib", measured)
    with mounted(bench.cluster, bench.url, USER) as server:
        _many_streams(bench, measured)
        _note_memory(bench, server, "mount_memory_of_8_streams_mib", measured)
    names = (
        "unrated_striped",
        "unrated_single",
        "unrated_segments",
        "unrated_mount",
        "second_rank",
    )
    measured += [bench.rates(name) for name in names]
    processors = {
        name: Figure(f"{name}_cpu_s_per_gb", "s", tuple(values))
        for name, values in bench.cpu_s_per_gb.items()
    }
    measured += processors.values()
    native = min(processors[name].median for name in ("unrated_single", "unrated_segments"))
    ratios["striped_cpu_over_native"] = processors["unrated_striped"].median / native
    measured.append(Figure("sent_by_datanodes_for_two_ranks", "files", (sent,)))
    rate = {name: bench.rates(name).median for name in names}
    ratios["mount_over_native_parallel"] = rate["unrated_mount"] / rate["unrated_segments"]


def _small_files(bench: _Bench, measured: list[Figure]) -> None:
    """Open many files and read one byte of each; count what that asks of the NameNode."""
    bench.client("native_files", f"{bench.url}/small", _SMALL_FILES)
    before = bench.hdfs.calls()
    seconds, _, opened = bench.client("first_bytes", f"{MOUNTPOINT}/small")
    calls = bench.hdfs.calls_since(before)
    bench.console.print(f"  {', '.join(f'{name}: {n}' for name, n in calls.items())}")
    asked = sum(calls.values())
    measured.append(Figure("first_bytes_of_2000_files_s", "s", (seconds,)))
    measured.append(Figure("namenode_calls_per_file", "calls", (asked / opened,)))


def _sent(bench: _Bench) -> int:
    return sum(bench.hdfs.traffic(d).read_bytes for d in bench.cluster.spec.datanode_names)


def _many_streams(bench: _Bench, measured: list[Figure]) -> None:
    """Write as many files at once as a node has ranks, and read them."""
    size_bytes = _STREAM_SIZES * bench.spec.size_bytes
    for action in ("write", "read"):
        drop_caches()
        bench.console.print(f"  {_STREAMS} streams {action} {format_size(size_bytes)} each")
        paths = [f"{MOUNTPOINT}/stream-{number}" for number in range(_STREAMS)]
        with ThreadPoolExecutor(_STREAMS) as threads:
            began_s = time.monotonic()
            done = threads.map(partial(bench.transfer, action, size_bytes=size_bytes), paths)
            moved_bytes = sum(each.size_bytes for each in done)
        if moved_bytes != _STREAMS * size_bytes:
            raise Unavailable(f"{_STREAMS} streams: {moved_bytes} bytes in all")
        rate = moved_bytes / 1e6 / (time.monotonic() - began_s)
        measured.append(Figure(f"{action}_of_8_streams_mb_s", "MB/s", (rate,)))
    bench.hdfs.fs("-rm", "-r", "-skipTrash", f"{FOLDER}/stream-*")


def _note_memory(bench: _Bench, server: int, name: str, measured: list[Figure]) -> None:
    status = bench.cluster.run(["cat", f"/proc/{server}/status"]).stdout
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    measured.append(Figure(name, "MiB", (int(peak.split()[1]) / 1024,)))


def drop_caches() -> None:
    """Have this machine forget clean pages, and files: a job's mount is new."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")

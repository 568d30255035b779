"""How long it takes to have an environment on all nodes of a job, and to import it: in each way."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from rich.console import Console

from bootseer.env.restore.atomic import RestoreTarget
from bootseer.env.restore.download import opened_places, unpack
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.errors import Unavailable
from bootseer.image.library import catalog as images
from bootseer.image.library.download import retrieve
from bootseer.store.api.base import Store
from bootseer.store.local.store import LocalStore
from bootseer.units import NS_PER_S, format_duration
from bootseer_dev.bench import figures
from bootseer_dev.bench.figures import Figure
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import HEAD, address
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import Lab
from bootseer_dev.material.wheels import make_wheelhouse

USER = "alice"
TARGET = "/local/env"
PACKAGES = ("torch", "transformers", "numpy")
_PORT = 8990
_INDEX = f"http://{address(HEAD)}:{_PORT}/simple"
_MARK = re.compile(r"^(restored|imported) (\d+)$", re.MULTILINE)
_IMPORT = "import torch, transformers"
_TOOLS = "/shared/tools"
_TARBALL = "/shared/env.tar.gz"
_ENVIRONMENT = {
    "PIP_INDEX_URL": _INDEX,
    "PIP_TRUSTED_HOST": address(HEAD),
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "UV_DEFAULT_INDEX": _INDEX,
    "UV_CACHE_DIR": "/local/uv",
    "UV_PYTHON_DOWNLOADS": "never",
}


@dataclass(frozen=True, slots=True)
class EnvBenchSpec:
    """What is measured.

    Attributes:
        rounds: how often each way.
        nodes: of the jobs; all ways with each.
        build_dir: for wheels and figures.
    """

    rounds: int = 3
    nodes: Sequence[int] = (2, 4)
    build_dir: Path = Path("build")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to have the environment.

    Attributes:
        what: it is, for people.
        command: of the shell, that makes it on a node.
        gone: what is not on the nodes before, beside the target.
        options: of the job.
        first: what the job does before its step, on one node.
    """

    what: str
    command: str
    gone: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    first: str = "true"


def ways() -> dict[str, Way]:
    """List the ways by name."""
    packages = " ".join(PACKAGES)
    pip = f"{_TOOLS}/bin/pip install -q --no-cache-dir --target {TARGET} {packages}"
    uv = f"{_TOOLS}/bin/uv pip install -q --python {_TOOLS}/bin/python --target {TARGET} {packages}"
    tar = f"mkdir -p {TARGET} && tar -xz -C {TARGET} -f"
    run = f"{site.bootseer()} env run -q --target {TARGET}"
    copy, blocks = "/local/env.tar.gz", "/var/cache/bootseer/images"
    key = ("--bootseer=bench",)
    return {
        "pip": Way("pip install on every node", pip),
        "uv_cold": Way("uv, nothing cached", uv, ("/local/uv",)),
        "uv_copy": Way("uv from the node's cache, copied", f"{uv} --link-mode copy"),
        "uv_link": Way("uv from the node's cache, hard links", f"{uv} --link-mode hardlink"),
        "tar": Way("a tar.gz on shared storage, unpacked", f"{tar} {_TARBALL}"),
        "sbcast": Way(
            "the same tar.gz sent by sbcast, unpacked",
            f"{tar} {copy}",
            (copy,),
            first=f"sbcast -f {_TARBALL} {copy}",
        ),
        "first": Way("bootseer, first run: captured", f"{run} --wait -- {pip}", (blocks,), key),
        "unpack": Way("bootseer, unpacked", f"{run} --mode unpack -- {pip}", (), key),
        "mount_new": Way("bootseer, mounted on new nodes", f"{run} -- {pip}", (blocks,), key),
        "mount": Way("bootseer, mounted", f"{run} -- {pip}", (), key),
    }


class EnvBench:
    """Jobs on a cluster that is up, each of which has the environment in one way."""

    def __init__(self, cluster: Cluster, console: Console) -> None:
        """Take over a cluster with the plugin installed, and an index on its head."""
        self._cluster = cluster
        self._console = console
        self._lab = Lab(cluster, cluster.state_dir)

    def prepare(self) -> None:
        """Make what the ways need: pip and uv for the jobs, and the tarball."""
        cluster = self._cluster
        tools = cluster.shared / "tools"
        for command in (
            ["/usr/bin/python3", "-m", "venv", str(tools)],
            [str(tools / "bin/pip"), "install", "-q", "uv"],
        ):
            subprocess.run(command, check=True)
        script = cluster.shared / "way.sh"
        script.write_text(
            "#!/bin/sh -e\n"
            'sh -ec "$1" >&2\n'
            'echo "restored $(date +%s%N)"\n'
            f"PYTHONPATH={TARGET} {_TOOLS}/bin/python -c '{_IMPORT}'\n"
            'echo "imported $(date +%s%N)"\n'
            f'[ -z "$BOOTSEER_SOCKET" ] || {site.bootseer()} mark first-step\n'
        )
        script.chmod(0o755)
        self._console.print("installing once, for the tarball")
        made = f"{ways()['pip'].command} && tar -cz -C {TARGET} -f {_TARBALL} ."
        self._run(["sh", "-c", made], node="n1")

    def take(self, way: Way, nodes: int) -> tuple[float, float]:
        """Run a job that has the environment in one way, on nodes that do not have it yet.

        Returns:
            Seconds from its submission to when the slowest node had it, and had imported it.
        """
        for node in self._cluster.node_names:
            self._run(["rm", "-rf", TARGET, *way.gone], node=node, user="root")
        self._lab.drop_caches()
        step = f"srun --ntasks-per-node=1 /shared/way.sh '{way.command}'"
        began_ns = time.time_ns()
        if way.first == "true":
            argv = ["srun", f"-N{nodes}", "--ntasks-per-node=1", *way.options]
            argv += ["/shared/way.sh", way.command]
        else:
            argv = ["salloc", "-Q", f"-N{nodes}", *way.options, "sh", "-ec", f"{way.first}; {step}"]
        said = self._run(argv)
        marks: dict[str, list[int]] = {"restored": [], "imported": []}
        for name, at_ns in _MARK.findall(said):
            marks[name].append(int(at_ns))
        if any(len(times) != nodes for times in marks.values()):
            raise Unavailable(f"the job did not get its environment:\n{said}")
        self._cluster.wait_for_job(self._lab.newest_job())
        if way.options:
            self._tell_fallbacks()
        restored_s, imported_s = ((max(times) - began_ns) / NS_PER_S for times in marks.values())
        return restored_s, imported_s

    def forget(self) -> None:
        """Forget all that is known of environments."""
        self._lab.forget(USER)

    def capture_cost(self) -> tuple[float, float]:
        """Run the command on one node, bare and captured; returns the seconds of each."""
        pip = ways()["pip"]
        run = f"{site.bootseer()} env run -q --target {TARGET} -- {pip.command}"
        self.forget()
        bare_s, _ = self.take(pip, 1)
        captured_s, _ = self.take(Way("", run, (), ("--bootseer=capture",)), 1)
        return bare_s, captured_s

    def unpack_speeds(self) -> tuple[float, float]:
        """Unpack the snapshot in memory, and with unsquashfs; returns the seconds of each.

        Both read the same squashfs from the page cache, and write to a tmpfs with two threads.
        """
        store = LocalStore(self._lab.store(USER))
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            image = Path(memory, "image.sqsh")
            trio.run(_download, store, image)
            began = time.perf_counter()
            with opened_places([f"{memory}/ours"]) as places:
                trio.run(_unpack, store, places)
            ours_s = time.perf_counter() - began
            shutil.rmtree(f"{memory}/ours")
            command = ["unsquashfs", "-q", "-n", "-p", "2", "-d", f"{memory}/theirs", str(image)]
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return ours_s, time.perf_counter() - began

    def _run(self, argv: list[str], node: str | None = None, user: str = USER) -> str:
        result = self._cluster.run(
            argv, user=user, node=node, env=_ENVIRONMENT, timeout_s=1800, check=False
        )
        if result.returncode:
            raise Unavailable(f"{argv} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        return result.stdout

    def _tell_fallbacks(self) -> None:
        report: dict[str, Any] = self._lab.report(self._lab.newest_job(), USER)
        for node in report["nodes"]:
            for stage in node["stages"]:
                if stage["status"] == "fallback":
                    self._console.print(f"  {node['node']}: {stage['stage']}: {stage['detail']}")


async def _snapshot(store: Store) -> Snapshot:
    [listed] = await repository.list_snapshots(store)
    return await repository.read_snapshot(store, listed.key)


async def _unpack(store: Store, places: Sequence[RestoreTarget]) -> None:
    await unpack(store, await _snapshot(store), places)


async def _download(store: Store, path: Path) -> None:
    """Write the squashfs of the one snapshot in a store to a file."""
    snapshot = await _snapshot(store)
    _, manifest = await images.read_manifest(store, snapshot.image)
    await retrieve(store, snapshot.image, manifest, path)


@contextmanager
def _index(cluster: Cluster, wheels: Path) -> Iterator[None]:
    """Serve the wheels on the cluster's head for the length of a block."""
    argv = [sys.executable, "-m", "http.server", str(_PORT), "--directory", str(wheels)]
    server = cluster.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        probe = ["sh", "-c", f"exec 3<>/dev/tcp/{address(HEAD)}/{_PORT}"]
        wait_until(
            lambda: cluster.run(["bash", *probe[1:]], check=False).returncode == 0, "an index"
        )
        yield
    finally:
        server.terminate()
        server.wait()


def run_env_bench(spec: EnvBenchSpec, console: Console) -> None:
    """Measure, print a table and write BUILD_DIR/bench-env.json.

    Raises:
        BootseerError: something it needs is missing; the cluster is down again then.
    """
    wheels = (spec.build_dir / "wheels").absolute()
    make_wheelhouse(wheels, console.print)
    seconds: dict[str, list[float]] = {}
    with Cluster.up(ClusterSpec(name="bench-env", nodes=max(spec.nodes))) as cluster:
        site.install(cluster, console.print)
        with _index(cluster, wheels):
            bench = EnvBench(cluster, console)
            bench.prepare()
            for number in range(spec.rounds):
                for nodes in spec.nodes:
                    console.print(f"\n[bold]round {number + 1} of {spec.rounds}, {nodes} nodes[/]")
                    bench.forget()
                    for name, way in ways().items():
                        restored_s, imported_s = bench.take(way, nodes)
                        console.print(
                            f"{way.what}: restored after [bold]{format_duration(restored_s)}[/], "
                            f"imported after [bold]{format_duration(imported_s)}[/]"
                        )
                        for what, took_s in (("restored", restored_s), ("imported", imported_s)):
                            seconds.setdefault(f"{name}_{what}_{nodes}_nodes_s", []).append(took_s)
                    for name, took_s in zip(
                        ("unpack", "unsquashfs"), bench.unpack_speeds(), strict=True
                    ):
                        console.print(f"in memory, {name}: {format_duration(took_s)}")
                        seconds.setdefault(f"{name}_in_memory_s", []).append(took_s)
                for name, took_s in zip(("bare", "captured"), bench.capture_cost(), strict=True):
                    console.print(f"pip on one node, {name}: {format_duration(took_s)}")
                    seconds.setdefault(f"pip_{name}_1_node_s", []).append(took_s)
    found = {name: Figure(name, "s", tuple(values)) for name, values in seconds.items()}
    most = max(spec.nodes)

    def ratio(above: str, below: str, what: str = "restored") -> float:
        return (
            found[f"{above}_{what}_{most}_nodes_s"].median
            / found[f"{below}_{what}_{most}_nodes_s"].median
        )

    ratios = {
        "pip_over_mount": ratio("pip", "mount"),
        "uv_copy_over_mount": ratio("uv_copy", "mount"),
        "unsquashfs_over_unpack": found["unsquashfs_in_memory_s"].median
        / found["unpack_in_memory_s"].median,
        "uv_link_over_mount_imported": ratio("uv_link", "mount", "imported"),
        "captured_over_bare": found["pip_captured_1_node_s"].median
        / found["pip_bare_1_node_s"].median,
    }
    figures.show(console, found.values(), ratios)
    figures.write(spec.build_dir / "bench-env.json", found.values(), ratios)

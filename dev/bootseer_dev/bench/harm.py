"""Starts to which BootSeer could do harm, each beside the same start without it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as Context
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

from bootseer.errors import ConfigError, Unavailable
from bootseer.units import GIB, MIB, NS_PER_S, format_duration
from bootseer_dev.bench import figures
from bootseer_dev.bench.figures import Figure
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.files import slow_share
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import Lab
from bootseer_dev.material.images import cached_image, ch_run, demo_image

USER = "alice"
NEAR = "/mnt/near"
"""Where a start waits little without BootSeer, and so has little to gain and as much to lose."""
SLOW = "/mnt/slow"
DEAD = "/mnt/dead"
WORTH_S = 0.3
"""A start that takes no more than that longer is not called slower."""
MOST_SLOWER = 1.05
"""As many times as long a start may take: a case above it is measured once more."""
_IMAGE = "image.sqsh"
_OTHER = "other.sqsh"
_REPLACED = "replaced.sqsh"
_KEY = "--bootseer=harm"
_READ_SHARE = 0.85
"""Of the image, but its beginning: by a start that is just not taken for one that unpacks."""
_LEFT_BYTES = GIB
"""Of memory, under pressure."""
_TASKS = 8
_READY = re.compile(r"^ready (\d+)$", re.MULTILINE)
_HOLD = (
    "import mmap, sys, time; size = int(sys.argv[1]); held = mmap.mmap(-1, size);\n"
    "for at in range(0, size, 4096): held[at] = 1\n"
    "print('held', flush=True); time.sleep(3600)"
)


@dataclass(frozen=True, slots=True)
class HarmSpec:
    """What is measured.

    Attributes:
        rounds: how often each case, with and without.
        only: names of cases; empty for all.
        build_dir: for the image and the figures.
    """

    rounds: int = 3
    only: tuple[str, ...] = ()
    build_dir: Path = Path("build")


@dataclass(frozen=True, slots=True)
class Case:
    """A start under circumstances that are not BootSeer's best.

    Attributes:
        what: they are, for people.
        known: what the user's store has of earlier starts: a name that `HarmBench.prepare` gives,
            or "nothing".
        image: path that the job starts from.
        told: path that it tells BootSeer; "" for none.
        command: in the image; empty for the demo's start.
        tasks: of the job.
        is_cold: nothing of the image is in memory before.
        is_fresh: nor anything of the node's own programs, as when it has just come up; otherwise
            another job has run there before.
        while_: what goes on meanwhile.
    """

    what: str
    known: str = "right"
    image: str = f"{NEAR}/{_IMAGE}"
    told: str = f"{NEAR}/{_IMAGE}"
    command: tuple[str, ...] = ()
    tasks: int = 1
    is_cold: bool = True
    is_fresh: bool = False
    while_: Callable[[], Context[None]] = field(default=nullcontext)


@dataclass(slots=True)
class CaseTimes:
    """How long the starts of a case took, each with its neighbour in time.

    The machine itself is quicker in one round than in another, so only neighbours are compared.

    Attributes:
        without: BootSeer, in seconds, one a round.
        used: the same with it.
    """

    without: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        """Return how many times as long a start takes with BootSeer as without."""
        return median(b / a for a, b in self._pairs())

    def slower(self) -> float:
        """Return the same, but 1 where it is a matter of less than WORTH_S.

        The ratio alone would call a tiny job slower for a tenth of a second.
        """
        is_worth_it = median(b - a for a, b in self._pairs()) > WORTH_S
        return max(1.0, self.ratio()) if is_worth_it else 1.0

    def _pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.without, self.used, strict=True))


class HarmBench:
    """One node, one image, on a cluster that is up."""

    def __init__(self, cluster: Cluster, console: Console, share: Path) -> None:
        """Take over a cluster with the plugin installed, and the folder behind its shares."""
        self._cluster = cluster
        self._console = console
        self._share = share
        self._lab = Lab(cluster, share)
        self._local = cluster.state_dir / "local.sqsh"
        self._command = demo_image().command

    def prepare(self) -> None:
        """Write the job's script, and record what is known before in each case."""
        script = self._cluster.shared / "train.sh"
        start = " ".join(ch_run(Path("$image"), self._lab.containers))
        script.write_text(
            "#!/bin/sh -e\n"
            'image="$1"; shift\n'
            f'{start} "$@" >/dev/null\n'
            'echo "ready $(date +%s%N)"\n'
            f'[ -z "$BOOTSEER_SOCKET" ] || {site.bootseer()} mark first-step\n'
        )
        script.chmod(0o755)
        shutil.copyfile(self._share / _IMAGE, self._local)
        image = f"{NEAR}/{_IMAGE}"
        part_bytes = int((self._share / _IMAGE).stat().st_size * _READ_SHARE)
        self._record("right", f"/shared/train.sh {image} {' '.join(self._command)}", image)
        self._record("whole", f"tail -c {part_bytes} {image} > /dev/null", image)
        # What no start of this program reads.
        find = 'cat $(find / -xdev -name "*.so*" -size +20M -path "*xgboost*")'
        others = shlex.join(ch_run(Path(image), self._lab.containers, "sh", "-c", find))
        self._record("changed", f"{others} > /dev/null", image)
        other = f"{NEAR}/{_OTHER}"
        self._record("other", f"/shared/train.sh {other} {' '.join(self._command)}", other)
        replaced = f"{NEAR}/{_REPLACED}"
        shutil.copyfile(self._share / _IMAGE, self._share / _REPLACED)
        self._record("replaced", f"/shared/train.sh {replaced} {' '.join(self._command)}", replaced)
        with (self._share / "new").open("wb") as new, (self._share / _IMAGE).open("rb") as old:
            shutil.copyfileobj(old, new, MIB)
            new.write(bytes(4096))
        os.replace(self._share / "new", self._share / _REPLACED)

    def cases(self) -> dict[str, Case]:
        """List the cases by name; the first is no adverse one."""
        replaced, slow = f"{NEAR}/{_REPLACED}", f"{SLOW}/{_IMAGE}"
        return {
            "right": Case("what was recorded is what is read"),
            "first_start": Case("nothing is known yet", known="nothing"),
            "whole_image": Case("the last start has read nearly all of the image", known="whole"),
            "runtime_changed": Case("the last start has read other files", known="changed"),
            "runtime_changed_slow": Case("the same in a slow store", "changed", slow, slow),
            "image_replaced": Case(
                "the image is another than in the last start", "replaced", replaced, replaced
            ),
            "wrong_plan": Case("the last start was from another image", known="other", told=""),
            "container_reused": Case(
                "the container is on the node already", image=str(self._local)
            ),
            "busy_processors": Case("others use all processors", while_=_spinning),
            "busy_first_start": Case(
                "the same, and nothing is known yet", known="nothing", while_=_spinning
            ),
            "memory_pressure": Case("1 GiB of memory is left", known="whole", while_=_holding),
            "slow_first_start": Case(
                "a slow store, and nothing is known yet", "nothing", slow, slow
            ),
            "dead_store": Case(
                "the user's store does not answer", known="nothing", while_=self._dead
            ),
            "tiny_job": Case("a job that reads next to nothing", command=("true",)),
            "fresh_node": Case(
                "the same on a node that has just come up", command=("true",), is_fresh=True
            ),
            "many_tasks": Case(
                f"{_TASKS} tasks", command=("python3", "-c", "'import numpy'"), tasks=_TASKS
            ),
            "in_memory": Case("all that is read is in memory before", is_cold=False),
        }

    def start(self, case: Case, *, is_with: bool) -> float:
        """Run a case's job once; returns seconds from its submission to when all are ready."""
        self._know(case.known)
        options = [f"-n{case.tasks}", "--oversubscribe"]
        if is_with:
            options += [_KEY, *([f"--bootseer-image={case.told}"] if case.told else [])]
        command = f"/shared/train.sh {case.image} {' '.join(case.command or self._command)}"
        if case.is_cold:
            self._lab.drop_caches()
        if not case.is_fresh:
            self._srun("true" if case.is_cold else command, "--bootseer=other")
            self._cluster.wait_for_job(self._lab.newest_job(), timeout_s=120)
        with case.while_():
            began_ns = time.time_ns()
            said = self._srun(command, *options)
            ready = [int(ns) for ns in _READY.findall(said)]
            if len(ready) != case.tasks:
                raise Unavailable(f"not every task became ready:\n{said}")
            self._cluster.wait_for_job(self._lab.newest_job(), timeout_s=120)
        return (max(ready) - began_ns) / NS_PER_S

    def _record(self, name: str, command: str, image: str) -> None:
        """Have a state of the user's store: what one start leaves there."""
        self._know("nothing")
        self._lab.drop_caches()
        self._srun(
            f"{command}; {site.bootseer()} mark first-step", _KEY, f"--bootseer-image={image}"
        )
        self._cluster.wait_for_job(self._lab.newest_job())
        argv = ["sh", "-c", f"rm -rf known-{name}; cp -a .bootseer known-{name}"]
        self._cluster.run(argv, user=USER)
        found = json.loads(
            self._cluster.run([site.bootseer(), "hot", "ls", "--json"], user=USER).stdout
        )
        self._console.print(f"  {name}: hot {sum(one['hot_bytes'] for one in found) / MIB:.0f} MiB")

    def _know(self, name: str) -> None:
        copy = "true" if name == "nothing" else f"cp -a known-{name} .bootseer"
        self._cluster.run(["sh", "-c", f"rm -rf .bootseer; {copy}"], user=USER)

    def _srun(self, command: str, *options: str) -> str:
        argv = ["srun", "-N1", "-J", "train", *options, "sh", "-c", command]
        return self._cluster.run(argv, user=USER, timeout_s=600).stdout

    @contextmanager
    def _dead(self) -> Iterator[None]:
        """Have users' stores on a share whose server has stopped."""
        config = self._cluster.etc_bootseer / "bootseer.toml"
        empty = self._cluster.state_dir / "dead"
        empty.mkdir(exist_ok=True)
        self._cluster.mount_share(empty, at=DEAD)
        pids = [
            process.pid
            for process in self._cluster.processes("n1")
            if slow_share.MODULE in process.command and DEAD in process.command.split()
        ]
        config.write_text(f'[store]\nurl = "file://{DEAD}/{{user}}"\n')
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            config.unlink()
            self._cluster.unmount_share(DEAD)


@contextmanager
def _in_memory(folder: Path) -> Iterator[Path]:
    """Have a folder that is in memory: a store's machines are others than the node.

    On the node's disk, what is read of the store would hold up what the start reads there.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_mount():  # a bench was killed
        subprocess.run(["umount", folder], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


@contextmanager
def _spinning() -> Iterator[None]:
    """Keep all processors busy."""
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            spinner = stack.enter_context(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
            stack.callback(spinner.kill)
        yield


@contextmanager
def _holding() -> Iterator[None]:
    """Take all of the memory but a little."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    argv = [sys.executable, "-c", _HOLD, str(max(0, available - _LEFT_BYTES))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            yield
        finally:
            holder.kill()


def _measure(
    bench: HarmBench,
    cases: dict[str, Case],
    times: dict[str, CaseTimes],
    rounds: range,
    console: Console,
) -> None:
    for number in rounds:
        console.print(f"\n[bold]round {number + 1} of {rounds.stop}[/]")
        for name, case in cases.items():
            one = times[name]
            # In turn first: what the first leaves in memory helps the second.
            for is_with in (number % 2 == 0, number % 2 != 0):
                (one.used if is_with else one.without).append(bench.start(case, is_with=is_with))
            without, used = (format_duration(values[-1]) for values in (one.without, one.used))
            console.print(f"{name}: {case.what}: without {without}, with {used}")


def run_harm_bench(spec: HarmSpec, console: Console) -> None:
    """Measure, print a table and write BUILD_DIR/bench-harm.json.

    Raises:
        BootseerError: something it needs is missing; the cluster is down again then.
        OSError: there is no room in memory for three images.
    """
    image = cached_image(demo_image(), spec.build_dir / "images", console.print)
    with ExitStack() as stack:
        share = stack.enter_context(_in_memory(spec.build_dir / "bench-harm"))
        for name in (_IMAGE, _OTHER):
            shutil.copyfile(image, share / name)
        cluster = stack.enter_context(Cluster.up(ClusterSpec(name="bench-harm", nodes=1)))
        site.install(cluster, console.print)
        cluster.mount_share(share, at=NEAR, latency_s=0.0002)
        cluster.mount_share(share, at=SLOW, bandwidth_bytes_per_s=40e6)
        bench = HarmBench(cluster, console, share)
        console.print("recording what is known before")
        bench.prepare()
        cases = bench.cases()
        if unknown := set(spec.only) - set(cases):
            raise ConfigError(
                f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(cases)}"
            )
        cases = {name: case for name, case in cases.items() if not spec.only or name in spec.only}
        times = {name: CaseTimes() for name in cases}
        _measure(bench, cases, times, range(spec.rounds), console)
        doubtful = {name: cases[name] for name in cases if times[name].slower() > MOST_SLOWER}
        if doubtful:
            console.print(f"\n[bold]once more[/]: {', '.join(doubtful)}")
            _measure(bench, doubtful, times, range(spec.rounds, 2 * spec.rounds), console)
    measured = []
    ratios = {}
    for name, one in times.items():
        measured += [
            Figure(f"{name}_{how}_ready_s", "s", tuple(values))
            for how, values in (("without", one.without), ("with", one.used))
        ]
        ratios[f"{name}_over_without"] = one.ratio()
    ratios["worst_over_without"] = max(one.slower() for one in times.values())
    figures.show(console, measured, ratios)
    figures.write(spec.build_dir / "bench-harm.json", measured, ratios)

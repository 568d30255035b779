"""Run the race: all contestants in turn in each round, and what each start took and moved."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from bootseer.errors import Unavailable
from bootseer.units import format_size
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.hdfs import Hdfs, HdfsSettings, hadoop_jars, java
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import Lab
from bootseer_dev.race import contestants as field
from bootseer_dev.race import job, processors, report
from bootseer_dev.race.contestants import Contestant, Places
from bootseer_dev.race.material import (
    IMAGE,
    INDEX,
    PLAIN,
    STRIPED,
    USER,
    Material,
)
from bootseer_dev.race.report import Start, phases
from bootseer_dev.race.spec import COPIES, DATANODES, NODE_MBIT, STORE_MBIT, RaceSpec
from bootseer_dev.race.storage import ADDRESS, Storage, storage

_MARK = re.compile(r"^mark (\S+) (\S+) (\d+)$")
_CACHE = "/var/cache/bootseer/images"
_JOB_MINUTES = 30
_TRAINING_S = 20.0
"""How long a job of BootSeer's goes on after its first step: its agents store what they know."""
_VARIABLES = {
    "PIP_INDEX_URL": INDEX,
    "PIP_TRUSTED_HOST": ADDRESS,
    "HADOOP_CONF_DIR": java.CONF_DIR,
}
"""Of the job."""


class Race:
    """A cluster with all that the contestants need."""

    def __init__(
        self,
        cluster: Cluster,
        hdfs: Hdfs,
        built: Storage,
        material: Material,
        spec: RaceSpec,
        console: Console,
    ) -> None:
        """Take over a cluster with the plugin installed, and the material in it."""
        self._cluster = cluster
        self._hdfs = hdfs
        self._storage = built
        self._spec = spec
        self._console = console
        self._lab = Lab(cluster, cluster.shared)
        self._material = material
        self._warm_job = 0
        self.places = Places(
            pip=self._material.pip,
            hadoop_cat=shlex.join(hdfs.fs_command("-cat")),
            python=sys.executable,
            plain=hdfs.url + PLAIN,
            striped=hdfs.url + STRIPED,
            image=IMAGE,
            local=str(self._material.local),
            containers=str(self._lab.containers),
            modules=spec.modules,
        )

    def prepare(self) -> None:
        """Put environment, checkpoint and image where each contestant finds them."""
        self._configure("bootseer")
        self._material.put_environment(self._console.print)
        self._material.put_checkpoint(self._lab.containers, self._hdfs.url, self._console.print)
        self._material.put_image(self._console.print)

    def start(self, contestant: Contestant) -> Start:
        """Run the job once, on nodes that have nothing unless the contestant says otherwise."""
        self._reset(contestant)
        if busy := processors.wait_for_quiet():
            self._console.print(f"  [yellow]others keep the processors {busy:.0%} busy[/]")
        over = self._cluster.state_dir / job.OVER.lstrip("/")
        over.unlink(missing_ok=True)
        log = self._cluster.state_dir / f"{contestant.name}.log"
        sent_bytes, ticks = self._storage.sent_bytes(), processors.Ticks.now()
        began_ns = time.time_ns()
        with log.open("w") as errors:
            running = self._cluster.popen(
                self._command(contestant), user=USER, env=_VARIABLES, stderr=errors
            )
            marks = self._marks_until_ready(running)
            sent_bytes = self._storage.sent_bytes() - sent_bytes
            share = ticks.share_since()
            if contestant.key and running.poll() is None:
                self._let_it_train(contestant)
            over.touch()
            running.communicate()
        if running.returncode:
            raise Unavailable(f"{contestant.name} did not start:\n{log.read_text()[-2000:]}")
        job_id = self._lab.newest_job()
        self._cluster.wait_for_job(job_id)
        if contestant.key:
            self._tell_fallbacks(job_id)
        if contestant.name == report.WARM:
            self._warm_job = job_id
        return Start(phases(marks, began_ns), sent_bytes, share)

    def record_alone(self) -> None:
        """Let each of BootSeer's techniques alone see the job once."""
        for contestant in field.contestants(self.places):
            if contestant.is_alone:
                self._console.print(f"recording for: {contestant.what}")
                self.start(field.on_local_copies(contestant, self.places))

    def show_report(self) -> None:
        """Print what BootSeer reports of its last warm start."""
        self._configure("bootseer")
        argv = [site.bootseer(), "report", str(self._warm_job), "--alone"]
        print(self._cluster.run(argv, user=USER, env={"COLUMNS": "150"}).stdout)

    def _command(self, contestant: Contestant) -> list[str]:
        """Write the job's script; returns the command that submits it."""
        script = self._cluster.shared / "race" / f"{contestant.name}.sh"
        script.write_text(job.script(contestant, self.places))
        script.chmod(0o755)
        srun = ["srun", f"-N{self._spec.nodes}", "--ntasks-per-node=1", f"-t{_JOB_MINUTES}"]
        return [*srun, *contestant.options, f"/shared/race/{script.name}"]

    def _marks_until_ready(self, running: subprocess.Popen[str]) -> dict[str, dict[str, int]]:
        """Return when each node ended each part, by node, once all have made their first step."""
        marks: dict[str, dict[str, int]] = {node: {} for node in self._cluster.node_names}
        assert running.stdout is not None
        for line in running.stdout:
            if match := _MARK.match(line.strip()):
                marks[match[2]][match[1]] = int(match[3])
            if all(job.PHASES[-1] in of_node for of_node in marks.values()):
                break
        return marks

    def _reset(self, contestant: Contestant) -> None:
        for node in self._cluster.node_names:
            unmount = f"umount -l {field.TARGET} 2>/dev/null; rm -rf {field.LOCAL} {_CACHE}"
            self._cluster.run(["sh", "-c", unmount], node=node)
        if contestant.is_first:
            self._hdfs.fs("-rm", "-r", "-f", "-skipTrash", f"/user/{USER}/.bootseer")
        self._configure("alone" if contestant.is_alone else "bootseer")
        if not contestant.is_in_memory:
            self._lab.drop_caches()

    def _configure(self, store: str) -> None:
        home = f"{self._hdfs.url}/user/{{user}}"
        (self._cluster.etc_bootseer / "bootseer.toml").write_text(
            f'[store]\nurl = "{home}/.{store}"\n'
            f'[image]\nstore_url = "{self._hdfs.url}/user/{USER}/images"\n'
            "[cache]\nfree_share = 0.0\n"  # all nodes have one disk, which DataNodes fill, too
        )

    def _let_it_train(self, contestant: Contestant) -> None:
        """Let the job go on for as long as it takes to store its recording."""
        began = time.monotonic()
        if (contestant.is_first or contestant.is_alone) and contestant.environment.option:
            wait_until(self._has_snapshot, "the environment is stored", timeout_s=300)
        time.sleep(max(0.0, _TRAINING_S + began - time.monotonic()))

    def _has_snapshot(self) -> bool:
        argv = [site.bootseer(), "env", "ls", "--json"]
        return bool(json.loads(self._cluster.run(argv, user=USER).stdout))

    def _tell_fallbacks(self, job: int) -> None:
        for node in self._lab.report(job, USER)["nodes"]:
            for stage in node["stages"]:
                if stage["status"] == "fallback":
                    said = f"  {node['node']}: {stage['stage']}: {stage['detail']}"
                    self._console.print(said, markup=False)


def run_race(spec: RaceSpec, console: Console) -> None:
    """Run the race; print a table and write race.json, race.md and race.svg in BUILD_DIR.

    Raises:
        BootseerError: something it needs is missing; the cluster is down again then.
    """
    jars = hadoop_jars(spec.build_dir, console.print)
    machines = ClusterSpec(
        name="race",
        nodes=spec.nodes,
        link_rate=f"{NODE_MBIT}mbit",
        datanodes=DATANODES,
        datanode_rate=f"{STORE_MBIT // DATANODES}mbit",
    )
    starts: dict[str, list[Start]] = {}
    with Cluster.up(machines) as cluster:
        material = Material(cluster, spec)
        _require_space(cluster.state_dir, spec.disk_bytes)
        material.put_files(console.print)
        hdfs = Hdfs.start(cluster, jars, HdfsSettings(replication=COPIES))
        with storage(cluster, material.share, STORE_MBIT) as built:
            site.install(cluster, console.print)
            race = Race(cluster, hdfs, built, material, spec, console)
            race.prepare()
            contestants = field.contestants(race.places, alone=spec.alone)
            if spec.alone:
                race.record_alone()
            for number in range(spec.rounds):
                console.print(f"\n[bold]round {number + 1} of {spec.rounds}[/]")
                for contestant in contestants:
                    start = race.start(contestant)
                    starts.setdefault(contestant.name, []).append(start)
                    console.print(report.line(contestant.what, start))
            race.show_report()
    whats = {contestant.name: contestant.what for contestant in contestants}
    report.write(spec.build_dir, whats, starts, STORE_MBIT * 1e6 / 8, console)


def _require_space(folder: Path, wanted_bytes: int) -> None:
    """Refuse to begin what would fill the disk.

    Raises:
        Unavailable: there is less space.
    """
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes:
        raise Unavailable(
            f"the race needs {format_size(wanted_bytes)} in {folder}, which has "
            f"{format_size(free)} free; try --small"
        )

"""A cluster with BootSeer installed, and a user's jobs on it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bootseer_dev.cluster import Cluster
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.material.images import TinyImage, ch_run, digest, write_image

RUN_DIR = "/run/bootseer"
SHARE = "/mnt/share"
IMAGE = f"{SHARE}/tiny.sqsh"
HEALTHY_STATES = {"idle", "planned", "allocated", "mixed", "completing"}
CONFIG = "[image]\nsample_interval_s = 0.1\n[store]\ndeadline_s = 3\n[epilog]\ndeadline_s = 10\n"
PLUGIN = ("advice_timeout=5",)
"""Arguments of the plugin: what else runs may keep the processors busy."""


@dataclass(frozen=True)
class Job:
    """A job that has ended."""

    job_id: int
    state: str
    stdout: str
    stderr: str
    exit_code: int


class Lab:
    """The cluster, the slow share with a tiny image on it, and what tests ask of both."""

    def __init__(self, cluster: Cluster, images: Path) -> None:
        """Use a cluster that is up, with BootSeer installed, and a folder for its images."""
        self.cluster = cluster
        self.images = images
        self.containers = cluster.state_dir / "containers"
        self.containers.mkdir(mode=0o1777, exist_ok=True)
        self.containers.chmod(0o1777)

    # The image and how a job starts it.

    def put_image(self, recipe: TinyImage | None = None) -> TinyImage:
        """Put a new image under the image's name."""
        recipe = recipe or TinyImage()
        cached = self.images / f"{digest(recipe)[:12]}.sqsh"
        if not cached.exists():
            write_image(recipe, cached)
        # Another inode, as whoever publishes a new image would make.
        copy = self.images / "tiny.new"
        copy.write_bytes(cached.read_bytes())
        copy.replace(self.images / "tiny.sqsh")
        return recipe

    def mount_share(self, bandwidth: float = 200e6, latency_s: float = 0.001) -> None:
        """Mount the images' folder on every node; bandwidth in bytes per second."""
        self.cluster.mount_share(
            self.images, at=SHARE, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth
        )

    def start(self, image: str = IMAGE) -> str:
        """The shell command that starts the container."""
        return shlex.join(ch_run(Path(image), self.containers, *TinyImage().command))

    def drop_caches(self) -> None:
        """Drop the page caches of this machine, and so of all nodes."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")

    # Jobs.

    def srun(
        self,
        *options: str,
        command: str | None = None,
        user: str = "alice",
        env: dict[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 60,
    ) -> Job:
        """Run a job on both nodes, by default the container from cold caches."""
        if command is None:
            self.drop_caches()
            command = self.start()
        argv = ["srun", "-N2", "--ntasks-per-node=1", *options, "sh", "-c", command]
        answer = self.cluster.run(argv, user=user, env=env, check=False, timeout_s=timeout_s)
        job_id = self.newest_job()
        state = self.cluster.wait_for_job(job_id, timeout_s=30)
        job = Job(job_id, state, answer.stdout, answer.stderr, answer.returncode)
        if check:
            assert job.exit_code == 0, job
            assert job.state == "COMPLETED", job
        self.assert_healthy()
        return job

    def start_in_background(
        self, *options: str, command: str = "sleep 60"
    ) -> tuple[int, subprocess.Popen[str]]:
        """Start a job of alice's on both nodes; returns its id once it has agents, and the srun."""
        before = self.newest_job()
        argv = ["srun", "-N2", "--ntasks-per-node=1", *options, "sh", "-c", command]
        running = self.cluster.popen(argv, user="alice")
        job_id = wait_until(lambda: max(0, self.newest_job() - before), "a new job") + before
        self.wait_for_agents(job_id)
        return job_id, running

    def end(self, job_id: int, running: subprocess.Popen[str]) -> None:
        """Cancel a job that was started in the background."""
        self.cluster.run(["scancel", str(job_id)], check=False)
        running.communicate(timeout=30)
        self.cluster.wait_for_job(job_id, timeout_s=30)

    def sbatch(self, script: str, *options: str, user: str = "alice") -> int:
        """Submit a batch script; returns the job's id."""
        answer = self.cluster.run(
            ["sbatch", "--parsable", "-o", "/shared/%j.out", *options],
            user=user,
            input=script,
        )
        return int(answer.stdout.split(";")[0])

    def newest_job(self) -> int:
        """Return the id of the newest job, 0 when there was none."""
        listed = self.cluster.run(["squeue", "--states=all", "--noheader", "--format=%A"])
        return max((int(line) for line in listed.stdout.split()), default=0)

    def wait_for_agents(self, job_id: int, *nodes: str) -> None:
        """Wait until the job's agents answer."""
        for node in nodes or self.cluster.node_names:
            wait_until(partial(self.agent, node, job_id), f"an agent of job {job_id} on {node}")

    def agent(self, node: str, job_id: int) -> int | None:
        """The process id, as the host counts, of a job's agent."""
        for process in self.cluster.processes(node):
            if f"warm {RUN_DIR}/jobs/{job_id}" in process.command and process.uid == 0:
                return process.pid
        return None

    def status(self, node: str, user: str = "root") -> list[dict[str, Any]]:
        """What `bootseer status` says on a node."""
        answer = self.cluster.run([site.bootseer(), "status", "--json"], node=node, user=user)
        found: list[dict[str, Any]] = json.loads(answer.stdout)
        return found

    def wait_for_prefetch(self, node: str) -> None:
        """Wait until a prefetch on the node is under way."""
        wait_until(
            lambda: any(
                image["done_bytes"] < image["want_bytes"]
                for job in self.status(node)
                for image in job["images"]
            ),
            f"a prefetch on {node}",
        )

    # What is known afterwards.

    def report(self, job: int | Job, user: str = "alice") -> dict[str, Any]:
        """The report of one job."""
        job_id = job if isinstance(job, int) else job.job_id
        argv = [site.bootseer(), "report", str(job_id), "--alone", "--json"]
        found: list[dict[str, Any]] = json.loads(self.cluster.run(argv, user=user).stdout)
        return found[-1]

    def stages(self, job: int | Job, node: str = "n1") -> dict[str, dict[str, Any]]:
        """The stages of one node in a job's report, the last of each name."""
        nodes = {n["node"]: n for n in self.report(job)["nodes"]}
        return {stage["stage"]: stage for stage in nodes[node]["stages"]}

    def fallbacks(self, job: int | Job) -> set[str]:
        """Names of the stages that fell back, on any node; prints why they did."""
        found = set()
        for node in self.report(job)["nodes"]:
            for stage in node["stages"]:
                if stage["status"] == "fallback":
                    print(f"{node['node']}: {stage['stage']}: {stage['detail']}")
                    found.add(stage["stage"])
        return found

    def store(self, user: str = "alice") -> Path:
        """A user's store, on the host."""
        return self.cluster.state_dir / "home" / user / ".bootseer"

    def forget(self, user: str = "alice") -> None:
        """Remove all that is known of a user's jobs."""
        self.cluster.run(["rm", "-rf", str(self.store(user))])
        for node in self.cluster.node_names:
            self.cluster.run(["rm", "-rf", "/var/cache/bootseer/unpublished"], node=node)
        self.forget_outages(user)

    def forget_outages(self, user: str = "alice") -> None:
        """Let a user's store be asked again at once after an outage."""
        uid = self.cluster.spec.uid(user)
        folders = (f"/dev/shm/bootseer-{uid}", f"/var/cache/bootseer/unpublished/{uid}")
        remove = ["sh", "-c", "rm -f " + " ".join(f"{folder}/outage-*" for folder in folders)]
        for machine in (None, *self.cluster.node_names):
            self.cluster.run(remove, node=machine)

    def slurmd_log(self, node: str) -> str:
        """Return what a node's slurmd has logged."""
        return self.cluster.log(node).read_text(errors="replace")

    def assert_healthy(self) -> None:
        """No node is drained or down, and no job that has ended has left anything."""
        states = self.cluster.node_states()
        assert set(states.values()) <= HEALTHY_STATES, states

    def assert_clean(self) -> None:
        """Nothing of BootSeer's is left on any node, once the last epilog has run."""
        for node in self.cluster.node_names:
            wait_until(
                partial(self._is_clean, node),
                f"{node} clean",
                explain=partial(self._listed, node),
            )

    def _is_clean(self, node: str) -> bool:
        return not self.left_overs(node)

    def _listed(self, node: str) -> str:
        return "\n".join(self.left_overs(node))

    def left_overs(self, node: str) -> list[str]:
        """List processes, mounts and files of BootSeer's on a node."""
        processes = [
            process.command
            for process in self.cluster.processes(node)
            if re.search(r"bootseer\.agent|bootseer-(pro|epi)log|BOOTSEER", process.command)
        ]
        mounts = [
            m.mountpoint for m in self.cluster.mounts(node) if m.mountpoint.startswith(RUN_DIR)
        ]
        find = f"find {RUN_DIR}/jobs {RUN_DIR}/dead -mindepth 1 2>/dev/null || true"
        files = self.cluster.run(["sh", "-c", find], node=node).stdout.split()
        return [*processes, *mounts, *files]

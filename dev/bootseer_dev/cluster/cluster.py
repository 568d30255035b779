"""A running cluster, as tests and the command line handle it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from bootseer.errors import Denied, NotFound
from bootseer_dev.cluster import share, state_folder
from bootseer_dev.cluster.machines import Machines
from bootseer_dev.cluster.namespaces import launch
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.roots import prepare
from bootseer_dev.cluster.slurm import daemons
from bootseer_dev.cluster.spec import ClusterSpec
from bootseer_dev.files.slow_share import Throttle

_DESCRIPTION = "cluster.json"
_OVER = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    ]
)


@dataclass(frozen=True, slots=True)
class Cluster(Machines):
    """Machines with Slurm on them; as a context manager they are taken down at the end."""

    @classmethod
    def up(
        cls, spec: ClusterSpec | None = None, say: Callable[[str], None] = lambda line: None
    ) -> Cluster:
        """Start a cluster and return when Slurm, if it has nodes, calls them all idle.

        A failure or an interrupt on the way leaves nothing behind. The root of another Slurm
        release is made on its first use, which takes minutes.

        Args:
            spec: its size and settings.
            say: takes a line for each thing that takes more than seconds.

        Raises:
            Conflict: a cluster of this name is up.
            Denied: it is to have nodes, and the caller is not root.
            Unavailable: programs are missing, or a daemon did not start; the text says what to do.
        """
        spec = spec or ClusterSpec()
        if spec.nodes and spec.is_rootless:
            raise Denied(
                "a local cluster's Slurm needs several users and munge: run this as root; without "
                "root there is HDFS alone, `bootseer dev hdfs up`"
            )
        daemons.require_programs(spec)
        prepare.prepare(spec.slurm, say)
        lock = state_folder.lock(spec.state_dir)
        try:
            try:
                state_folder.clear(spec.state_dir)
                state_folder.populate(spec)
                launched = launch.launch(spec, lock)
            finally:
                os.close(lock)
            cluster = cls(spec, launched.keeper_pid, launched.machine_pids)
            if spec.nodes:
                daemons.start_all(cluster)
            (spec.state_dir / _DESCRIPTION).write_text(json.dumps(asdict(cluster), indent=1))
            launched.commit()
        except BaseException:
            launch.end(spec.state_dir)
            raise
        return cluster

    @classmethod
    def attach(cls, name: str = "default") -> Cluster:
        """Return the cluster of this name that is up.

        Raises:
            NotFound: there is none.
        """
        state_dir = ClusterSpec(name).state_dir
        if not state_folder.is_locked(state_dir) or not (state_dir / _DESCRIPTION).exists():
            raise NotFound(
                f"no cluster {name!r} is up; start one with `bootseer dev cluster up`, or with "
                "`bootseer dev hdfs up`"
            )
        fields = json.loads((state_dir / _DESCRIPTION).read_text())
        return cls(
            ClusterSpec.from_json(fields["spec"]), fields["keeper_pid"], fields["machine_pids"]
        )

    @staticmethod
    def remove(name: str = "default") -> None:
        """End the cluster of this name and delete its state directory; no cluster is no error.

        Raises:
            Denied: the directory belongs to somebody else.
            Unavailable: it does not end.
        """
        state_dir = ClusterSpec(name).state_dir
        if state_dir.exists() and state_dir.stat().st_uid != os.geteuid():
            raise Denied(f"{state_dir} belongs to somebody else")
        launch.end(state_dir)

    def down(self) -> None:
        """End this cluster and delete its state directory; a second time is no error."""
        self.remove(self.spec.name)

    def __enter__(self) -> Cluster:
        """Return the cluster itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Take the cluster down."""
        self.down()

    # --- Slurm ---

    def node_states(self) -> dict[str, str]:
        """Return each node's state as sinfo words it: ``idle``, ``allocated``, ``down*``."""
        lines = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"]).stdout.splitlines()
        return dict(line.split() for line in lines)

    def job_state(self, job_id: int | str) -> str:
        """Return a job's state as scontrol words it: ``RUNNING``, ``COMPLETED``.

        Raises:
            CommandFailed: Slurm does not know the job.
        """
        text = self.run(["scontrol", "--oneliner", "show", "job", str(job_id)]).stdout
        return dict(field.split("=", 1) for field in text.split() if "=" in field)["JobState"]

    def wait_for_job(self, job_id: int | str, timeout_s: float = 60) -> str:
        """Wait until a job is over and return its last state.

        Raises:
            Unavailable: it is not over in time.
        """
        return wait_until(
            lambda: state if (state := self.job_state(job_id)) in _OVER else "",
            f"job {job_id} is over",
            timeout_s=timeout_s,
            explain=lambda: f"it is {self.job_state(job_id)}",
        )

    def start_slurmd(self, *nodes: str) -> None:
        """Start slurmd on these nodes, by default on all, and wait until it answers."""
        daemons.start_slurmd(self, nodes or self.node_names)

    def stop_slurmd(self, *nodes: str, kill: bool = False) -> None:
        """End slurmd on these nodes, by default on all; with `kill` by SIGKILL."""
        daemons.stop_slurmd(self, nodes or self.node_names, kill=kill)

    def restart_slurmd(self, *nodes: str) -> None:
        """Stop and start slurmd on these nodes, by default on all, as a change of plugins needs."""
        self.stop_slurmd(*nodes)
        self.start_slurmd(*nodes)

    # --- The slow share ---

    def mount_share(
        self,
        source_dir: Path,
        *,
        at: str = "/mnt/share",
        latency_s: float = 0.002,
        bandwidth_bytes_per_s: float | None = 200e6,
        read_ahead_kib: int | None = None,
        on_head: bool = False,
    ) -> None:
        """Show a folder of the host on every node, read-only and slow; return when it is mounted.

        Args:
            source_dir: the folder.
            at: where the nodes see it, below /mnt.
            latency_s: how long each request of the kernel waits, in seconds.
            bandwidth_bytes_per_s: shared by all nodes; None for no limit.
            read_ahead_kib: the mounts' read-ahead; the kernel's default is 128 KiB.
            on_head: mount it on the head, too.

        Raises:
            ConfigError: `at` is not below /mnt.
            Unavailable: a mount failed; the text has its daemon's log.
        """
        machines = self.spec.machine_names if on_head else self.node_names
        throttle = Throttle(latency_s, bandwidth_bytes_per_s)
        share.mount(self, machines, source_dir, at, throttle, read_ahead_kib)

    def unmount_share(self, at: str = "/mnt/share") -> None:
        """Unmount the slow share everywhere and wait until its daemons are gone.

        Raises:
            CommandFailed: it is in use.
        """
        share.unmount(self, at)

"""Slurm's and munge's daemons on the machines of a cluster: start, stop, wait."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bootseer.errors import Unavailable
from bootseer_dev.cluster.namespaces import systemd
from bootseer_dev.cluster.namespaces.enter import PATH
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import HEAD, ClusterSpec

if TYPE_CHECKING:
    from bootseer_dev.cluster.cluster import Cluster

# Programs that must be there, with the Debian package that has them.
_SLURM_PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
}
_PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "pivot_root": "util-linux",
}
_SYSTEMD_PROGRAMS = {systemd.PROGRAM: "systemd", "dbus-daemon": "dbus"}
_SLURMCTLD_PORT = 6817
_SLURMD_PORT = 6818
_UNIT = ("systemctl", "start", "slurmd")
_LOGS = {
    "munged": "munge/munged.log",
    "slurmctld": "slurm/slurmctld.log",
    "slurmd": "slurm/slurmd.log",
}


def require_programs(spec: ClusterSpec) -> None:
    """Check that all programs are installed that such a cluster needs.

    Raises:
        Unavailable: some are not; the text names the packages.
    """
    is_hosts_slurm = spec.nodes and spec.slurm is None
    programs = _PROGRAMS | (_SLURM_PROGRAMS if is_hosts_slurm else {})
    programs |= _SYSTEMD_PROGRAMS if spec.systemd else {}
    missing = {name: pkg for name, pkg in programs.items() if not shutil.which(name, path=PATH)}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise Unavailable(
            f"a local cluster needs {', '.join(missing)}; install with: apt-get install {packages}"
        )


def start_all(cluster: Cluster) -> None:
    """Start munged, slurmctld and every slurmd, and wait until Slurm calls all nodes idle.

    Raises:
        Unavailable: a daemon did not start; the text names its log.
    """
    _start(cluster, "munged", [HEAD], user="munge")
    _start(cluster, "slurmctld", [HEAD])
    _wait_for_port(cluster, HEAD, "slurmctld", _SLURMCTLD_PORT)
    start_slurmd(cluster, cluster.node_names)
    wait_idle(cluster, cluster.node_names)


def start_slurmd(cluster: Cluster, nodes: Iterable[str]) -> None:
    """Start slurmd on the nodes, all at once, and wait until they answer.

    Raises:
        Unavailable: one did not start; the text names its log.
    """
    nodes = tuple(nodes)
    for node in nodes if cluster.spec.systemd else ():
        wait_until(partial(_has_systemd, cluster, node), f"systemd on {node} takes commands")
    _start(cluster, "slurmd", nodes, _UNIT if cluster.spec.systemd else ())
    for node in nodes:
        _wait_for_port(cluster, node, "slurmd", _SLURMD_PORT)


def stop_slurmd(cluster: Cluster, nodes: Iterable[str], *, kill: bool) -> None:
    """End slurmd on the nodes, and wait until it is gone; steps of running jobs go on.

    Args:
        cluster: the cluster.
        nodes: where.
        kill: with SIGKILL instead of SIGTERM.

    Raises:
        Unavailable: a slurmd does not end.
    """
    nodes = tuple(nodes)
    signal = "KILL" if kill else "TERM"
    # The pid file outlives a killed slurmd; its pid may be no slurmd any more.
    by_file = f'[ ! -e "$0" ] || {{ read -r pid < "$0"; kill -{signal} "$pid"; rm -f "$0"; }}'
    stop = ["sh", "-c", by_file, "/run/slurmd.pid"]
    if cluster.spec.systemd:
        stop = ["systemctl", "kill", "--kill-whom=main", f"--signal={signal}", "slurmd"]
    for node in nodes:
        cluster.run(stop, node=node, check=False)
    for node in nodes:
        wait_until(partial(_has_no_slurmd, cluster, node), f"slurmd on {node} ended")


def wait_idle(cluster: Cluster, nodes: Iterable[str], timeout_s: float = 30) -> None:
    """Wait until Slurm calls all these nodes idle.

    Raises:
        Unavailable: it does not in time; the text has the states and names the logs.
    """
    nodes = set(nodes)

    def idle() -> bool:
        states = cluster.node_states()
        return all(states.get(node) == "idle" for node in nodes)

    def explain() -> str:
        return f"sinfo says {cluster.node_states()}; look into {cluster.log(HEAD)} and the nodes'"

    wait_until(idle, "all nodes idle", timeout_s=timeout_s, explain=explain)


def _has_systemd(cluster: Cluster, node: str) -> bool:
    argv = ["test", "-S", "/run/systemd/private"]
    return cluster.run(argv, node=node, check=False).returncode == 0


def _has_no_slurmd(cluster: Cluster, node: str) -> bool:
    programs = (process.command.split()[0] for process in cluster.processes(node))
    return not any(os.path.basename(program) == "slurmd" for program in programs)


def _start(
    cluster: Cluster,
    daemon: str,
    machines: Iterable[str],
    command: Sequence[str] = (),
    *,
    user: str = "root",
) -> None:
    """Start a daemon on the machines, by default by its program, which forks it."""
    argv = command or [daemon]
    started = [
        (machine, cluster.popen(argv, node=machine, user=user, stderr=subprocess.STDOUT))
        for machine in machines
    ]
    for machine, process in started:
        output, _ = process.communicate()
        if process.returncode != 0:
            raise Unavailable(
                f"{daemon} on {machine} did not start (exit code {process.returncode}): "
                f"{output.strip()}; look into {cluster.log(machine, _LOGS[daemon])}"
            )


def _wait_for_port(cluster: Cluster, machine: str, daemon: str, port: int) -> None:
    wait_until(
        lambda: cluster.is_listening(machine, port),
        f"{daemon} on {machine} listens",
        explain=lambda: f"Look into {cluster.log(machine, _LOGS[daemon])}",
    )

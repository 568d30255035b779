"""The slow share on a cluster's nodes: one daemon per node, one bandwidth for all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bootseer.errors import ConfigError
from bootseer.fuse.mountinfo import find_mount
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.files import slow_share

if TYPE_CHECKING:
    from bootseer_dev.cluster.cluster import Cluster

_BELOW = "/mnt/"


def mount(
    cluster: Cluster,
    machines: Iterable[str],
    source: Path,
    at: str,
    throttle: slow_share.Throttle,
    read_ahead_kib: int | None,
) -> None:
    """Mount the folder on every one of the machines, each by a daemon of its own.

    Raises:
        ConfigError: the mount point is not below /mnt, where it leaves nothing on the host.
        Unavailable: a daemon did not mount; the text has its log.
    """
    if not at.startswith(_BELOW):
        raise ConfigError(f"a share is mounted below {_BELOW}, not at {at}")
    name = at.removeprefix(_BELOW).replace("/", "-")
    line = cluster.state_dir / f"share-{name}.line"
    command = slow_share.command_line(source.absolute(), at, throttle, line, read_ahead_kib)
    package_root = str(Path(__file__).parents[2])
    logs = {}
    for machine in machines:
        cluster.run(["mkdir", "-p", at], node=machine)
        logs[machine] = cluster.log(machine, f"share-{name}.log")
        with logs[machine].open("w") as output:
            starter = cluster.popen(
                # A session of its own lets the daemon outlive this command.
                ["setsid", "--fork", sys.executable, "-m", *command],
                node=machine,
                env={"PYTHONPATH": package_root},
                cwd="/",
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        starter.communicate()
    for machine, log in logs.items():
        wait_until(
            partial(_is_ready, log),
            f"the slow share is mounted on {machine}",
            explain=log.read_text,
        )


def unmount(cluster: Cluster, at: str) -> None:
    """Unmount the share wherever it is mounted, and wait for the daemons' end.

    Raises:
        CommandFailed: it is in use.
    """
    for machine in cluster.spec.machine_names:
        if find_mount(at, cluster.holder_pid(machine)) is not None:
            cluster.run(["umount", at], node=machine)
        wait_until(
            partial(_has_no_daemon, cluster, machine, at),
            f"the slow share's daemon on {machine} ended",
        )


def _is_ready(log: Path) -> bool:
    return slow_share.READY in log.read_text()


def _has_no_daemon(cluster: Cluster, machine: str, at: str) -> bool:
    words = (process.command.split() for process in cluster.processes(machine))
    return not any(slow_share.MODULE in command and at in command for command in words)

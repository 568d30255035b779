"""BootSeer installed on the local cluster, by the commands an administrator uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bootseer_dev.cluster import Cluster


def bootseer() -> str:
    """Path of the installed bootseer command, which the cluster's users can run."""
    return str(Path(sys.executable).parent / "bootseer")


def libexec(cluster: Cluster) -> Path:
    """Where the cluster has the plugin and its entry scripts; machines see it at the same path."""
    return cluster.state_dir / "libexec"


def install(
    cluster: Cluster,
    say: Callable[[str], None] = lambda line: None,
    *,
    arguments: Sequence[str] = (),
    config: str = "",
) -> None:
    """Build and install the plugin, and restart slurmd as its installation asks for.

    Args:
        cluster: that is up.
        say: takes a line for each thing done.
        arguments: of the plugin's line in plugstack.conf.
        config: text of /etc/bootseer/bootseer.toml; empty for the defaults, with no file.
    """
    if config:
        (cluster.etc_bootseer / "bootseer.toml").write_text(config)
    command = [bootseer(), "plugin", "install", "--prefix", str(libexec(cluster)), "--"]
    answer = cluster.run([*command, *arguments], timeout_s=120)
    for line in answer.stdout.splitlines():
        if line.startswith("installed"):
            say(line)
    cluster.restart_slurmd()

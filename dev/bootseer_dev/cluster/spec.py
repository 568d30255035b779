"""What a cluster is to look like, and the names and places that follow from it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bootseer.errors import ConfigError
from bootseer_dev.cluster.slurm import releases

HEAD = "head"
HEAD2 = "head2"
VERSION_1 = "/run/control-groups"
"""Where a node has control groups of version 1, if Slurm is to use them."""
FIRST_UID = 20001
MAX_NODES = 250
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_RATE = re.compile(r"\d+(\.\d+)?[kmg]bit")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster's size and settings.

    Attributes:
        name: tells clusters on one machine apart; part of the state directory's name.
        nodes: how many compute nodes; there may be more than the machine has cores. With none
            there is no Slurm.
        datanodes: how many machines for the DataNodes of an HDFS; see `bootseer_dev.hdfs`.
        namenodes: one, on the head, or two, the second on ``head2``, a machine of its own.
        cpus_per_node: what Slurm is told each node has, whatever the machine has.
        memory_mib_per_node: likewise.
        link_rate: limit of each node's link, each way, as tc writes rates (``800mbit``).
        datanode_rate: the same for the DataNodes' links.
        systemd: whether systemd runs the nodes, with slurmd as its service.
        cgroups: whether Slurm has jobs in control groups (proctrack/cgroup, task/cgroup), which
            limit their memory, CPUs and devices. It needs `systemd`, and control groups of version
            1: Slurm refuses version 2 on hosts that have both, as CI's has.
        users: plain users, made for the cluster alone, with uids from 20001 on.
        slurm_conf_extra: lines for slurm.conf, which replace those of the same key; without a
            value they only take that away.
        slurm: a release of Slurm other than the host's, by its name in `slurm.releases`; the
            machines then have a Debian root of that release. None is the host's own.
        owner: the uid whose cluster it is, the caller's.
    """

    name: str = "default"
    nodes: int = 2
    datanodes: int = 0
    namenodes: int = 1
    cpus_per_node: int = 8
    memory_mib_per_node: int = 4096
    link_rate: str | None = None
    datanode_rate: str | None = None
    systemd: bool = False
    cgroups: bool = False
    users: tuple[str, ...] = ("alice", "mallory")
    slurm_conf_extra: tuple[str, ...] = ()
    slurm: str | None = None
    owner: int = field(default_factory=os.geteuid)

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: a name, a count or a rate is not acceptable.
        """
        for name in (self.name, *self.users):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"cluster or user name {name!r} is not acceptable: use small letters, "
                    "digits and '-', a letter first, at most 31"
                )
        if not (0 <= self.nodes <= MAX_NODES and 0 <= self.datanodes <= MAX_NODES):
            raise ConfigError(
                f"a cluster has up to {MAX_NODES} nodes and as many DataNodes, not {self.nodes} "
                f"and {self.datanodes}"
            )
        if not self.nodes + self.datanodes:
            raise ConfigError("a cluster without nodes and DataNodes is none")
        if self.namenodes not in (1, 2):
            raise ConfigError(f"an HDFS has one NameNode or two, not {self.namenodes}")
        if self.slurm is not None:
            releases.release(self.slurm)
            if self.datanodes:
                raise ConfigError("a local HDFS runs with the host's Slurm alone")
        if self.cgroups and not self.systemd:
            raise ConfigError("Slurm has control groups only on nodes that systemd runs")
        if self.cpus_per_node < 1:
            raise ConfigError(f"a node needs at least one CPU, not {self.cpus_per_node}")
        for rate in (self.link_rate, self.datanode_rate):
            if rate is not None and not _RATE.fullmatch(rate):
                raise ConfigError(f"not a link rate: {rate!r}; write for example 800mbit")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ClusterSpec:
        """Make a spec of what `dataclasses.asdict` gave, after a trip through JSON."""
        typed: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
        }
        return cls(**typed)

    @property
    def node_names(self) -> tuple[str, ...]:
        """``n1`` to ``nN``."""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def datanode_names(self) -> tuple[str, ...]:
        """``d1`` to ``dM``."""
        return tuple(f"d{number}" for number in range(1, self.datanodes + 1))

    @property
    def namenode_names(self) -> tuple[str, ...]:
        """The machines of the NameNodes."""
        return (HEAD, HEAD2)[: self.namenodes]

    @property
    def linked_names(self) -> tuple[str, ...]:
        """All machines that have a link to the head: all others."""
        return (*self.node_names, *self.namenode_names[1:], *self.datanode_names)

    @property
    def machine_names(self) -> tuple[str, ...]:
        """The head (login node, slurmctld, munged, NameNode) and all others."""
        return (HEAD, *self.linked_names)

    def rate(self, machine: str) -> str | None:
        """The limit of a machine's link, each way; None for no limit."""
        if machine in self.datanode_names:
            return self.datanode_rate
        return self.link_rate if machine in self.node_names else None

    @property
    def state_dir(self) -> Path:
        """The one folder of the host that a cluster uses; every user has names of their own."""
        # A cluster's name begins with a letter: no name of root's is one of theirs.
        owner = f"{self.owner}-" if self.is_rootless else ""
        return Path("/var/tmp") / f"bootseer-cluster-{owner}{self.name}"

    @property
    def is_rootless(self) -> bool:
        """Whether it lives in a user namespace: for an ordinary user, without Slurm and users."""
        return self.owner != 0

    def uid(self, user: str) -> int:
        """The user's uid, which is the gid of the user's own group too."""
        return FIRST_UID + self.users.index(user)

    def home(self, user: str) -> str:
        """The user's home directory as seen inside the cluster."""
        return f"/home/{user}" if user in self.users else "/root" if user == "root" else "/"


def address(machine: str) -> str:
    """A machine's IPv4 address on the cluster's own, unconnected network."""
    if machine in (HEAD, HEAD2):
        return "10.77.0.1" if machine == HEAD else "10.77.0.2"
    return f"10.77.{1 if machine[0] == 'n' else 2}.{machine[1:]}"

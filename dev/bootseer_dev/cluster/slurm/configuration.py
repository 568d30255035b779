"""The cluster's configuration files: the examples given to administrators, names filled in."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from bootseer.errors import NotFound
from bootseer.slurm.plugin.files import share
from bootseer_dev.cluster.slurm import releases
from bootseer_dev.cluster.spec import HEAD, VERSION_1, ClusterSpec

_CGROUP_LINES = (
    "ProctrackType=proctrack/cgroup",
    "TaskPlugin=task/cgroup",
    "SelectTypeParameters=CR_CPU_Memory",
)
_CGROUP_CONF = f"""CgroupMountpoint={VERSION_1}
ConstrainCores=yes
ConstrainDevices=yes
ConstrainRAMSpace=yes
"""


def example(name: str) -> str:
    """Return an example configuration file's text.

    Raises:
        NotFound: this installation lacks the examples.
    """
    return (share("slurm-conf-examples") / name).read_text()


def fill_in(text: str, values: dict[str, str]) -> str:
    """Replace every ``@WORD@`` by the value of that name.

    Raises:
        NotFound: the text has a word with no value.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise NotFound(f"the configuration has {match[0]}, for which there is no value")
        return values[match[1]]

    lines = (
        line if line.startswith("#") else re.sub(r"@([A-Z]+)@", value, line)
        for line in text.splitlines(keepends=True)
    )
    return "".join(lines)


def slurm_conf(spec: ClusterSpec) -> str:
    """Return the cluster's slurm.conf; the spec's extra lines replace those of the same key."""
    values = {
        "CLUSTER": f"bootseer-{spec.name}",
        "HEAD": HEAD,
        "NODES": f"n[1-{spec.nodes}]" if spec.nodes > 1 else "n1",
        "CPUS": str(spec.cpus_per_node),
        "MEMORY": str(spec.memory_mib_per_node),
    }
    lines = fill_in(example("slurm.conf"), values).splitlines()
    if spec.slurm:
        lines = _replace(lines, releases.release(spec.slurm).lines)
    if spec.cgroups:
        lines = _replace(lines, _CGROUP_LINES)
    return "\n".join([*_replace(lines, spec.slurm_conf_extra), ""])


def cgroup_conf(spec: ClusterSpec) -> str:
    """Return what cgroup.conf has beside the lines of the Slurm release."""
    # Slurm refuses control groups of both versions, which nothing in slurm.conf asks for.
    both = spec.systemd and not os.path.exists("/sys/fs/cgroup/cgroup.procs")
    plugin = "CgroupPlugin=cgroup/v1\n" if both else ""
    return plugin + (_CGROUP_CONF if spec.cgroups else "")


def _replace(lines: Sequence[str], by: Sequence[str]) -> list[str]:
    """Put lines in the place of those of the same key; one without a value only removes."""
    keys = {line.partition("=")[0].lower() for line in by}
    kept = [line for line in lines if line.partition("=")[0].lower() not in keys]
    return [*kept, "", *(line for line in by if not line.endswith("="))]

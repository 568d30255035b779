"""What differs between the releases of Slurm that a local cluster runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bootseer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Slurm, and how its configuration differs from the examples.

    Attributes:
        suite: the Debian suite that has it.
        packages: what its root has beside the packages that all roots have.
        lines: for slurm.conf; they replace those of the same key.
        files: more files of /etc/slurm, by their names.
    """

    suite: str
    packages: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


# From 23.11 on, slurmd wants a cgroup of its own, from systemd, unless it is told not to.
_NO_CGROUP = {"cgroup.conf": "CgroupPlugin=disabled\n"}
# Read if slurm.conf says NamespaceType=namespace/linux, from 25.11 on.
_NAMESPACE = {
    "namespace.yaml": "defaults:\n  auto_base_path: true\n  base_path: /run/job-namespaces\n"
}

RELEASES: Mapping[str, Release] = {
    "22.05": Release("bookworm"),
    "24.11": Release("trixie", files=_NO_CGROUP),
    "sid": Release("sid", ("apptainer",), files=_NO_CGROUP | _NAMESPACE),
}
"""By their names, which are Slurm's own numbers; sid has what Debian has newest."""


def release(name: str) -> Release:
    """Return the release of this name.

    Raises:
        ConfigError: none has it.
    """
    if name not in RELEASES:
        raise ConfigError(f"no Slurm release {name!r} is known here: use {', '.join(RELEASES)}")
    return RELEASES[name]

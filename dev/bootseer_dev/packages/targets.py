"""For which systems there are packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bootseer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Target:
    """A system, and where its packages are built.

    Attributes:
        name: as the command line has it.
        suite: the Debian suite in whose root they are built.
        python: the release of its Python.
        slurm: the release of its Slurm, whose headers the plugin is compiled against.
        suffix: what follows the packages' revision.
        is_rpm: whether the packages are RPMs.
    """

    name: str
    suite: str
    python: str
    slurm: str
    suffix: str = ""
    is_rpm: bool = False

    @property
    def next_slurm(self) -> str:
        """The release after `slurm`, as far as numbers go."""
        year, month = self.slurm.split(".")
        return f"{year}.{int(month) + 1:02d}"


TARGETS: Mapping[str, Target] = {
    "debian12": Target("debian12", "bookworm", "3.11", "22.05", "+deb12"),
    "debian13": Target("debian13", "trixie", "3.13", "24.11", "+deb13"),
    # EPEL 9 has this release of Slurm, and RHEL 9 this Python.
    "rpm": Target("rpm", "bookworm", "3.11", "22.05", is_rpm=True),
}


def target(name: str) -> Target:
    """Return the target of this name.

    Raises:
        ConfigError: none has it.
    """
    if name not in TARGETS:
        raise ConfigError(f"there are no packages for {name!r}: use {', '.join(TARGETS)}")
    return TARGETS[name]

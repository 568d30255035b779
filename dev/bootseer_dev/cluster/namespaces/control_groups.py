"""The control groups of a machine that systemd runs: groups of its own, in a namespace.

Version 2 is systemd's. A machine has version 1 beside it only where Slurm is to use control groups
and the host has them: Slurm refuses version 2 on a host that has both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bootseer.fuse.mountinfo import read_mounts
from bootseer_dev.cluster.namespaces import syscalls
from bootseer_dev.cluster.spec import VERSION_1, ClusterSpec

_NEEDED = ("cpuset", "devices", "freezer", "memory")
"""Controllers of version 1 that Slurm's plugins use."""
_CPUSET = ("cpuset.cpus", "cpuset.mems")
"""What a new group of version 1 does not inherit, and needs before a process enters it."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one machine.

    Attributes:
        folders: on the host, of version 2 first.
        controllers: of version 1, for each hierarchy as mount(2) wants them: ``cpu,cpuacct``.
    """

    folders: tuple[Path, ...]
    controllers: tuple[str, ...]

    def enter(self) -> None:
        """Move this process there, and show it no others."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)

    def mount(self) -> None:
        """Mount them where systemd and Slurm look for them."""
        syscalls.mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
        for together in self.controllers:
            for name in together.split(","):
                folder = Path(VERSION_1, name)
                folder.mkdir(parents=True)
                syscalls.mount("cgroup", str(folder), "cgroup", data=together)


def make(spec: ClusterSpec, machine: str) -> Groups:
    """Make the groups of a machine.

    Raises:
        FileNotFoundError: the host has not mounted what the machine needs.
    """
    version_1 = hierarchies() if spec.cgroups else {}
    if spec.cgroups and not all(map(has_version_1, _NEEDED)):
        raise FileNotFoundError(f"not all controllers are mounted with version 1: {_NEEDED}")
    folders = []
    for root in (_version_2(), *version_1.values()):
        folder = root
        for name in (spec.state_dir.name, machine):
            folder /= name
            folder.mkdir(exist_ok=True)
            for setting in _CPUSET:
                with suppress(FileNotFoundError):
                    (folder / setting).write_text((folder.parent / setting).read_text())
        folders.append(folder)
    return Groups(tuple(folders), tuple(version_1))


def has_version_1(controller: str) -> bool:
    """Tell whether this machine has mounted a controller with version 1."""
    return any(controller in together.split(",") for together in hierarchies())


def remove(state_dir: Path) -> None:
    """Remove the groups of a cluster whose processes have ended; there may be none."""
    for root in roots():
        for folder, _, _ in os.walk(root / state_dir.name, topdown=False):
            os.rmdir(folder)


def roots() -> Iterator[Path]:
    """Yield where the host has mounted control groups, of version 2 first."""
    with suppress(FileNotFoundError):
        yield _version_2()
    yield from hierarchies().values()


def _version_2() -> Path:
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if os.path.exists(f"{root}/cgroup.procs"):
            return Path(root)
    raise FileNotFoundError("control groups of version 2 are not mounted")


def hierarchies() -> Mapping[str, Path]:
    """Return where each hierarchy of version 1 is mounted, by its controllers."""
    # Its last line is of version 2.
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    every = {tuple(line.split(":")[1].split(",")) for line in lines}
    found = {}
    for mount in read_mounts():
        options = mount.options.split(",")
        for together in every if mount.kind == "cgroup" else ():
            if together[0] in options and not together[0].startswith("name="):
                found[",".join(together)] = Path(mount.mountpoint)
    return found

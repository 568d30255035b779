"""The Debian roots in which packages are built, and those in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bootseer_dev.cluster.roots import debian
from bootseer_dev.cluster.roots.prepare import locked
from bootseer_dev.cluster.roots.root import Root, checkout

_BUILDS = (
    "ca-certificates",
    "dpkg-dev",
    "gcc",
    "libc6-dev",
    "libfuse3-dev",
    "liblz4-dev",
    "libslurm-dev",
    "libxxhash-dev",
    "libzstd-dev",
    "make",
    "pkg-config",
    "python3-dev",
    "python3-venv",
    "rpm",
    "zlib1g-dev",
)
_HAS_SLURM = ("ca-certificates", "dbus", "munge", "slurm-wlm", "systemd-sysv", "squashfs-tools")
"""What a machine has before BootSeer comes, and what its jobs make an image with."""


def for_building(suite: str, say: Callable[[str], None]) -> Root:
    """Return the root of a suite in which packages are built, made if it is not there.

    Raises:
        Unavailable: it cannot be made.
    """
    return _prepare(_folder() / "build" / suite, _BUILDS, say)


def for_trying(suite: str, say: Callable[[str], None]) -> Root:
    """Return the root of a suite with systemd and Slurm, made if it is not there.

    Raises:
        Unavailable: it cannot be made.
    """
    return _prepare(_folder() / "try" / suite, _HAS_SLURM, say)


def _folder() -> Path:
    return checkout() / "build/package-roots"


def _prepare(folder: Path, packages: Sequence[str], say: Callable[[str], None]) -> Root:
    root = Root(folder, folder.with_name(f"{folder.name}.none"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not debian.is_made(root, packages):
            debian.make(root, say, packages)
    return root

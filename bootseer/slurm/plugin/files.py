"""The plugin's files: their names, and where they come from and go to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bootseer
from bootseer.errors import NotFound
from bootseer.posix import write_fully
from bootseer.slurm.package import installed
from bootseer.store.local.atomic_file import new_file

PREFIX = Path("/usr/local/libexec/bootseer")
PLUGSTACK_DIR = Path("/etc/slurm/plugstack.conf.d")
PLUGIN = "bootseer.so"
ADVICE = "bootseer-advice.so"
CONF = "bootseer.conf"
SCRIPTS = {
    "bootseer-prolog": "prolog",
    "bootseer-epilog": "epilog",
    "bootseer-importer": "importer",
    "bootseer-squashfuse": "squashfuse",
    "bootseer-enroot": "enroot",
}


def share(name: str) -> Path:
    """Find a folder that is installed as data beside the package, or lies in a checkout.

    Raises:
        NotFound: it is in neither place.
    """
    package = Path(bootseer.__file__).parent
    for folder in (package / "share" / name.replace("-", "_"), package.parent / name):
        if folder.is_dir():
            return folder
    raise NotFound(f"BootSeer's {name}/ is missing beside {package}; install the package again")


def scripts_folder(prefix: Path = PREFIX) -> Path:
    """Return the folder of the entry scripts: the package's, if this BootSeer is from one."""
    return installed.LIBEXEC if installed.package() else prefix


def python_path() -> list[str]:
    """List the folders that hold the package and what it imports, for an isolated interpreter."""
    package = str(Path(bootseer.__file__).parent.parent)
    sites = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    return list(dict.fromkeys([package, *sites]))


def put(path: Path, content: bytes, *, mode: int) -> Path:
    """Write a file, which is root's if this process is; returns its path.

    Raises:
        OSError: it cannot be written.

    Durability: it is replaced as a whole.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with new_file(path, 0o600) as (fd, _):
        write_fully(fd, memoryview(content))
        os.fchmod(fd, mode)
        if os.geteuid() == 0:
            os.fchown(fd, 0, 0)
    return path

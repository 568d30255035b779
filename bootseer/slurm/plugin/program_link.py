"""The link through which users find the program `bootseer` in their PATH."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from bootseer.errors import Conflict, NotFound
from bootseer.slurm.package import installed

LINK = Path("/usr/local/bin/bootseer")


def program() -> Path:
    """Return the path of this installation's program, which is the same after an upgrade."""
    if installed.package():
        return installed.CURRENT / "bin" / LINK.name
    return Path(sys.executable).parent / LINK.name


def is_in_path() -> bool:
    """Tell whether the PATH leads to this installation's program."""
    found = shutil.which(LINK.name)
    return found is not None and os.path.realpath(found) == os.path.realpath(program())


def make(link: Path) -> Path:
    """Make the link, or let that of another installation lead here; returns its path.

    Raises:
        Conflict: something else has this name.
        NotFound: this installation has no program.
        OSError: the link cannot be made.
    """
    target = program()
    if not target.is_file():
        raise NotFound(f"there is no {target} to link to; install the package again")
    if os.path.lexists(link) and not _is_ours(link):
        raise Conflict(
            f"{link} is no link to a program {LINK.name}; move it away, or link elsewhere"
        )
    link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    made = link.with_name(f".{link.name}.{os.getpid()}")
    made.symlink_to(target)
    made.replace(link)
    return link


def remove(link: Path) -> bool:
    """Remove the link if it leads to this installation, or to one that has gone."""
    if not _is_ours(link) or (link.exists() and link.readlink() != program()):
        return False
    link.unlink()
    return True


def _is_ours(link: Path) -> bool:
    return link.is_symlink() and link.readlink().parts[-2:] == ("bin", LINK.name)

"""The folders of the versions that a package has brought, beside each other in /opt/bootseer.

The package manager replaces ``/opt/bootseer/packaged`` as it likes. Nothing runs from there: its
files appear a second time, as hard links, in a folder that has the version's name, where they stay
as long as an agent runs from it. ``/opt/bootseer/current`` is a link to the newest.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bootseer.slurm.package import installed

PACKAGED = "packaged"
_NEW = ".new"


def put_version(top: Path, version: str) -> Path:
    """Have the packaged files in the version's own folder, and `current` lead there.

    What that folder has already, from the same package, is put in order again.

    Args:
        top: the folder of all versions.
        version: of the package.

    Returns:
        The version's folder.
    """
    folder = top / version
    if folder.is_dir():
        _refresh(top / PACKAGED, folder)
    else:
        new = top / (version + _NEW)
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(top / PACKAGED, new, symlinks=True, copy_function=_link)
        new.rename(folder)
    made = top / f"{installed.CURRENT.name}{_NEW}"
    made.unlink(missing_ok=True)
    made.symlink_to(version)
    made.replace(top / installed.CURRENT.name)
    return folder


def older_versions(top: Path, proc: str = "/proc") -> dict[str, bool]:
    """Map the names of all versions but the current one to whether something runs from them.

    Args:
        top: the folder of all versions.
        proc: where the kernel shows processes.
    """
    current = top / installed.CURRENT.name
    newest = current.readlink().name if current.is_symlink() else ""
    names = sorted(path.name for path in top.iterdir() if path.is_dir() and not path.is_symlink())
    lines = list(_command_lines(proc))
    return {
        name: any(os.fsencode(f"{top / name}/") in line for line in lines)
        for name in names
        if name not in (PACKAGED, newest)
    }


def remove_unused(top: Path, proc: str = "/proc") -> list[str]:
    """Remove the versions from which nothing runs, but for the current one; returns those kept.

    Args: as for `older_versions`.
    """
    older = older_versions(top, proc)
    for name, is_used in older.items():
        if not is_used:
            shutil.rmtree(top / name)
    return [name for name, is_used in older.items() if is_used]


def remove_all(top: Path) -> None:
    """Remove all versions, in use or not, and the link to the current one."""
    (top / installed.CURRENT.name).unlink(missing_ok=True)
    for name in older_versions(top):
        shutil.rmtree(top / name)


def _refresh(packaged: Path, folder: Path) -> None:
    """Link the files anew, each at once; those that the package does not have stay."""
    for where, _, files in os.walk(packaged):
        target = folder / Path(where).relative_to(packaged)
        target.mkdir(mode=0o755, exist_ok=True)
        for name in files:
            new = target / f"{name}{_NEW}"
            new.unlink(missing_ok=True)
            _link(os.path.join(where, name), new)
            new.replace(target / name)
            new.unlink(missing_ok=True)  # rename(2) does nothing if both are the same file


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target, follow_symlinks=False)


def _command_lines(proc: str) -> Iterator[bytes]:
    for entry in os.listdir(proc):
        if entry.isdecimal():
            with suppress(OSError), open(f"{proc}/{entry}/cmdline", "rb") as file:
                yield file.read(65536)

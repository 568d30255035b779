"""Have a root ready for a cluster: made once, with this checkout's BootSeer in its environment."""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bootseer_dev.cluster.roots import debian, inside
from bootseer_dev.cluster.roots.root import Root, checkout, find, folder_of_roots
from bootseer_dev.cluster.slurm import releases

_INSTALLED = "installed"
# Setuptools' left-overs in a checkout, which would be taken for sources.
_LEFT_OVERS = ("build/lib*", "build/bdist*", "build/temp*", "dev/build")


def prepare(release: str | None, say: Callable[[str], None] = lambda line: None) -> Root:
    """Return the root of a Slurm release, made if it is not there, with BootSeer installed in it.

    Args:
        release: a name of `releases.RELEASES`; None for the host, where nothing is done.
        say: takes a line for each thing that takes time.

    Raises:
        ConfigError: there is no such release.
        Unavailable: something is missing or failed; the text says what.
    """
    root = find(release)
    if release is None:
        return root
    folder_of_roots().mkdir(parents=True, exist_ok=True)
    with locked(root.folder.with_name(f"{root.folder.name}.lock")):
        wanted = [*debian.packages(), *releases.release(release).packages]
        if not debian.is_made(root, wanted):
            shutil.rmtree(root.environment, ignore_errors=True)
            debian.make(root, say, wanted)
        if not _is_current(root):
            say(f"installing this checkout for the Python of {root.folder}")
            _install(root)
    return root


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file within the block, which one process at a time does."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_current(root: Root) -> bool:
    """Tell whether BootSeer was installed there after it was here, which `make` keeps current."""
    ours, theirs = Path(sys.prefix, _INSTALLED), root.environment / _INSTALLED
    return theirs.exists() and ours.exists() and theirs.stat().st_mtime >= ours.stat().st_mtime


def _install(root: Root) -> None:
    log = root.folder.with_name(f"{root.folder.name}.pip.log")
    log.unlink(missing_ok=True)
    pip = [f"{sys.prefix}/bin/pip", "--quiet", "--disable-pip-version-check", "install"]
    if not (root.environment / "bin/pip").exists():
        shutil.rmtree(root.environment, ignore_errors=True)
        root.environment.mkdir(mode=0o755)
        inside.run(root, ["/usr/bin/python3", "-m", "venv", sys.prefix], log, checkout_too=True)
    for pattern in _LEFT_OVERS:
        for left_over in checkout().glob(pattern):
            shutil.rmtree(left_over)
    inside.run(root, [*pip, ".", "./dev"], log, cwd=str(checkout()), checkout_too=True)
    (root.environment / _INSTALLED).touch()

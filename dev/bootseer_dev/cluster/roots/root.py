"""Where a cluster's machines have their programs from: the host, or a Debian root of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bootseer.errors import Unavailable
from bootseer_dev.cluster.slurm import releases


@dataclass(frozen=True, slots=True)
class Root:
    """A root folder, and a virtual environment with BootSeer for its Python.

    Attributes:
        folder: "/" for the host's.
        environment: a folder of the host, which the machines see at `sys.prefix`: programs that
            are called by their paths on the host are then those of the root's Python.
    """

    folder: Path
    environment: Path

    @property
    def is_hosts(self) -> bool:
        """Whether the machines have the host's own files."""
        return self.folder == Path("/")

    def ids(self, user: str) -> tuple[int, int]:
        """Return the uid and gid of a user of the root's.

        Raises:
            Unavailable: there is no such user.
        """
        for line in (self.folder / "etc/passwd").read_text().splitlines():
            name, _, uid, gid, *_ = line.split(":")
            if name == user:
                return int(uid), int(gid)
        raise Unavailable(f"{self.folder}/etc/passwd has no user {user!r}")


def find(release: str | None) -> Root:
    """Return the root of a Slurm release, made or not; the host's for None.

    Raises:
        ConfigError: there is no such release.
        Unavailable: BootSeer is not installed from a checkout, which has the other roots.
    """
    if release is None:
        return Root(Path("/"), Path(sys.prefix))
    suite = releases.release(release).suite
    folder = folder_of_roots()
    return Root(folder / suite, folder / f"{suite}.venv")


@cache
def checkout() -> Path:
    """Return the checkout from which this BootSeer was installed.

    Raises:
        Unavailable: it was not installed from one, or that is gone.
    """
    said = metadata.distribution("bootseer").read_text("direct_url.json")
    url = urlsplit(json.loads(said)["url"]) if said else None
    folder = Path(unquote(url.path)) if url and url.scheme == "file" else None
    if folder is None or not (folder / "pyproject.toml").exists():
        raise Unavailable(
            "other Slurm releases need a checkout of BootSeer, installed by its `make venv`"
        )
    return folder


def folder_of_roots() -> Path:
    """Return the folder of the checkout that has all roots."""
    return checkout() / "build/roots"

"""Make a Debian root by debootstrap, with the packages that a cluster's machines need."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bootseer.errors import Unavailable
from bootseer_dev.cluster.namespaces.enter import PATH
from bootseer_dev.cluster.roots import inside
from bootseer_dev.cluster.roots.root import Root, checkout

_END_OF_PACKAGES = "# -- on the host alone --"
_MADE_OF = "etc/bootseer-root"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Settings of the host's apt that its mirror or network may need.
_APT_SETTINGS = ("Acquire::http", "Acquire::Check-", "Acquire::Retries", "Acquire::ForceIPv4")
_NO_DOCUMENTATION = "".join(
    f"path-exclude=/usr/share/{folder}/*\n"
    for folder in ("doc", "man", "info", "locale", "lintian")
)
_APT = ("apt-get", "--quiet=2", "--option=APT::Sandbox::User=root")


def packages() -> list[str]:
    """Return the Debian packages of a root, as the checkout's list names them."""
    text = (checkout() / "debian-packages.txt").read_text()
    lines = (
        line.partition("#")[0].strip() for line in text.partition(_END_OF_PACKAGES)[0].split("\n")
    )
    return ["ca-certificates", *filter(None, lines)]


def is_made(root: Root, wanted: Sequence[str]) -> bool:
    """Tell whether the root is there, whole, with the wanted packages."""
    made = root.folder / _MADE_OF
    return made.exists() and made.read_text().split() == list(wanted)


def make(root: Root, say: Callable[[str], None], wanted: Sequence[str]) -> None:
    """Make the root anew; the caller holds its lock.

    Args:
        root: where; its folder has the suite's name.
        say: takes a line for each thing that takes time.
        wanted: its packages.

    Raises:
        Unavailable: a program is missing, or failed; the text has the end of its log.
    """
    suite = root.folder.name
    new = Root(root.folder.with_name(f"{suite}.new"), root.environment.with_name(f"{suite}.none"))
    log = root.folder.with_name(f"{suite}.log")
    for folder in (root.folder, new.folder):
        _remove(folder)
    log.unlink(missing_ok=True)
    say(f"making a root of Debian {suite}, some minutes the first time; log: {log}")
    _bootstrap(suite, new.folder, log)
    _configure(new.folder)
    say(f"installing {len(wanted)} packages and what they need")
    inside.run(new, [*_APT, "update"], log, certificates=False)
    install = ("install", "--no-install-recommends", "--assume-yes")
    inside.run(new, [*_APT, *install, *wanted], log, certificates=False)
    _shrink(new.folder)
    (new.folder / _MADE_OF).write_text("\n".join(wanted) + "\n")
    new.folder.rename(root.folder)
    say(f"{root.folder} has {size_bytes(root.folder) / 1e6:.0f} MB")


def size_bytes(folder: Path) -> int:
    """Return what a folder takes on the disk."""
    said = subprocess.run(["du", "-sxB1", folder], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[0])


def _bootstrap(suite: str, folder: Path, log: Path) -> None:
    if not shutil.which("debootstrap", path=PATH):
        raise Unavailable("a root needs debootstrap; install with: apt-get install debootstrap")
    argv = [*inside.PRIVATELY, "debootstrap", "--variant=minbase", suite, str(folder), _mirror()]
    env = {**os.environ, "PATH": PATH}
    with log.open("a") as output:
        done = subprocess.run(argv, stdout=output, stderr=subprocess.STDOUT, env=env, check=False)
    if done.returncode:
        raise inside.failure("debootstrap", log)


def _mirror() -> str:
    """Return the mirror that the host's own apt uses for Debian."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    wanted = ["Created-By: Packages", "Origin: Debian", f"Codename: {codename}"]
    said = subprocess.run([*argv, *wanted], capture_output=True, text=True, check=True)
    if not said.stdout.strip():
        raise Unavailable("the host's apt has no mirror of Debian; run: apt-get update")
    return said.stdout.split()[0]


def _configure(folder: Path) -> None:
    """Have packages start nothing, have no documentation, and be fetched as the host fetches."""
    policy = folder / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    (folder / "etc/dpkg/dpkg.cfg.d/no-documentation").write_text(_NO_DOCUMENTATION)
    said = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    lines = [line for line in said.stdout.splitlines() if line.startswith(_APT_SETTINGS)]
    (folder / "etc/apt/apt.conf.d/90host").write_text("\n".join(lines) + "\n")
    if _CERTIFICATES.exists():  # of a mirror's, until the root has its own
        own = folder / _CERTIFICATES.relative_to("/")
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_CERTIFICATES, own)


def _shrink(folder: Path) -> None:
    for name in ("var/cache/apt", "var/lib/apt/lists", "var/log/apt"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)

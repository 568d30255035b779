"""What tests need of the machine; where that is missing they are skipped, but in CI none may be."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from bootseer.errors import Unavailable
from bootseer.testing.cluster import ClusterSpec
from bootseer.testing.cluster.daemons import require_programs
from bootseer.testing.cluster.enter import PATH

REQUIRE_ALL = "BOOTSEER_TESTS_REQUIRE_ALL"
"""Variable of the environment: if set, nothing may be missing."""


@cache
def missing() -> dict[str, str]:
    """Say why tests with a marker can't run here, for those markers."""
    looks = (root, fuse, slurm, hdfs, kerberos)
    return {look.__name__: why for look in looks if (why := look())}


def root() -> str:
    return may("--mount") if os.geteuid() == 0 else "not root"


def fuse() -> str:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    return programs("fusermount3")


def slurm() -> str:
    try:
        require_programs(ClusterSpec())
    except Unavailable as error:
        return str(error)
    return ""


def hdfs() -> str:
    # An ordinary user's cluster is in a user namespace.
    user = ("--user", "--map-root-user") if os.geteuid() else ()
    return programs("java", "mvn") or may(*user, "--mount")


def kerberos() -> str:
    return programs("kadmin.local", "kdb5_util", "kinit", "krb5kdc")


def programs(*names: str) -> str:
    lost = [name for name in names if not shutil.which(name, path=PATH)]
    return f"no {', '.join(lost)}; install debian-packages.txt" if lost else ""


def may(*namespaces: str) -> str:
    argv = ["unshare", *namespaces, "true"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr.strip()


def pytest_configure() -> None:
    if os.environ.get(REQUIRE_ALL) and missing():
        raise pytest.UsageError(f"{REQUIRE_ALL} is set, and missing are {report()}")


def pytest_report_header() -> str:
    return f"missing: {report()}" if missing() else "nothing is missing that tests need"


def report() -> str:
    return "; ".join(f"{marker} ({why})" for marker, why in missing().items())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, why in missing().items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{marker}: {why}"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can reach: pytest closes the one that all of its own are in."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)

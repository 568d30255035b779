"""What tests need of the machine; where that is missing they are skipped, but in CI none may be."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from bootseer_dev.cluster import ClusterSpec
from bootseer_dev.cluster.namespaces.enter import PATH
from bootseer_dev.cluster.slurm.daemons import require_programs

from bootseer.errors import Unavailable

REQUIRE_ALL = "BOOTSEER_TESTS_REQUIRE_ALL"
"""Variable of the environment: if set, nothing may be missing."""
LEAVING_S = 5.0
"""For threads that nobody waits for any more."""

# How long something takes is for benches to say: others are at work beside these tests.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slurm",
        metavar="RELEASE",
        help="run the jobs of tests on this release of Slurm, not on the host's: 24.11, sid",
    )
    parser.addoption("--systemd", action="store_true", help="let systemd run the nodes of tests")


@pytest.fixture(scope="session")
def slurm_release(request: pytest.FixtureRequest) -> str | None:
    """For `ClusterSpec.slurm`."""
    release: str | None = request.config.getoption("--slurm")
    return release


@pytest.fixture(scope="session")
def under_systemd(request: pytest.FixtureRequest) -> bool:
    """For `ClusterSpec.systemd`."""
    return bool(request.config.getoption("--systemd"))


def pytest_configure() -> None:
    if os.environ.get(REQUIRE_ALL) and missing():
        raise pytest.UsageError(f"{REQUIRE_ALL} is set, and missing are {report()}")


def pytest_report_header() -> str:
    return f"missing: {report()}" if missing() else "nothing is missing that tests need"


def report() -> str:
    return "; ".join(f"{marker} ({why})" for marker, why in missing().items())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if config.getoption("--slurm") and item.get_closest_marker("hdfs"):
            item.add_marker(pytest.mark.skip(reason="roots of other Slurm releases have no Java"))
        for marker, why in missing().items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{marker}: {why}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip no test on another release of Slurm where nothing may be missing."""
    report = yield
    strict = item.config.getoption("--slurm") and os.environ.get(REQUIRE_ALL)
    if strict and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        why = call.excinfo.value if call.excinfo else "for no reason"
        report.longrepr = f"skipped, while {REQUIRE_ALL} is set: {why}"
    return report


@pytest.fixture(autouse=True)
def nothing_is_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """But for daemons that stay for other tests, and what threads of libraries talk with."""
    markers = ("leaves_open", "slurm", "hdfs", "kerberos")
    before = open_files()
    yield
    if any(request.node.get_closest_marker(marker) for marker in markers):
        return
    until = time.monotonic() + LEAVING_S
    while left := {name for fd, name in open_files().items() if before.get(fd) != name}:
        assert time.monotonic() < until, f"left open: {sorted(left)}"
        time.sleep(0.01)


@pytest.fixture
def threads_left() -> Callable[[], set[threading.Thread]]:
    """Ask for the threads begun since that still are; earlier ones may end at any time."""
    before = set(threading.enumerate())
    return lambda: set(threading.enumerate()) - before


@pytest.fixture(autouse=True)
def the_checkout_is_not_imported() -> Iterator[None]:
    """What is compiled there changes its folders, and make would install them again."""
    compiled = Path(__file__).parents[1] / "bootseer/__pycache__"
    was_there = compiled.exists()
    yield
    assert was_there or not compiled.exists()


def open_files() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of this listing
            name = os.readlink(f"/proc/self/fd/{fd}")
            if not name.startswith(("socket:", "anon_inode:")):
                found[fd] = name
    return found


@pytest.fixture(scope="session", autouse=True)
def others_come_through(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Open the folders above those of the tests, which pytest closes."""
    folder = tmp_path_factory.getbasetemp()
    while not folder.stat().st_mode & stat.S_IXOTH:
        folder.chmod(0o755)
        folder = folder.parent


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that other users can reach."""
    tmp_path.chmod(0o755)
    return tmp_path

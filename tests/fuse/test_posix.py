"""What programs expect of a directory, on a tmpfs and on a writable view's mount."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bootseer_dev.files import memory_view, posix_suite
from bootseer_dev.files.served import served

USER = "nobody"
WHO = pwd.getpwnam(USER)

pytestmark = [pytest.mark.root, pytest.mark.fuse]
Findings = dict[str, str | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # pytest's own folders are closed to users.
    folder = Path(f"/run/bootseer-posix-{tmp_path_factory.getbasetemp().name}")
    folder.mkdir()
    yield folder
    folder.rmdir()


@pytest.fixture(scope="module")
def on_tmpfs(folder: Path) -> Findings:
    options = f"uid={WHO.pw_uid},gid={WHO.pw_gid},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        return posix_suite.run(folder, WHO.pw_uid, WHO.pw_gid)
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="module")
def on_memory_view(folder: Path) -> Findings:
    with served(["-m", memory_view.MODULE], folder, USER):
        return posix_suite.run(folder, WHO.pw_uid, WHO.pw_gid)


@pytest.mark.parametrize("name", posix_suite.EXPECTATIONS)
class TestExpectation:
    def test_is_met_by_a_tmpfs(self, on_tmpfs: Findings, name: str) -> None:
        assert on_tmpfs[name] is None

    def test_is_met_by_the_memory_view(self, on_memory_view: Findings, name: str) -> None:
        assert on_memory_view[name] is None

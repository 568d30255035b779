"""Tests on another release of Slurm: skipped where something is missing, but not in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = """
import pytest

def test_skipped():
    pytest.skip("no such thing here")

@pytest.mark.hdfs
def test_with_hdfs():
    pass

@pytest.mark.xfail(reason="known")
def test_known():
    assert False
"""


@pytest.mark.parametrize("strict", [False, True])
def test_nothing_is_skipped_on_another_release_where_nothing_may_be_missing(tmp_path, strict):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = hdfs: x\n")
    options = ["-p", "conftest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q", "-rs"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("BOOTSEER_")}
    env |= {"PYTHONPATH": str(HERE)} | ({"BOOTSEER_TESTS_REQUIRE_ALL": "1"} if strict else {})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--slurm=24.11", "test_some.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if strict else 0), done.stdout + done.stderr
    assert ("1 failed, 1 xfailed, 1 error" if strict else "2 skipped, 1 xfailed") in done.stdout
    assert "no such thing here" in done.stdout
    assert "have no Java" in done.stdout

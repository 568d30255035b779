"""setup.py: what is missing to build is named with its packages, before anything is compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPILER = """#!/bin/sh
text=$(cat)
case $text in *"<$LACKS>"*) exit 1 ;; esac
"""


@pytest.fixture
def dist_info(tmp_path):
    """Run the step in which pip asks for metadata, with a compiler that lacks a header."""
    compiler = tmp_path / "fake-cc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)

    def run(lacks, *, step="dist_info", **env):
        given = os.environ | {"CC": str(compiler), "LACKS": lacks} | env
        argv = [sys.executable, ROOT / "setup.py", "-q", step, "--output-dir", tmp_path]
        return subprocess.run(
            argv, env=given, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize(
    ("header", "packages"),
    [
        ("Python.h", ("python3-dev", "python3-devel")),
        ("lz4.h", ("liblz4-dev", "lz4-devel")),
        ("xxhash.h", ("libxxhash-dev", "xxhash-devel")),
        ("zlib.h", ("zlib1g-dev", "zlib-devel")),
        ("zstd.h", ("libzstd-dev", "libzstd-devel")),
        ("fuse3/fuse_lowlevel.h", ("libfuse3-dev", "fuse3-devel")),
    ],
)
def test_a_missing_header_is_named_with_its_packages(dist_info, header, packages):
    done = dist_info(header)
    assert done.returncode == 1
    assert f"{header} not found" in done.stderr
    debian, rhel = packages
    assert f"apt install {debian}\n" in done.stderr and f"dnf install {rhel}\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_compiler_is_named(dist_info):
    done = dist_info("", CC="/nonexistent/cc")
    assert (done.returncode, "apt install gcc\n" in done.stderr) == (1, True)


def test_missing_pkg_config_is_named(dist_info, tmp_path):
    done = dist_info("", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "apt install pkg-config" in done.stderr


def test_a_source_archive_needs_no_headers(dist_info):
    done = dist_info("lz4.h", step="--name")
    assert "cannot be built" not in done.stderr

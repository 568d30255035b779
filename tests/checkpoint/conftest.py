import os
from itertools import count
from pathlib import Path

import pytest

from bootseer.testing.fsx_rounds import USER, small_hdfs

BUILD = Path(__file__).parents[2] / "build"
_numbers = count()


@pytest.fixture(scope="session")
def hdfs():
    """A real HDFS, three DataNodes, two copies of a file; who stops a daemon starts it again."""
    with small_hdfs(f"ckpt-{os.getpid()}", BUILD) as started:
        yield started


@pytest.fixture
def folder(hdfs):
    """The path of an empty folder of its user for each test."""
    path = f"/user/{USER}/{next(_numbers)}"
    hdfs.fs("-mkdir", path, user=USER)
    return path


@pytest.fixture
def tree(hdfs, folder):
    """The same as a URL."""
    return hdfs.url + folder

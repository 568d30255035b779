"""What jobs wrote over environments is removed by a process of its own, whatever it is."""

import os
import subprocess
import sys

import pytest

from bootseer._io import lib
from bootseer.agent.broker import cleanup
from bootseer.agent.node import process
from bootseer.agent.node.job import JobFolder
from bootseer.testing.cluster.poll import wait_until

pytestmark = [pytest.mark.root]

LEVELS = 3000


@pytest.fixture
def ground(tmp_path):
    """The folder for all jobs' writes, and the run directory."""
    parent, run_dir = tmp_path / "environments", tmp_path / "run"
    parent.mkdir()
    (run_dir / "jobs").mkdir(parents=True)
    yield parent, run_dir
    folder = os.open(tmp_path, os.O_RDONLY)
    lib.bs_remove(folder, b"environments")  # pytest could not
    os.close(folder)


def make_deep(folder):
    """Make folders in folders, deeper than Python can recurse and paths can name."""
    os.mkdir(folder)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_deep_folders_and_those_of_other_jobs_that_have_ended(ground):
    parent, run_dir = ground
    for name in ("7", "8", ".going-9-1"):
        make_deep(parent / name)
    make_deep(parent / "10")
    (run_dir / "jobs/10").mkdir()
    cleanup.discard(str(parent / "7"), str(run_dir))
    assert not (parent / "7").exists()  # at once, so that the job's number is free again
    wait_until(
        lambda: os.listdir(parent) == ["10"], "all but the living job's is removed", timeout_s=60
    )
    assert os.path.isdir(parent / "10/d/d/d")
    (run_dir / "jobs/10").rmdir()
    cleanup.discard(str(parent / "missing"), str(run_dir))
    wait_until(lambda: os.listdir(parent) == [], "all is removed", timeout_s=60)


def test_one_that_takes_too_long_stops_nothing_else(ground, monkeypatch):
    parent, run_dir = ground
    (parent / "7").mkdir()
    (parent / "8").mkdir()
    code = (
        "import os, signal, sys; from bootseer.agent.broker import cleanup; cleanup.FOLDER_S = 1\n"
        "class Library:\n"
        "    bs_io_idle = staticmethod(cleanup.lib.bs_io_idle)\n"
        "    def bs_remove(self, folder, name, remove=cleanup.lib.bs_remove):\n"
        "        signal.pause() if name == b'7' else remove(folder, name)\n"
        "cleanup.lib = Library(); cleanup.main()"
    )
    subprocess.run([sys.executable, "-I", "-c", code, parent, run_dir], check=True, timeout=30)
    assert os.listdir(parent) == ["7"]


def test_nothing_is_started_where_there_is_nothing(ground, monkeypatch):
    started = []
    monkeypatch.setattr(process, "spawn_detached", lambda *args: started.append(args))
    parent, run_dir = ground
    cleanup.discard(str(parent / "7"), str(run_dir))
    cleanup.discard(str(parent / "missing/7"), str(run_dir))
    assert started == []


def test_a_jobs_folder_is_removed_to_its_depth_and_no_deeper(tmp_path):
    folder = JobFolder(str(tmp_path / "job"))
    for name in ("image", "root/rootfs", "envs/1", "envs/2"):
        os.makedirs(f"{folder.path}/{name}")
    (tmp_path / "job/state.json").write_text("{}")
    (tmp_path / "job/envs/1.shown").write_text("owned\n/x\n")
    (tmp_path / "job/envs/2/users").mkdir()  # as of a mount that could not be taken away
    folder.remove()
    assert [path for path, _, _ in os.walk(folder.path)][1:] == [
        f"{folder.path}/envs",
        f"{folder.path}/envs/2",
        f"{folder.path}/envs/2/users",
    ]
    (tmp_path / "job/envs/2/users").rmdir()
    folder.remove()
    assert not os.path.exists(folder.path)

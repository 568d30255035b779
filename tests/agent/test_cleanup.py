"""What jobs wrote over environments is removed by a process of its own, whatever it is."""

import os
import subprocess
import sys

import pytest
from bootseer_dev.cluster.poll import wait_until

from bootseer._io import lib
from bootseer.agent.node import cleanup, spawn
from bootseer.agent.node.job import JobFolder

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
    cleanup.discard(str(parent / "7"))
    assert not (parent / "7").exists()  # at once, so that the job's number is free again
    cleanup.start(str(parent), str(run_dir))
    wait_until(
        lambda: os.listdir(parent) == ["10"], "all but the living job's is removed", timeout_s=60
    )
    assert os.path.isdir(parent / "10/d/d/d")
    (run_dir / "jobs/10").rmdir()
    cleanup.discard(str(parent / "missing"))
    cleanup.start(str(parent), str(run_dir))
    wait_until(lambda: os.listdir(parent) == [], "all is removed", timeout_s=60)


SLOW = """
import signal, sys
import bootseer._io
from bootseer.agent.node import cleanup

cleanup.FOLDER_S = int(sys.argv.pop(1))
remove = bootseer._io.lib.bs_remove

class Library:
    bs_io_idle = staticmethod(bootseer._io.lib.bs_io_idle)

    def bs_remove(self, folder, name):
        print(name.decode(), flush=True)
        sys.stdin.readline() if name == b"7" else remove(folder, name)

bootseer._io.lib = Library()
cleanup.main()
"""


def start_slow(ground, folder_s):
    """Start a removal in which one folder, 7, takes as long as its input has no line."""
    argv = [sys.executable, "-I", "-c", SLOW, folder_s, *ground]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_one_that_takes_too_long_stops_nothing_else(ground):
    parent, _ = ground
    (parent / "7").mkdir()
    (parent / "8").mkdir()
    with start_slow(ground, "1") as slow:
        assert slow.wait(30) == 0
        assert slow.stdout.read().split() == ["7", "8"]
    assert os.listdir(parent) == ["7"]


def test_one_process_removes_and_checks_again(ground):
    parent, _ = ground
    (parent / "7").mkdir()
    with start_slow(ground, "60") as first:
        assert first.stdout.readline() == "7\n"
        (parent / "8").mkdir()
        with start_slow(ground, "60") as second:
            assert (second.wait(30), second.stdout.read()) == (0, "")
        first.stdin.write("\n")
        first.stdin.close()
        assert first.stdout.read() == "8\n"
    assert os.listdir(parent) == ["7"]


def test_no_process_is_started_without_left_overs(ground, monkeypatch):
    started = []
    monkeypatch.setattr(spawn, "spawn_detached", lambda *args: started.append(args))
    parent, run_dir = ground
    for folder in (parent, parent / "missing"):
        cleanup.discard(str(folder / "7"))
        cleanup.start(str(folder), str(run_dir))
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

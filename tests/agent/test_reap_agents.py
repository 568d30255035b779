"""What dead agents have left is cleared away, and nothing of that reaches the living."""

import os
import subprocess
import sys
import time

import pytest
from bootseer_dev.cluster.poll import wait_until

from bootseer.agent.node import agent_process, reap_agents, registry
from bootseer.agent.node.job import JobFolder

pytestmark = [pytest.mark.root]

LONG_AGO_S = time.time() - 3600


@pytest.fixture
def run_dir(tmp_path):
    return str(tmp_path / "run")


@pytest.fixture
def buried(monkeypatch):
    """Start no agent; the graves that one was to be started for."""
    graves = []

    def start(grave, mode):
        graves.append(grave)
        if "8-" in grave.path:
            raise FileNotFoundError(grave.path)

    monkeypatch.setattr(agent_process, "start", start)
    return graves


def left_by_the_dead(run_dir, job_id):
    folder = JobFolder.of(run_dir, job_id)
    registry.claim(folder)
    folder.write("process.json", {"pid": 2**22 + 1, "start": "1"})
    os.utime(folder.path, (LONG_AGO_S, LONG_AGO_S))
    return folder


def test_a_grave_is_left_alone_until_its_burier_has_had_its_time(run_dir, buried):
    left_by_the_dead(run_dir, 7)
    assert reap_agents.reap_dead(run_dir) == ["7"]
    (grave,) = buried
    assert reap_agents.reap_dead(run_dir) == []
    assert os.path.isdir(grave.path)
    os.utime(grave.path, (LONG_AGO_S, LONG_AGO_S))
    reap_agents.reap_dead(run_dir)
    assert not os.path.exists(grave.path)


def test_an_agent_that_died_before_registering_is_reaped(run_dir, buried):
    folder = JobFolder.of(run_dir, 7)
    registry.claim(folder)
    os.utime(folder.path, (LONG_AGO_S, LONG_AGO_S))
    assert reap_agents.reap_dead(run_dir) == ["7"]
    assert registry.is_starting(buried[0])


def test_a_folder_that_cannot_be_recovered_does_not_block_others(run_dir, buried):
    for job_id in (7, 8, 9):
        left_by_the_dead(run_dir, job_id)
    assert reap_agents.reap_dead(run_dir) == ["7", "8", "9"]
    assert registry.job_folders(run_dir) == []


def test_a_folder_that_cannot_be_moved_does_not_block_others(run_dir, buried, monkeypatch):
    def kill_all(folder):
        if folder.path.endswith("8"):
            raise OSError("no")

    monkeypatch.setattr(agent_process, "kill_all", kill_all)
    folders = [left_by_the_dead(run_dir, job_id) for job_id in (7, 8, 9)]
    assert reap_agents.reap_dead(run_dir) == ["7", "9"]
    assert not reap_agents.reap(folders[0]), "another was first"


def test_an_agent_that_ended_normally_has_not_died(run_dir, buried):
    folder = left_by_the_dead(run_dir, 7)
    folder.write("ended.json", {})
    assert reap_agents.reap_dead(run_dir) == []
    assert os.path.isdir(folder.path), "its epilog is about to remove it"
    os.utime(folder.path, (LONG_AGO_S, LONG_AGO_S))
    assert reap_agents.reap_dead(run_dir) == []
    assert not os.path.exists(folder.path)
    assert buried == []


def test_why_one_was_ended_by_force_is_kept(run_dir, buried):
    assert reap_agents.reap(left_by_the_dead(run_dir, 7), "no answer")
    assert buried[0].read("died.json") == {"why": "no answer"}


@pytest.mark.parametrize("clear", [reap_agents.remove, reap_agents.reap])
def test_files_written_by_a_job_are_removed_after_its_agent(node_settings, buried, clear):
    """By a process that does not end with the agent's; what a living job writes stays."""
    folder = left_by_the_dead(node_settings.run_dir, 7)
    folder.write("broker.json", node_settings._asdict())
    for written in (f"{node_settings.scratch}/{number}/1/upper/x" for number in (7, 70, 8)):
        os.makedirs(written)
    registry.claim(JobFolder.of(node_settings.run_dir, 70))
    clear(folder)
    assert not os.path.exists(folder.path)
    assert "7" not in os.listdir(node_settings.scratch)  # at once: the job may be requeued
    wait_until(lambda: os.listdir(node_settings.scratch) == ["70"], "what others wrote is removed")
    assert os.path.isdir(f"{node_settings.scratch}/70/1/upper/x")


MOUNTS = r"""
import os, subprocess, sys
from bootseer.agent.node import reap_agents
folder = os.fsencode(sys.argv[1])
inside, others = [folder + b"/jobs/7/a b\\\xff\r"], [folder + b"/\xff\n\r", folder + b"/jobs/70"]
for point in (*inside, *others):
    os.makedirs(point)
    subprocess.run([b"mount", b"-t", b"tmpfs", b"none", point], check=True)
reap_agents._unmount_below(os.fsdecode(folder + b"/jobs/7"))
assert [os.path.ismount(point) for point in inside] == [False]
assert [os.path.ismount(point) for point in others] == [True, True]
"""


REMOVED = r"""
import os, subprocess, sys
from bootseer.agent.node import reap_agents
from bootseer.agent.node.job import JobFolder
folder = JobFolder(sys.argv[1] + "/jobs/7")
os.makedirs(folder.image_mount(3))
subprocess.run(["mount", "-t", "tmpfs", "none", folder.image_mount(3)], check=True)
reap_agents.remove(folder)
assert not os.path.exists(folder.path)
"""


@pytest.mark.parametrize("script", [MOUNTS, REMOVED])
def test_mounts_of_a_job_are_found_among_any(tmp_path, script):
    argv = ["unshare", "-m", sys.executable, "-I", "-c", script, str(tmp_path)]
    subprocess.run(argv, check=True)

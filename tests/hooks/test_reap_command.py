"""`bootseer node reap`: whose agents it ends."""

import os
import subprocess
import time

import pytest

from bootseer.agent.node import agent_process, registry
from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import environment, start_time
from bootseer.cli import node
from bootseer.errors import Denied

SQUEUE = """#!/bin/sh
[ "$SLURM_CONF" = /etc/its/slurm.conf ] || exit 1
[ "$(env | grep -c -e ^SQUEUE_ -e ^SLURM_CLUSTERS)" = 0 ] && echo 7
echo 8
"""


def test_squeue_is_asked_for_all_jobs_whatever_the_caller_filters(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text(SQUEUE)
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", "/etc/its/slurm.conf")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv("SLURM_CLUSTERS", "another")
    assert node._jobs_known_to_slurm() == {"7", "8"}


def test_only_root_may_reap(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Denied, match="as root"):
        node.reap_command.callback(as_json=False)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A job whose agent has died, and what serves its image has not."""
    folder = JobFolder.of(str(tmp_path / "run"), 7)
    registry.claim(folder)
    env = environment(folder)
    server = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
    folder.write("process.json", {"pid": server.pid, "start": "1"})  # as the agent of this session
    folder.write("server.json", {"servers": [{"pid": server.pid, "start": start_time(server.pid)}]})
    long_ago_s = time.time() - 3600
    os.utime(folder.path, (long_ago_s, long_ago_s))
    config = node.settings.Config({"node.run_dir": str(tmp_path / "run")})
    monkeypatch.setattr(node.settings, "load", lambda: config)
    monkeypatch.setattr(agent_process, "start", lambda grave, mode: None)
    yield folder, server
    server.kill()
    server.wait()


@pytest.mark.root
@pytest.mark.parametrize("known", [set(), {"7"}])
def test_an_image_server_is_ended_after_its_job(served, monkeypatch, known):
    folder, server = served
    monkeypatch.setattr(node, "_jobs_known_to_slurm", lambda: known)
    node.reap_command.callback(as_json=False)
    assert os.path.exists(folder.path) == bool(known)
    if not known:
        server.wait(20)

"""`bootseer node reap`: whose agents it ends."""

import os

import pytest

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


def test_others_than_root_are_told(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Denied, match="as root"):
        node.reap_command.callback(as_json=False)

"""Checks for what dead jobs have left."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bootseer.agent.node.job import JobFolder
from bootseer.agent.node.spawn import start_time
from bootseer.doctor import leftovers
from bootseer.slurm.package import installed

JOBS = "run/bootseer/jobs"


@pytest.mark.root
@pytest.mark.parametrize("name", [check.name for check in leftovers.CHECKS])
def test_nothing_is_found_where_nothing_is_wrong(site, name):
    assert site.look(name) == []


def job_of(site, pid, start):
    folder = JobFolder(str(site.folder(f"{JOBS}/7")))
    folder.write("process.json", {"pid": pid, "start": start})
    return folder


@pytest.mark.root
def test_a_dead_agent_is_reaped(site, monkeypatch):
    job_of(site, os.getpid(), start_time(os.getpid()))
    assert site.look("leftovers.agents") == []
    job_of(site, os.getpid(), "0")
    found = site.finding("leftovers.agents")
    assert found.what == "folders of jobs without an agent: 7"
    assert found.mend == "bootseer node reap"
    reaped = []
    monkeypatch.setattr(leftovers, "reap_dead", reaped.append)
    assert found.fix is not None
    found.fix()
    assert reaped == [str(site.root / "run/bootseer")]


@pytest.mark.root
def test_an_agent_that_is_starting_or_has_just_ended_is_left(site):
    folder = JobFolder(str(site.folder(f"{JOBS}/7")))
    assert site.look("leftovers.agents") == []
    folder.write("ended.json", {})
    assert site.look("leftovers.agents") == []
    past = time.time() - 60
    os.utime(folder.path, (past, past))
    assert "jobs without an agent: 7" in site.finding("leftovers.agents").what


@pytest.mark.root
def test_a_mount_without_its_job(site):
    point = site.folder(f"{JOBS}/8/image")
    subprocess.run(["mount", "-t", "tmpfs", "x", point], check=True)
    try:
        assert site.look("leftovers.mounts") == []
        os.rename(site.root / JOBS / "8", site.root / "run/bootseer/8")
        assert site.look("leftovers.mounts") == []  # it has another name now
    finally:
        subprocess.run(["umount", site.root / "run/bootseer/8/image"], check=True)
    lost = [type("M", (), {"mountpoint": str(site.root / JOBS / "9/ckpt")})]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftovers, "read_mounts", lambda: lost)
        assert "9/ckpt" in site.finding("leftovers.mounts").what


@pytest.mark.root
def test_an_agent_without_its_folder(site):
    folder = site.folder(f"{JOBS}/9")
    code = "# from bootseer.agent.broker.__main__ import main\nimport sys; sys.stdin.read()"
    argv = [sys.executable, "-ISB", "-c", code, "x", "warm", str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        while not os.readlink(f"/proc/{process.pid}/exe"):
            pass
        assert site.look("leftovers.processes") == []
        folder.rmdir()
        assert f"processes {process.pid}" in site.finding("leftovers.processes").what


@pytest.mark.root
def test_an_older_version_of_a_package_is_removed_when_nothing_runs_from_it(
    site, tmp_path, monkeypatch
):
    top = tmp_path / "opt"
    for name in ("1-1", "1-2", "packaged"):
        (top / name).mkdir(parents=True)
    (top / "current").symlink_to("1-2")
    monkeypatch.setattr(installed, "FOLDER", top)
    assert site.look("leftovers.versions") == []  # not of a package
    package = installed.Package("1-2", "bootseer-plugin-slurm22.05", is_rpm=False)
    monkeypatch.setattr(installed, "package", lambda: package)
    argv = [f"{top}/1-1/bin/python3", "60"]
    with subprocess.Popen(argv, executable="/bin/sleep") as running:
        while not Path(f"/proc/{running.pid}/cmdline").read_bytes():
            pass  # exec(2) has closed the pipe, but not yet set the arguments
        assert site.look("leftovers.versions") == []
        running.kill()
    found = site.finding("leftovers.versions")
    assert f"nothing runs from {top}/1-1" in found.what
    assert found.mend == "apt-get install --reinstall bootseer"
    assert found.fix is not None and found.fix() == "removed older versions"
    assert sorted(path.name for path in top.iterdir()) == ["1-2", "current", "packaged"]

"""Checks of Slurm's configuration and daemons."""

import os
import time

import pytest

from bootseer.doctor import slurm
from bootseer.doctor.check import Role, Severity

CONF = "etc/slurm/slurm.conf"
SLURMD = "slurm.slurmd"


@pytest.fixture
def slurmd(site):
    """A process called slurmd, with its pid file."""
    import subprocess

    program = site.root / "slurmd"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "600"])
    while not (site.root / "run/slurmd.pid").exists():
        with open(f"/proc/{process.pid}/comm") as file:
            if file.read().strip() == "slurmd":
                site.write("run/slurmd.pid", f"{process.pid}\n")
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("name", [c.name for c in slurm.CHECKS if c.name != SLURMD])
def test_nothing_is_found_where_nothing_is_wrong(site, name):
    assert site.look(name) == []


@pytest.mark.parametrize(
    ("check", "old", "new", "what"),
    [
        ("prolog_flags", "PrologFlags=Alloc", "", "PrologFlags does not have Alloc"),
        ("prolog_flags", "=Alloc", "=Serial", "PrologFlags does not have Alloc"),
        ("run_in_job", "=Alloc", "=RunInJob", "PrologFlags has RunInJob"),
        ("batch_start", "BatchStartTimeout=130", "", "BatchStartTimeout=10, but"),
        ("unkillable", "=60", "=40", "UnkillableStepTimeout=40"),
        ("job_containers", "NodeName", "JobContainerType=job_container/tmpfs\nNodeName", "/run"),
        ("hooks", "NodeName", "Prolog=/opt/bootseer-prolog\nNodeName", "which is not there"),
    ],
)
def test_a_line_that_is_wrong(site, check, old, new, what):
    site.edit(CONF, old, new)
    site.write("etc/slurm/job_container.conf", "BasePath=/x\nDirs=/tmp,/run # private\n")
    assert what in site.finding(f"slurm.{check}").what


@pytest.mark.parametrize("flag", ["Contain", "nohold", "X11", "DeferBatch", "Serial,Alloc"])
def test_flags_that_have_alloc_in_them(site, flag):
    site.edit(CONF, "=Alloc", f"={flag}")
    assert site.look("slurm.prolog_flags") == []


def test_the_prolog_flags_of_the_site_are_kept(site):
    site.edit(CONF, "=Alloc", "=Serial")
    assert site.finding("slurm.prolog_flags").mend.endswith("PrologFlags=Alloc,Serial")


def test_the_timeout_of_prolog_and_epilog(site):
    site.edit(CONF, "EpilogTimeout=120", "EpilogTimeout=1")
    prolog, epilog = site.look("slurm.prolog_timeout")
    assert "PrologEpilogTimeout=1, but BootSeer's prolog may take 65 s" in prolog.what
    assert "PrologEpilogTimeout=1, but BootSeer's epilog may take 20 s" in epilog.what
    assert prolog.mend.endswith("PrologEpilogTimeout=120")


def test_the_timeouts_that_are_split_since_25_05(site):
    site.edit(CONF, "PrologEpilogTimeout=120", "PrologTimeout=90\nEpilogTimeout=10")
    found = site.finding("slurm.prolog_timeout")
    assert "EpilogTimeout=10, but BootSeer's epilog may take 20 s" in found.what
    site.edit(CONF, "EpilogTimeout=10", "")
    assert site.look("slurm.prolog_timeout") == []


def test_messages_matter_without_alloc_only(site):
    site.edit(CONF, "MessageTimeout=30", "MessageTimeout=5")
    assert site.look("slurm.message_timeout") == []
    site.edit(CONF, "PrologFlags=Alloc", "")
    assert "MessageTimeout=5" in site.finding("slurm.message_timeout").what


def test_without_slurm_conf(site):
    (site.root / CONF).unlink()
    assert "there is no slurm.conf" in site.finding("slurm.conf").what
    assert "there is no slurm.conf here" in site.unchecked("slurm.prolog_flags")


def test_a_slurm_conf_that_is_closed_to_users(site):
    (site.root / CONF).chmod(0o600)
    found = site.finding("slurm.conf")
    assert "slurm.conf is closed to them" in found.what
    assert found.mend == f"chmod o+rX /{CONF}"


def test_the_role_is_found_without_a_slurm_conf_that_can_be_read(site, monkeypatch):
    def closed(path, locate):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(slurm, "SlurmConf", closed)
    assert slurm.find_role(site.machine(is_root=False)) is Role.SUBMIT
    assert "cannot be read: Permission denied" in site.finding("slurm.conf").what


def test_an_included_file_and_continued_lines_are_read(site):
    site.edit(CONF, "PrologEpilogTimeout=120", "Include more.conf")
    site.write("etc/slurm/more.conf", "prologepilogtimeout = \\\n 2 # s\n")
    assert "PrologEpilogTimeout=2" in site.look("slurm.prolog_timeout")[0].what


def test_a_release_that_nothing_tells(site):
    for name in ("srun", "scontrol"):
        site.program(name, "echo broken >&2; exit 1")
    assert "broken" in site.unchecked("plugin.release")


def test_slurmd_that_does_not_run(site):
    assert "slurmd does not run here" in site.finding(SLURMD).what


def test_slurmd_that_runs(site, slurmd):
    assert site.look(SLURMD) == []


def test_slurmd_that_is_older_than_the_plugin_list(site, slurmd):
    later = time.time() + 60
    os.utime(site.root / "etc/slurm/plugstack.conf.d/bootseer.conf", (later, later))
    found = site.finding(SLURMD)
    assert "bootseer.conf has changed since slurmd started" in found.what
    assert "restart slurmd" in found.mend


@pytest.mark.parametrize("script", ["echo 'Slurmctld(primary) at head is DOWN'", "exec sleep 60"])
def test_a_controller_that_is_away(site, script, monkeypatch):
    monkeypatch.setattr("bootseer.doctor.machine.COMMAND_S", 0.2)
    site.program("scontrol", script)
    if "sleep" in script:
        site.without("scontrol")
    assert site.finding("slurm.controller").severity is Severity.WARNING


def test_a_slurmd_without_a_pid_file_is_known_to_systemd(site, slurmd):
    """Slurm 24.11 of Debian 13 runs `slurmd --systemd`, which writes none."""
    (site.root / "run/slurmd.pid").unlink()
    site.program("systemctl", f"echo {slurmd.pid}")
    assert slurm.slurmd_pid(site.machine()) is None  # systemd does not run there
    site.folder("run/systemd/system")
    assert slurm.slurmd_pid(site.machine()) == slurmd.pid
    site.program("systemctl", "echo 0")
    assert slurm.slurmd_pid(site.machine()) is None


def test_the_role_is_found(site, slurmd, monkeypatch):
    assert slurm.find_role(site.machine()) is Role.COMPUTE
    (site.root / "run/slurmd.pid").unlink()
    assert slurm.find_role(site.machine()) is Role.SUBMIT
    host = os.uname().nodename
    site.edit(CONF, "NodeName=c[1-4]", f"NodeName=c1 NodeHostname={host}")
    assert slurm.find_role(site.machine()) is Role.COMPUTE

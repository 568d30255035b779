"""Checks of services and tools."""

import pytest

from bootseer.doctor.check import Severity
from bootseer.slurm import accounts

ACCOUNTS = {"node__service_user": "daemon", "node__cache_user": "nobody"}


@pytest.mark.parametrize("name", ["systemd", "cgroup", "munge", "peers", "mksquashfs"])
def test_nothing_is_found_where_nothing_is_wrong(site, name):
    assert site.look(f"system.{name}") == []


def test_accounts(site):
    assert site.look("system.accounts", **ACCOUNTS) == []
    found = site.finding("system.accounts", node__service_user="no-such-account")
    assert "there is no account 'no-such-account'" in found.what
    assert found.severity is Severity.ERROR
    same = {**ACCOUNTS, "node__service_user": "nobody"}
    assert "two different accounts" in site.finding("system.accounts", **same).what


def test_accounts_are_made(site, monkeypatch):
    made = []
    monkeypatch.setattr(accounts, "_make", made.append)
    monkeypatch.setattr("bootseer.slurm.accounts.find_account", lambda *_: None)
    found = site.finding("system.accounts", node__service_user="no-such-account")
    assert found.fix is not None
    assert "no-such-account" in found.fix()
    assert "no-such-account" in made


@pytest.mark.parametrize(
    ("version", "what"), [(239, "StandardOutput=append:, OOMPolicy="), (241, "OOMPolicy=")]
)
def test_an_old_systemd(site, version, what):
    site.folder("run/systemd/system")
    assert "no /usr/bin/systemd-run" in site.finding("system.systemd").what
    site.write("usr/bin/systemd-run")
    site.program("systemctl", f"echo 'systemd {version} ({version}.1)'")
    assert f"systemd {version} does not know {what}" in site.finding("system.systemd").what
    site.program("systemctl", "echo 'systemd 252 (252.1)'")
    assert site.look("system.systemd") == []


def test_without_cgroup_version_2(site):
    (site.root / "sys/fs/cgroup/cgroup.procs").unlink()
    assert site.finding("system.cgroup").severity is Severity.WARNING
    site.write("sys/fs/cgroup/unified/cgroup.procs")
    assert site.look("system.cgroup") == []


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("echo 127.0.1.1 STREAM $2", "-ib0 leads to 127.0.1.1 on this node"),
        ("echo ::1 STREAM $2", "-ib0 leads to ::1 on this node"),
        ("exit 2", "-ib0 has no address"),
    ],
)
def test_a_name_that_leads_other_nodes_nowhere(site, answer, what):
    site.program("getent", answer)
    assert what in site.finding("system.peers", peers__host_suffix="-ib0").what
    assert site.look("system.peers", peers__min_nodes=0) == []
    assert site.look("system.peers", peers__min_nodes=5) == [], "the cluster is smaller"


def test_munge_that_has_stopped(site):
    site.program("munge", "echo 'munge: Error: Failed to access socket' >&2; exit 6")
    assert "munge does not answer: munge: Error: Failed" in site.finding("system.munge").what
    site.edit("etc/slurm/slurm.conf", "PrologFlags", "AuthType=auth/slurm\nPrologFlags")
    assert site.look("system.munge") == []


def test_munge_that_hangs_is_ended(site, monkeypatch):
    site.program("munge", "sleep 600")
    from bootseer.doctor.machine import Machine

    run = Machine.run
    monkeypatch.setattr(Machine, "run", lambda *a, **k: run(*a, **{**k, "timeout_s": 0.2}))
    assert "did not end within 0.2 s" in site.finding("system.munge").what


def test_a_credential_that_cannot_be_read(site):
    site.program("unmunge", "echo 'unmunge: Error: Expired credential' >&2; exit 15")
    assert "Expired credential" in site.finding("system.munge").what


@pytest.mark.parametrize("said", ["mksquashfs version 4.4 (2019/08/29)", "what?"])
def test_an_old_mksquashfs(site, said):
    site.program("mksquashfs", f"echo '{said}'")
    assert "older than 4.5" in site.finding("system.mksquashfs").what

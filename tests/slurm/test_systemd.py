"""The agent on a node that systemd runs."""

import os
import signal
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, PLUGIN, Lab

pytestmark = [pytest.mark.root, pytest.mark.slurm]


@pytest.fixture(scope="module")
def systemd_lab(tmp_path_factory):
    spec = ClusterSpec(name=f"systemd-{os.getpid()}", nodes=2, systemd=True)
    with Cluster.up(spec) as cluster:
        site.install(cluster, arguments=PLUGIN, config=CONFIG)
        yield Lab(cluster, tmp_path_factory.mktemp("images"))


@pytest.fixture
def job(systemd_lab):
    job_id, running = systemd_lab.start_in_background("--bootseer=systemd")
    yield job_id
    systemd_lab.end(job_id, running)
    systemd_lab.assert_healthy()
    systemd_lab.assert_clean()
    assert scopes(systemd_lab) == []


def scopes(lab):
    """The scopes of agents on n1, as systemd lists them."""
    listed = lab.cluster.run(
        ["systemctl", "list-units", "--plain", "--no-legend", "bootseer-*.scope"], node="n1"
    )
    return [line.split()[0] for line in listed.stdout.splitlines()]


def group(pid):
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line for line in lines if line.startswith("0::"))


def test_systemd_runs_the_node_and_slurmd(systemd_lab):
    says = systemd_lab.cluster.run(["systemctl", "is-active", "slurmd", "dbus.socket"], node="n1")
    assert says.stdout.split() == ["active", "active"]


def test_devices_of_the_node_are_not_the_hosts(systemd_lab):
    """What root of the machine does to them, all users of the host would feel."""
    before = os.stat("/dev/null")
    systemd_lab.cluster.run(["chmod", "640", "/dev/kmsg"], node="n1")
    assert os.stat("/dev/null").st_mode == before.st_mode


def test_all_processes_of_an_agent_are_in_its_scope(systemd_lab, job):
    [scope] = wait_until(lambda: scopes(systemd_lab), "a scope")
    assert scope.startswith(f"bootseer-warm-{job}-")

    def processes():
        return [p for p in systemd_lab.cluster.processes("n1") if f"jobs/{job}" in p.command]

    wait_until(lambda: len(processes()) > 2, "broker, supervisor and lender")
    for process in processes():
        assert group(process.pid).endswith(f"/bootseer.slice/{scope}"), process


def test_an_agent_survives_a_restart_of_slurmd(systemd_lab, job):
    before = systemd_lab.agent("n1", job)
    systemd_lab.cluster.run(["systemctl", "restart", "slurmd"], node="n1")
    assert systemd_lab.agent("n1", job) == before


def test_a_killed_agents_other_processes_are_killed_by_its_scope(systemd_lab, job):
    """The fixture looks whether the epilog has left anything."""
    os.kill(systemd_lab.agent("n1", job), signal.SIGKILL)
    wait_until(lambda: systemd_lab.agent("n1", job) is None, "the agent has ended")

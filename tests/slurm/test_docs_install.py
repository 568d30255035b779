"""Installation, upgrade and removal by the commands of README.md, install.md and node.md.

A node that systemd runs has an /opt of its own. It has no network: Debian's packages are there, and
what BootSeer needs of Python's comes from the environment of these tests.
"""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.documentation.code_blocks import code_blocks

pytestmark = [pytest.mark.slurm, pytest.mark.root]

ROOT = Path(__file__).parents[2]
OWN = f"tests/slurm/{Path(__file__).name}"
PLUGSTACK = "# the site's own\n"
LIBRARIES = Path(sysconfig.get_path("platlib"))
# pip takes "no" for "no isolation".
OFFLINE = "PYTHONPATH=/shared/building PIP_NO_DEPS=1 PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=no"


def blocks(page: str) -> list[str]:
    found = code_blocks((ROOT / page).read_text())
    return [block.code for block in found if block.own_test == OWN]


@pytest.fixture
def cluster():
    """A cluster whose machines share an /opt, and have a checkout in /shared."""
    spec = ClusterSpec(name=f"install-{os.getpid()}", nodes=1, systemd=True)
    with Cluster.up(spec) as cluster:
        copy_checkout(cluster.shared / "checkout")
        link(cluster.shared / "building")
        (cluster.shared / "opt").mkdir()
        (cluster.etc_slurm / "plugstack.conf").write_text(PLUGSTACK)
        for machine in (None, "n1"):
            cluster.run(["mount", "--bind", "/shared/opt", "/opt"], node=machine)
        yield cluster


def copy_checkout(folder):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in filter(None, listed.stdout.splitlines()):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())


def link(folder):
    """Link what the tests' environment has, but for BootSeer, into a folder."""
    folder.mkdir(exist_ok=True)
    for found in LIBRARIES.iterdir():
        own = found.name.startswith(("bootseer", "pip", "__pycache__"))
        if not own and not (folder / found.name).exists():
            (folder / found.name).symlink_to(found)


def run(cluster, code):
    """Run the lines of a block as an administrator on the node, in the checkout."""
    for line in code.splitlines():
        argv = ["bash", "-euc", f"export {OFFLINE}\n{line}"]
        cluster.run(argv, node="n1", cwd="/shared/checkout", timeout_s=400)
        for site in (cluster.shared / "opt").glob("*/lib/python*/site-packages"):
            link(site)


def job(cluster, *options):
    """Run a job that says its number."""
    argv = ["srun", "-N1", *options, "printenv", "SLURM_JOB_ID"]
    return cluster.run(argv, user="alice", check=False)


def assert_jobs_are_recorded(cluster, key):
    """Check that a job has an agent, and its epilog a version that publishes."""
    cluster.run(["systemctl", "restart", "slurmd"], node="n1")
    wait_until(lambda: job(cluster).returncode == 0, "slurmd runs jobs again", timeout_s=60)
    started = job(cluster, f"--bootseer={key}")
    assert f"bootseer: key {key}: first start" in started.stderr
    report = ["bootseer", "report", started.stdout.strip()]
    wait_until(
        lambda: cluster.run(report, user="alice", check=False).returncode == 0,
        f"a report of job {started.stdout}",
        timeout_s=30,
        explain=lambda: cluster.log("n1").read_text()[-2000:],
    )


def test_from_installation_to_removal(cluster):
    [first] = blocks("README.md")
    again, upgrade, removal = blocks("docs/admin/install.md")
    [reap] = blocks("docs/admin/node.md")
    run(cluster, first)
    assert_jobs_are_recorded(cluster, "first")
    run(cluster, again)
    run(cluster, upgrade)
    assert_jobs_are_recorded(cluster, "upgraded")
    script = cluster.shared / "reap"
    script.write_text(reap.replace("/opt/bootseer/", "/opt/bootseer-0.2/"))
    script.chmod(0o755)
    cluster.run(["/shared/reap"], node="n1")
    run(cluster, removal)
    cluster.run(["systemctl", "restart", "slurmd"], node="n1")
    assert "bootseer" not in cluster.run(["srun", "--help"]).stdout
    assert (cluster.etc_slurm / "plugstack.conf").read_text() == PLUGSTACK
    assert cluster.run(["which", "bootseer"], check=False).returncode == 1
    wait_until(lambda: job(cluster).returncode == 0, "jobs run without it", timeout_s=60)

"""Checkpoint and image are there for the step whatever kind of prolog and container a site has."""

import hashlib
import os

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, PLUGIN, Lab

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.fuse]

URL = "file:///shared/run"
WHOLE = "sha256sum < $BOOTSEER_IMAGE"
TMPFS = "JobContainerType=job_container/tmpfs"
NAMESPACE = "NamespaceType=namespace/linux"


@pytest.fixture
def on_one_cpu():
    """Run what the test starts on one CPU.

    job_container/tmpfs binds a namespace it has just made to a file. Linux refuses that (EINVAL)
    unless the namespace has a higher number than the caller's own, and since 6.18 it numbers them
    for each CPU apart: made on another CPU, every second one is refused and the job held.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(
    params=[
        ("PrologFlags=Alloc",),
        ("PrologFlags=Contain", TMPFS),
        ("PrologFlags=Contain", NAMESPACE),
        # A cluster each: with the longer tests.
        pytest.param(("PrologFlags=",), marks=pytest.mark.faults),
        pytest.param(("PrologFlags=NoHold",), marks=pytest.mark.faults),
        pytest.param(("PrologFlags=Alloc,Serial",), marks=pytest.mark.faults),
        pytest.param(("PrologFlags=Contain",), marks=pytest.mark.faults),
    ],
    ids=" ".join,
)
def lab(request, tmp_path, on_one_cpu, slurm_release):
    if NAMESPACE in request.param and slurm_release != "sid":
        pytest.skip("namespace/linux came with Slurm 25.11")
    name = f"flags-{os.getpid()}"
    spec = ClusterSpec(name=name, nodes=1, slurm_conf_extra=request.param, slurm=slurm_release)
    with Cluster.up(spec) as cluster:
        site.install(cluster, arguments=PLUGIN, config=CONFIG)
        lab = Lab(cluster, tmp_path)
        yield lab
        lab.assert_healthy()
        lab.assert_clean()


def test_the_step_sees_it(lab):
    seen = "/home/alice/seen"
    lab.cluster.run(["mkdir", "/shared/run", seen], user="alice")
    command = f"srun -N1 sh -c 'echo x > $BOOTSEER_CKPT/$SLURM_STEP_ID; ls {seen}'"
    for suffix in ("", f":{seen}"):
        job_id = lab.sbatch(
            f"#!/bin/sh\nset -e\necho y > $BOOTSEER_CKPT/batch\n{command}\n{command}\n",
            "-N1",
            "-e/dev/null",
            f"--bootseer-ckpt={URL}{suffix}",
        )
        assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
        assert not lab.fallbacks(job_id)
    assert lab.cluster.run(["ls", "/shared/run"]).stdout.split() == ["0", "1", "batch"]
    output = lab.cluster.run(["cat", f"/shared/{job_id}.out"]).stdout.split()
    assert output == ["0", "1", "batch", "0", "1", "batch"]
    lab.put_image()
    image = (lab.images / "tiny.sqsh").read_bytes()
    (lab.cluster.shared / "tiny.sqsh").write_bytes(image)
    add = [site.bootseer(), "image", "import", "/shared/tiny.sqsh", "--name", "tiny", "-q"]
    lab.cluster.run(add, user="alice")
    script = f"#!/bin/sh\n{WHOLE}\nsrun -N1 sh -c '{WHOLE}'\n"
    job_id = lab.sbatch(script, "-N1", "-e/dev/null", "--bootseer-image=bootseer://tiny")
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    assert not lab.fallbacks(job_id)
    output = (lab.cluster.shared / f"{job_id}.out").read_text().split()
    assert output == [hashlib.sha256(image).hexdigest(), "-"] * 2

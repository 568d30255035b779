"""What a job's steps and tasks are told: what they have asked for, or nothing."""

import pytest

from bootseer.testing import site
from bootseer.testing.lab import IMAGE

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]


@pytest.fixture
def folders(lab):
    """Two empty folders of alice's that all nodes have."""
    make = "cd /shared; rm -rf run run2; mkdir run run2"
    lab.cluster.run(["sh", "-c", make], user="alice")


def run_script(lab, *lines, options=("-n1",), env=None):
    """Run a batch script on n1; returns the job's id, and what it has printed."""
    script = "\n".join(["#!/bin/sh", *lines, ""])
    argv = ["sbatch", "--parsable", "-N1", "-wn1", "-o", "/shared/%j.out", *options]
    answer = lab.cluster.run(argv, user="alice", env=env, input=script)
    job_id = int(answer.stdout)
    lab.cluster.wait_for_job(job_id)
    return job_id, (lab.cluster.shared / f"{job_id}.out").read_text()


def listed(lab, name):
    return lab.cluster.run(["ls", f"/shared/{name}"]).stdout.split()


def test_a_step_that_asks_for_something_else_gets_nothing_of_the_jobs(lab, folders):
    job_id, said = run_script(
        lab,
        "srun -n1 --bootseer-image=bootseer://other --bootseer-ckpt=file:///shared/run2"
        " --bootseer-env=nosuch"
        " sh -c 'echo image=$BOOTSEER_IMAGE; echo x > ${BOOTSEER_CKPT:?}/lost'",
        "srun -n1 --bootseer-image=/shared/b.sqsh"
        " sh -c 'echo image=$BOOTSEER_IMAGE; echo x > $BOOTSEER_CKPT/kept'",
        options=["-n1", f"--bootseer-image={IMAGE}", "--bootseer-ckpt=file:///shared/run"],
    )
    assert "image=\n" in said and "image=/shared/b.sqsh\n" in said
    assert listed(lab, "run") == ["kept"] and listed(lab, "run2") == []
    assert said.count("give it to the job") == 3
    assert {"checkpoint.mountpoint", "image.mountpoint", "env.mount"} <= lab.fallbacks(job_id)


def test_jobs_that_a_job_submits(lab, folders):
    """One asks as the first did, by variables; one wants none of BootSeer."""
    point = "/home/alice/seen"
    lab.cluster.run(["mkdir", "-p", point], user="alice")
    first = lab.cluster.shared / "first.sh"
    first.write_text(
        "#!/bin/sh\necho x > ${BOOTSEER_CKPT:?}/$SLURM_JOB_ID\n"
        'if [ -z "$NESTED" ]; then export NESTED=1\n'
        "sbatch -N1 -wn1 -n1 -o /shared/%j.out /shared/first.sh\n"
        "sbatch -N1 -wn1 -n1 -o /shared/%j.out --bootseer=off /shared/off.sh; fi\n"
    )
    (lab.cluster.shared / "off.sh").write_text(
        "#!/bin/sh\nenv | grep ^BOOTSEER_ | grep -v WISHED\n"
        f"{site.bootseer()} mark first-step --quiet\n"
    )
    env = {"BOOTSEER": "k", "BOOTSEER_CKPT": f"file:///shared/run:{point}"}
    job_id, said = run_script(lab, ". /shared/first.sh", "sleep 1", env=env, options=["-n1"])
    for other in (job_id + 1, job_id + 2):
        lab.cluster.wait_for_job(other)
    assert listed(lab, "run") == [str(job_id), str(job_id + 1)]
    assert (lab.cluster.shared / f"{job_id + 2}.out").read_text() == ""
    assert "mark.first-step" not in lab.stages(job_id)

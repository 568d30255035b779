"""What a job's steps and tasks are told: what they have asked for, or nothing."""

import json
import re

import pytest
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import IMAGE, RUN_DIR

from bootseer.slurm.plugin.files import share

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


def add_tiny(lab):
    """Put the image into alice's store."""
    (lab.cluster.shared / "tiny.sqsh").write_bytes((lab.images / "tiny.sqsh").read_bytes())
    add = [site.bootseer(), "image", "import", "/shared/tiny.sqsh", "--name", "tiny", "-q"]
    lab.cluster.run(add, user="alice")


def listed(lab, name):
    return lab.cluster.run(["ls", f"/shared/{name}"]).stdout.split()


def test_a_step_that_asks_for_something_else_gets_nothing_of_the_jobs(lab, folders):
    job_id, said = run_script(
        lab,
        "srun -n1 --bootseer-image=bootseer://other --bootseer-ckpt=file:///shared/run2"
        " --bootseer-env=nosuch"
        " sh -c 'echo image=$BOOTSEER_IMAGE; echo x > ${BOOTSEER_CKPT:?}/lost'",
        "touch /shared/b.sqsh; srun -n1 --bootseer-image=/shared/b.sqsh"
        " sh -c 'echo image=$BOOTSEER_IMAGE; echo x > $BOOTSEER_CKPT/kept'",
        options=["-n1", f"--bootseer-image={IMAGE}", "--bootseer-ckpt=file:///shared/run"],
    )
    assert "image=\n" in said and "image=/shared/b.sqsh\n" in said
    assert listed(lab, "run") == ["kept"] and listed(lab, "run2") == []
    assert said.count("give it to the job") == 3
    assert "bootseer: key" not in said, "advice is for the job"
    assert {"checkpoint.mountpoint", "image.mountpoint", "env.mount"} <= lab.fallbacks(job_id)


ADVICE = "bootseer: key "


@pytest.mark.parametrize("export", ["ALL", "NONE"])
def test_the_sruns_of_a_job_that_was_told_say_nothing(lab, export):
    step = "/usr/bin/srun -n1 /bin/sh -c 'echo told=$BOOTSEER_TOLD'"
    options = ["-n1", "--bootseer=train", f"--bootseer-image={IMAGE}", f"--export={export}"]
    _, said = run_script(lab, step, "/usr/bin/srun -n1 --bootseer=train /bin/true", options=options)
    assert "told=" in said and "bootseer: " not in said
    inside = f"{step}; srun -n1 --bootseer true"
    argv = ["salloc", "-n1", "--bootseer=train", f"--bootseer-image={IMAGE}", "sh", "-c", inside]
    answer = lab.cluster.run(argv, user="alice")
    assert answer.stderr.count("bootseer: ") == answer.stderr.count(ADVICE) == 1


def test_a_step_that_asks_first_or_otherwise_gets_its_line_once(lab):
    step = f"srun -n1 --bootseer=step --bootseer-image={IMAGE} true"
    _, said = run_script(lab, step, step, "srun -n1 --bootseer=other true")
    assert said.count(ADVICE) == 1 and f"{ADVICE}step: first start under this key" in said
    assert said.count("--bootseer=other has no effect in a step of a job that began with") == 1


@pytest.mark.parametrize("name", ["bootseer://nosuch", "/shared/nosuch.sqsh", "shut"])
def test_no_task_is_told_of_an_image_that_is_not_there(lab, name):
    shut = lab.cluster.shared / "shut"
    shut.mkdir(0o700, exist_ok=True)
    (shut / "i.sqsh").touch()
    path = "/shared/shut/i.sqsh" if name == "shut" else name
    asked = ("--bootseer=train", f"--bootseer-image={path}", "--bootseer-wait=10")
    job = lab.srun(*asked, command="env", check=False)
    assert not re.search("^BOOTSEER_IMAGE=", job.stdout, re.MULTILINE)
    assert "BOOTSEER_SOCKET=" in job.stdout
    assert "is recorded" not in job.stderr and "nothing can be recorded" in job.stderr
    assert job.stderr.count("BOOTSEER_IMAGE is not set, because the image cannot be read") == 2
    assert lab.fallbacks(job) == {"image.mount" if "://" in path else "image.identify"}


def test_jobs_that_a_job_submits(lab, folders):
    """One asks as the first did, by variables; the other wants none of BootSeer."""
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
    job_id, _ = run_script(lab, ". /shared/first.sh", "sleep 1", env=env)
    for other in (job_id + 1, job_id + 2):
        lab.cluster.wait_for_job(other)
    assert set(listed(lab, "run")) == {str(job_id), str(job_id + 1)}
    assert (lab.cluster.shared / f"{job_id + 2}.out").read_text() == ""
    assert "mark.first-step" not in lab.stages(job_id)


def test_the_own_agent_of_two_steps_at_once_knows_its_jobs_group_and_nodes(lab):
    add_tiny(lab)
    (lab.cluster.shared / "go").unlink(missing_ok=True)
    step = "head -c4 $BOOTSEER_IMAGE; while [ ! -e /shared/go ]; do sleep 0.05; done"
    script = lab.cluster.shared / "group.sh"
    srun = f"srun -N2 --overlap --bootseer-image=bootseer://tiny sh -c '{step}' &"
    script.write_text(f"#!/bin/sh\n{srun}\n{srun}\nwait\n")
    uid, gid = (lab.cluster.spec.uid(user) for user in ("alice", "mallory"))
    identity = [f"--reuid={uid}", f"--regid={gid}", f"--groups={uid},{gid}"]
    submit = ["sbatch", "--parsable", "-N2", "-o", "/shared/%j.out", "/shared/group.sh"]
    argv = ["setpriv", *identity, "env", "HOME=/home/alice", "USER=alice", *submit]
    job_id = int(lab.cluster.run(argv, cwd="/").stdout)
    lab.wait_for_agents(job_id)
    known = [
        json.loads(lab.cluster.run(["cat", f"{RUN_DIR}/jobs/{job_id}/job.json"], node=node).stdout)
        for node in lab.cluster.node_names
    ]
    assert [(job["gid"], job["nodes"], job["node_index"]) for job in known] == [
        (gid, 2, 0),
        (gid, 2, 1),
    ]
    (lab.cluster.shared / "go").touch()
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    assert (lab.cluster.shared / f"{job_id}.out").read_text().count("hsqs") == 4


def test_both_components_of_a_heterogeneous_job_find_their_images(lab):
    add_tiny(lab)
    hook = share("slurm-conf-examples") / "enroot/hooks.d/50-bootseer.sh"
    (lab.cluster.shared / "hook.sh").write_text(hook.read_text())
    get = f"{site.libexec(lab.cluster)}/bootseer-importer get bootseer://tiny"
    say = (
        f"head -c4 $({get}); export ENROOT_ENVIRON=$(mktemp) ENROOT_MOUNTS=$(mktemp);"
        "sh /shared/hook.sh; grep -c $BOOTSEER_SOCKET $ENROOT_ENVIRON"
    )
    component = ["-N1", "-n1", "--bootseer=k", "sh", "-c", say]
    answer = lab.cluster.run(["srun", *component, ":", *component], user="alice")
    assert sorted(answer.stdout.split()) == ["hsqs1", "hsqs1"]

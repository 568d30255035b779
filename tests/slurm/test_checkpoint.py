"""Jobs with a checkpoint folder: mounted before the step, written to, read ahead the next time."""

import os
import signal
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.fuse]

URL = "file:///shared/run"
SHARD = "$BOOTSEER_CKPT/step_{}/rank_$SLURM_PROCID"
SIZE = 9_000_000
PUSHED_SIZE = 300_000_000
"""More than a mount holds for those who have not asked yet: the rest goes to the page cache."""


@pytest.fixture
def tree(lab):
    """An empty folder of alice's, which all nodes have."""
    lab.cluster.run(["sh", "-c", "rm -rf /shared/run; mkdir /shared/run"], user="alice")


def _write(step, size=SIZE):
    path = SHARD.format(step)
    return (
        f"set -e; mkdir -p $(dirname {path}); head -c {size} /dev/urandom > {path}; "
        f"sha256sum < {path}; "
    )


def _read(step):
    return f"set -e; sha256sum < {SHARD.format(step)}; "


def _sums(job):
    return sorted(job.stdout.split("\n"))


def test_a_job_finds_what_another_has_written(lab, tree):
    wrote = lab.srun(f"--bootseer-ckpt={URL}", command=_write(1))
    read = lab.srun(f"--bootseer-ckpt={URL}", command=_read(1))
    assert _sums(read) == _sums(wrote)
    stages = lab.stages(wrote)
    assert stages["checkpoint.mount"]["status"] == "ok"
    assert stages["checkpoint.write"]["bytes"] == SIZE
    assert lab.stages(read)["checkpoint.read"]["bytes"] == SIZE
    assert not lab.fallbacks(wrote) | lab.fallbacks(read)
    head = lab.cluster.run(["head", "-c", "8", "/shared/run/step_1/rank_0"]).stdout
    assert head == "BSSTRIPE"


def test_every_step_sees_it_and_has_its_path(lab, tree):
    job_id = lab.sbatch(
        "#!/bin/sh\nset -e\necho one > $BOOTSEER_CKPT/a\n"
        "srun -N2 --ntasks-per-node=1 sh -c 'echo $BOOTSEER_CKPT; cat $BOOTSEER_CKPT/a'\n",
        "-N2",
        "-e/dev/null",
        f"--bootseer-ckpt={URL}",
    )
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    path = f"/run/bootseer/jobs/{job_id}/ckpt"
    output = lab.cluster.run(["cat", f"/shared/{job_id}.out"]).stdout.split()
    assert sorted(output) == sorted([path, "one"] * 2)


def test_a_variable_asks_for_it_and_the_path_inside_asks_for_nothing(lab, tree):
    env = {"BOOTSEER": "1", "BOOTSEER_CKPT": URL}
    inner = "srun -n1 -N1 --overlap sh -c 'cat $BOOTSEER_CKPT/x'"
    job = lab.srun("-N1", command=f"echo hello > $BOOTSEER_CKPT/x; {inner}", env=env)
    assert job.stdout == "hello\n"
    assert "error" not in job.stderr


@pytest.mark.parametrize("suffix", ["", ":/home/alice/seen"])
def test_read_only(lab, tree, suffix):
    lab.cluster.run(
        ["sh", "-c", "echo kept > /shared/run/x; mkdir -p /home/alice/seen"], user="alice"
    )
    job = lab.srun(
        f"--bootseer-ckpt={URL}{suffix}:ro",
        command="cat $BOOTSEER_CKPT/x; echo lost > $BOOTSEER_CKPT/x || echo refused; ",
    )
    assert sorted(job.stdout.split()) == ["kept", "kept", "refused", "refused"]
    assert "Read-only file system" in job.stderr


# Mount points


def test_a_folder_of_the_users_can_be_the_mount_point(lab, tree):
    lab.cluster.run(["mkdir", "-p", "/home/alice/seen"], user="alice")
    point = "/home/alice/seen"
    job = lab.srun(
        f"--bootseer-ckpt={URL}:{point}",
        command=f"echo $BOOTSEER_CKPT; echo $SLURM_PROCID > {point}/$SLURM_PROCID; pwd",
    )
    assert sorted(job.stdout.split()) == sorted([point, "/home/alice"] * 2)
    assert lab.cluster.run(["ls", "/shared/run"]).stdout.split() == ["0", "1"]
    assert not lab.fallbacks(job)
    for node in lab.cluster.node_names:  # nobody else has seen it there
        assert lab.cluster.run(["ls", point], node=node).stdout == ""


def test_a_job_can_be_submitted_in_its_mount_point(lab, tree):
    point = "/home/alice/here"
    make = f"mkdir -p {point}/sub /shared/run/sub"
    lab.cluster.run(["sh", "-c", make], user="alice")
    job_id = lab.sbatch(
        f"#!/bin/sh\necho x > batch; srun -D {point}/sub sh -c 'echo x > step'\n",
        *("-n1", f"-D{point}", f"--bootseer-ckpt={URL}:{point}"),
    )
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    stored = lab.cluster.run(["sh", "-c", "cd /shared/run; ls . sub"]).stdout.split()
    assert {"batch", "step"} <= set(stored)
    assert lab.cluster.run(["find", point, "-type", "f"]).stdout == ""
    said = (lab.cluster.shared / f"{job_id}.out").read_text()
    assert f"changing to {point} after all" in said
    assert f"changing to {point}/sub after all" in said


@pytest.mark.parametrize(
    "point, why",
    [
        ("/etc", "that folder is not yours"),
        ("/root/secret", "Permission denied"),
        ("/home/alice/missing", "No such file or directory"),
        ("/home/alice/file", "Not a directory"),
        ("/home/alice/link-to-etc", "that folder is not yours"),
        ("/proc/self/fd", ""),
    ],
)
def test_a_mount_point_that_may_not_be_one_costs_nothing_else(lab, tree, point, why):
    lab.cluster.run(["sh", "-c", "cd; touch file; ln -sfn /etc link-to-etc"], user="alice")
    job = lab.srun(
        f"--bootseer-ckpt={URL}:{point}",
        command="echo $BOOTSEER_CKPT; echo x > $BOOTSEER_CKPT/$SLURM_PROCID",
    )
    assert job.stdout.split() == [f"/run/bootseer/jobs/{job.job_id}/ckpt"] * 2
    assert lab.cluster.run(["ls", "/shared/run"]).stdout.split() == ["0", "1"]
    stage = lab.stages(job)["checkpoint.mountpoint"]
    assert (stage["status"], why in stage["detail"]) == ("fallback", True), stage


def test_the_administrator_lists_mount_points_for_all(lab, tree, monkeypatch):
    toml = lab.cluster.etc_bootseer / "bootseer.toml"
    before = toml.read_text()
    for node in lab.cluster.node_names:
        lab.cluster.run(["mkdir", "-p", "/ckpt"], node=node)
    toml.write_text(before + '[checkpoint]\nmountpoints = ["/ckpt"]\n')
    try:
        job = lab.srun(
            f"--bootseer-ckpt={URL}:/ckpt", command="echo $SLURM_PROCID > /ckpt/$SLURM_PROCID"
        )
    finally:
        toml.write_text(before)
    assert lab.cluster.run(["ls", "/shared/run"]).stdout.split() == ["0", "1"]
    assert not lab.fallbacks(job)


def test_a_task_in_another_namespace_sees_it_all_the_same(lab, tree):
    plugin = lab.cluster.state_dir / "hiding.so"
    source = Path(__file__).with_name("hiding.c")
    lab.cluster.run(["gcc", "-shared", "-fPIC", "-o", str(plugin), str(source)])
    # Read before bootseer.conf, so that it comes first.
    line = lab.cluster.etc_slurm / "plugstack.conf.d/a-hiding.conf"
    line.write_text(f"optional {plugin}\n")
    try:
        job = lab.srun(f"--bootseer-ckpt={URL}", command="echo x > $BOOTSEER_CKPT/$SLURM_PROCID")
    finally:
        line.unlink()
    assert "hiding" not in job.stderr
    assert lab.cluster.run(["ls", "/shared/run"]).stdout.split() == ["0", "1"]
    assert not lab.fallbacks(job)


# The warm plan


@pytest.mark.parametrize("size", [SIZE, PUSHED_SIZE])
def test_a_later_step_is_read_ahead_as_the_earlier_was(lab, tree, size):
    lab.srun(f"--bootseer-ckpt={URL}", "-Jtrain", command=_write(900) + _write(1000, size))
    # The job resumes from the newest, and writes another while it runs.
    cold = lab.srun(
        f"--bootseer-ckpt={URL}",
        "-Jtrain",
        command=_read(1000) + f"{site.bootseer()} mark first-step; " + _write(2000, size),
    )
    warm = lab.srun(f"--bootseer-ckpt={URL}", "-Jtrain", "--bootseer-wait=20", command=_read(2000))
    assert set(_sums(warm)) <= set(_sums(cold))
    for node in lab.cluster.node_names:
        stages = lab.stages(warm, node)
        assert stages["checkpoint.prefetch"]["bytes"] == size, stages
        # Once for the read-ahead, and for the job what the kernel has dropped since.
        assert size <= stages["checkpoint.read"]["bytes"] <= 2 * size
        assert stages["checkpoint.record"]["bytes"] == size
        assert stages["checkpoint.prefetch"]["end_s"] < stages["step.start"]["start_s"]
    assert lab.report(warm)["kind"] == "warm"


def test_what_a_start_no_longer_opens_is_forgotten(lab, tree):
    options = [f"--bootseer-ckpt={URL}", "-Jtrain", "--bootseer-wait=20"]
    lab.srun(*options, command=_write(1) + "echo old > $BOOTSEER_CKPT/old; ")
    lab.srun(*options, command=_read(1) + "cat $BOOTSEER_CKPT/old; ")
    second = lab.srun(*options, command=_read(1))
    third = lab.srun(*options, command=_read(1))
    assert lab.stages(second)["checkpoint.prefetch"]["detail"] == "2 files"
    assert lab.stages(third)["checkpoint.prefetch"]["detail"] == "1 files"


# Faults


def test_without_the_folder_the_job_runs_and_is_told(lab):
    job = lab.srun("--bootseer-ckpt=nosuch://x/y", command="echo ${BOOTSEER_CKPT:-none}")
    assert "checkpoint.mount" in lab.fallbacks(job)
    assert "nosuch" in lab.stages(job)["checkpoint.mount"]["detail"]


def test_what_a_killed_process_wrote_is_not_there_and_the_report_says_why(lab, tree):
    job = lab.srun(
        f"--bootseer-ckpt={URL}",
        command="cd $BOOTSEER_CKPT; echo old > $SLURM_PROCID; "
        "sh -c 'exec > $SLURM_PROCID; echo half; kill -9 $$'; cat $SLURM_PROCID",
    )
    assert job.stdout == "old\n" * 2
    stage = lab.stages(job)["checkpoint.lost"]
    assert stage["status"] == "fallback"
    assert "its writer was killed by a signal" in stage["detail"]
    assert lab.cluster.run(["cat", "/shared/run/0", "/shared/run/1"]).stdout == "old\n" * 2


def _servers(lab, node, job_id):
    return [
        process
        for process in lab.cluster.processes(node)
        if process.has_role("serve_checkpoint") and process.uid == lab.cluster.spec.uid("alice")
    ]


@pytest.mark.parametrize("whom", ["agent", "server"])
def test_a_death_gives_errors_and_leaves_nothing(lab, tree, whom):
    job_id, running = lab.start_in_background(
        f"--bootseer-ckpt={URL}",
        command="cd $BOOTSEER_CKPT; touch begun-$SLURM_PROCID; "
        "while ls >/dev/null; do sleep 0.1; done; echo failed",
    )
    listed = lambda: lab.cluster.run(["ls", "/shared/run"]).stdout.split()  # noqa: E731
    wait_until(lambda: listed() == ["begun-0", "begun-1"], "both steps have begun")
    for node in lab.cluster.node_names:
        if whom == "agent":
            os.kill(lab.agent(node, job_id), signal.SIGKILL)
        else:
            (server,) = _servers(lab, node, job_id)
            os.kill(server.pid, signal.SIGKILL)
    output = running.communicate(timeout=30)[0]
    assert output == "failed\n" * 2
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    expected = "agent.died" if whom == "agent" else "checkpoint.mount"
    reports = lab.store() / "runs"  # whoever buries a dead agent publishes what it left
    wait_until(lambda: len([*reports.glob("*/*")]) == 2, "both nodes' events", timeout_s=30)
    assert expected in lab.fallbacks(job_id)


def test_a_job_that_is_cancelled_while_it_writes_leaves_no_mount(lab, tree):
    job_id, running = lab.start_in_background(
        f"--bootseer-ckpt={URL}",
        command="cd $BOOTSEER_CKPT; touch begun-$SLURM_PROCID; cat /dev/zero > $SLURM_PROCID",
    )
    listed = lambda: lab.cluster.run(["ls", "/shared/run"]).stdout.split()  # noqa: E731
    wait_until(lambda: set(listed()) >= {"begun-0", "begun-1"}, "both steps have begun")
    lab.end(job_id, running)
    lab.assert_clean()


def test_a_step_that_brings_its_own_comes_too_late_and_is_told(lab, tree):
    job_id = lab.sbatch(f"#!/bin/sh\nsrun --bootseer-ckpt={URL} true\n", "-N1", "--bootseer=early")
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    stage = lab.stages(job_id)["checkpoint.mountpoint"]
    assert (stage["status"], "give it to the job" in stage["detail"]) == ("fallback", True)
    assert "give it to the job" in lab.cluster.run(["cat", f"/shared/{job_id}.out"]).stdout

"""The main job on the real cluster: recorded once, warm ever after."""

import json
import os

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import IMAGE

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

# These jobs are over before anything could be warmed behind their back, so they wait for it.
BOOTSEER = ("--bootseer=train", f"--bootseer-image={IMAGE}", "--bootseer-wait=10")


def test_the_second_start_finds_its_hot_blocks_on_every_node(lab):
    cold = lab.srun(*BOOTSEER)
    assert "first start under this key" in cold.stderr
    assert lab.report(cold)["kind"] == "cold"
    warm = lab.srun(*BOOTSEER)
    assert "hot set known" in warm.stderr
    report = lab.report(warm)
    assert report["kind"] == "warm"
    recipe_bytes = 30 * 96 * 1024
    for node in ("n1", "n2"):
        stages = lab.stages(warm, node)
        assert stages["image.prefetch"]["bytes"] >= recipe_bytes
        assert stages["image.prefetch"]["start_s"] < stages["step.start"]["start_s"]
        # Read-ahead of the kernel apart, the start found everything there.
        assert stages["image.record"]["bytes"] < recipe_bytes / 4
    assert lab.fallbacks(warm) == set()


def test_the_plan_knows_the_image_when_the_user_does_not_say(lab):
    lab.srun(*BOOTSEER)
    warm = lab.srun("--bootseer=train", "--bootseer-wait=10")
    assert lab.report(warm)["kind"] == "warm"
    assert "image.prefetch" in lab.stages(warm)


def test_without_a_wait_the_job_starts_beside_its_prefetch(lab):
    lab.srun(*BOOTSEER)
    job = lab.srun(*BOOTSEER, "--bootseer-wait=0", command=f"{lab.start()}; sleep 5")
    stages = lab.stages(job)
    assert stages["prolog"]["detail"] == "the agent is running"
    assert stages["image.prefetch"]["bytes"] > 0
    assert lab.fallbacks(job) == set()


def test_the_key_is_the_jobs_name_by_default(lab):
    lab.srun("--bootseer", *BOOTSEER[1:], "-J", "my-training")
    assert lab.report(lab.newest_job())["key"] == "my-training"
    warm = lab.srun("--bootseer", BOOTSEER[2], "-J", "my-training")
    assert lab.report(warm)["kind"] == "warm"


def test_record_warms_nothing_and_records_anew(lab):
    lab.srun(*BOOTSEER)
    again = lab.srun("--bootseer=record", "-J", "train", *BOOTSEER[1:])
    assert lab.report(again)["kind"] == "cold"
    assert "trace.publish" in lab.stages(again)


def test_the_environment_stands_in_for_options(lab):
    env = {"BOOTSEER": "by-env", "BOOTSEER_IMAGE": IMAGE, "BOOTSEER_WAIT": "10"}
    lab.srun(env=env)
    warm = lab.srun(env=env)
    assert (lab.report(warm)["key"], lab.report(warm)["kind"]) == ("by-env", "warm")
    off = lab.srun("--bootseer=off", env=env)
    with pytest.raises(Exception, match="nothing is known"):
        lab.report(off)


def test_a_batch_script_asks_with_one_line(lab):
    script = f"#!/bin/sh\n#SBATCH --bootseer=batch\nsrun {lab.start()}\n"
    for kind in ("cold", "warm"):
        lab.drop_caches()
        job = lab.sbatch(script, "-N2", *BOOTSEER[1:])
        assert lab.cluster.wait_for_job(job) == "COMPLETED"
        lab.assert_clean()
        assert lab.report(job)["kind"] == kind


def test_a_step_that_brings_its_own_reaches_the_agent(lab):
    script = f"#!/bin/sh\nsrun --bootseer=step {' '.join(BOOTSEER[1:])} {lab.start()}\n"
    for kind in ("cold", "warm"):
        lab.drop_caches()
        job = lab.sbatch(script, "-N2")
        assert lab.cluster.wait_for_job(job) == "COMPLETED"
        lab.assert_clean()
        assert lab.report(job)["kind"] == kind


def test_the_image_may_be_named_by_pyxis_option(lab, pyxis_option):
    job = lab.srun("--bootseer=pyxis", BOOTSEER[2], f"--container-image={IMAGE}")
    assert "image.identify" in lab.stages(job)
    # A name for a registry is not a file: nothing is warmed, and nothing is wrong.
    other = lab.srun("--bootseer=other", "--container-image=nvcr.io#nvidia/pytorch:24.05")
    assert "image.identify" not in lab.stages(other)
    assert lab.fallbacks(other) == set()


def test_a_mark_ends_the_window_and_gives_the_time_to_ready(lab):
    mark = f"{lab.start()} && {site.bootseer()} mark first-step"
    lab.drop_caches()
    job = lab.srun(*BOOTSEER, command=mark)
    report = lab.report(job)
    assert 0 < report["ready_s"] < 60
    stages = lab.stages(job)
    assert stages["mark.first-step"]["source"] == "step"
    assert stages["image.record"]["end_s"] <= stages["mark.first-step"]["end_s"] + 0.5


def test_status_shows_progress_to_root_and_to_the_jobs_user_only(lab):
    lab.srun(*BOOTSEER)
    job_id, running = lab.start_in_background(*BOOTSEER)
    try:
        state = wait_until(
            lambda: [
                job
                for job in lab.status("n1")
                for image in job["images"]
                if image["done_bytes"] == image["want_bytes"] > 0
            ],
            "a finished prefetch",
        )[0]
        assert state["job"]["job_id"] == job_id
        assert state["state"] == "ready"
        assert [j["job"]["job_id"] for j in lab.status("n1", user="alice")] == [job_id]
        assert lab.status("n1", user="mallory") == []
        inside = f"/run/bootseer/jobs/{job_id}"
        for path in ("job.json", "state.json", "events.jsonl", "agent.log"):
            answer = lab.cluster.run(
                ["cat", f"{inside}/{path}"], node="n1", user="mallory", check=False
            )
            assert answer.returncode != 0, path
    finally:
        lab.end(job_id, running)


def test_the_report_shows_cold_beside_warm(lab):
    lab.srun(*BOOTSEER)
    warm = lab.srun(*BOOTSEER)
    text = lab.cluster.run([site.bootseer(), "report", str(warm.job_id)], user="alice").stdout
    assert text.index("cold start") < text.index("warm start")
    for expected in ("n1", "n2", "image.prefetch", "image.record", "█"):
        assert expected in text
    both = json.loads(
        lab.cluster.run(
            [site.bootseer(), "report", str(warm.job_id), "--json"], user="alice"
        ).stdout
    )
    assert [r["kind"] for r in both] == ["cold", "warm"]


def test_a_job_without_bootseer_starts_nothing_of_ours(lab):
    # The scripts and the advice library are what starts Python; without them nothing can.
    libexec = site.libexec(lab.cluster)
    hidden = libexec.with_name("libexec-hidden")
    hidden.mkdir()
    names = ("bootseer-prolog", "bootseer-epilog", "bootseer-advice.so")
    for name in names:
        (libexec / name).rename(hidden / name)
        marker = libexec / name
        marker.write_text("#!/bin/sh\ntouch /shared/started\n")
        marker.chmod(0o755)
    before = {node: lab.slurmd_log(node) for node in lab.cluster.node_names}
    try:
        lab.srun(command="true")
        lab.srun(command="srun --overlap true")
        assert not (lab.cluster.shared / "started").exists()
        for node, log in before.items():
            assert "bootseer" not in lab.slurmd_log(node)[len(log) :]
        # And the same job with the option would have: the check can fail.
        lab.srun("--bootseer", command="true")
        assert (lab.cluster.shared / "started").exists()
    finally:
        for name in names:
            os.replace(hidden / name, libexec / name)
        hidden.rmdir()
        (lab.cluster.shared / "started").unlink(missing_ok=True)
        for node in lab.cluster.node_names:
            lab.cluster.run(["rm", "-rf", "/run/bootseer"], node=node)

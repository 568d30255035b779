"""Whatever goes wrong, the job completes, no node is drained, and the report says so."""

import os
import signal
import time

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, IMAGE, PLUGIN, RUN_DIR
from bootseer_dev.material.images import TinyImage

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.faults]

# These jobs are over before anything could be warmed behind their back, so they wait for it.
BOOTSEER = ("--bootseer=train", f"--bootseer-image={IMAGE}", "--bootseer-wait=10")
KEY_ONLY = ("--bootseer=train", "--bootseer-wait=10")


@pytest.fixture
def config(lab):
    """Replace the nodes' settings for one test."""
    path = lab.cluster.etc_bootseer / "bootseer.toml"
    yield path.write_text
    path.write_text(CONFIG)


@pytest.fixture
def slow_share(lab):
    """The share so slow that a prefetch of the tiny image takes some seconds."""
    lab.cluster.unmount_share()
    lab.mount_share(bandwidth=2e6)
    yield
    lab.cluster.unmount_share()
    lab.mount_share()


def test_the_store_is_missing(lab, config):
    config(CONFIG.replace("[store]", '[store]\nurl = "file:///var/lib/no-such-place/{user}"'))
    lost = lab.srun(*BOOTSEER)
    config(CONFIG)
    # Its events waited on the nodes for the user's next job.
    lab.srun(*BOOTSEER)
    assert {"publish", "trace.publish"} <= lab.fallbacks(lost)


def test_the_store_is_read_only(lab):
    lab.srun(*BOOTSEER)
    for node in lab.cluster.node_names:
        home = "/home/alice"
        lab.cluster.run(["mount", "--bind", home, home], node=node)
        lab.cluster.run(["mount", "-o", "remount,bind,ro", home], node=node)
    try:
        warm = lab.srun(*BOOTSEER)
    finally:
        for node in lab.cluster.node_names:
            lab.cluster.run(["umount", "/home/alice"], node=node)
    lab.srun(*BOOTSEER)
    assert lab.report(warm)["kind"] == "warm"
    assert "publish" in lab.fallbacks(warm)


def test_the_image_is_missing(lab):
    job = lab.srun(*BOOTSEER, "--bootseer-image=/mnt/share/none.sqsh", command="true")
    assert "image.identify" in lab.fallbacks(job)
    assert "does not exist" in lab.stages(job)["image.identify"]["detail"]


def test_the_image_may_not_be_read_by_the_user(lab):
    secret = lab.cluster.shared / "secret.sqsh"
    secret.write_bytes(b"x" * 8192)
    secret.chmod(0o600)
    job = lab.srun(*BOOTSEER, "--bootseer-image=/shared/secret.sqsh", command="true")
    secret.unlink()
    assert "may not be read" in lab.stages(job)["image.identify"]["detail"]


def test_the_image_was_replaced_between_runs(lab):
    lab.srun(*BOOTSEER)
    assert lab.report(lab.srun(*BOOTSEER))["kind"] == "warm"
    recipe = lab.put_image(TinyImage(seed=1, files=200))
    changed = lab.srun(*BOOTSEER)
    assert changed.stdout == recipe.output * 2, "the job reads the new image"
    assert lab.report(changed)["kind"] == "cold"
    again = lab.srun(*BOOTSEER)
    assert again.stdout == recipe.output * 2
    assert lab.report(again)["kind"] == "warm"
    # Another content in the same places keeps its name: hints stay good, bytes are the file's.
    recipe = lab.put_image(TinyImage(seed=2, files=200))
    alike = lab.srun(*BOOTSEER)
    assert alike.stdout == recipe.output * 2
    assert lab.report(alike)["kind"] == "warm"


@pytest.mark.parametrize("damage", ["flipped bit", "cut", "empty", "other image's", "huge"])
def test_the_hot_set_is_damaged(lab, damage):
    lab.srun(*BOOTSEER)
    hot_set = next((lab.store() / "hot").iterdir())
    data = bytearray(hot_set.read_bytes())
    if damage == "flipped bit":
        data[len(data) // 2] ^= 1
    elif damage == "cut":
        del data[-40:]
    elif damage == "empty":
        data.clear()
    elif damage == "huge":
        data += bytes(20_000_000)
    else:
        lab.put_image(TinyImage(files=200))
        lab.srun(*BOOTSEER)
        data = next(p for p in (lab.store() / "hot").iterdir() if p != hot_set).read_bytes()
        lab.put_image()
    hot_set.write_bytes(data)
    job = lab.srun(*BOOTSEER)
    assert "hotset.read" in lab.fallbacks(job)
    assert lab.report(job)["kind"] == "cold"
    assert lab.report(lab.srun(*BOOTSEER))["kind"] == "warm", "the epilog has created it again"


@pytest.mark.parametrize("plan", [b"", b"{}", b"\xff\xfe", b"[" * 10**5])
def test_the_warm_plan_is_damaged(lab, plan):
    lab.srun(*BOOTSEER)
    next((lab.store() / "plans").iterdir()).write_bytes(plan)
    job = lab.srun(*KEY_ONLY, command="true")
    assert "plan.read" in lab.fallbacks(job)
    lab.srun(*BOOTSEER)
    assert lab.report(lab.srun(*KEY_ONLY))["kind"] == "warm"


def test_a_plan_of_another_version_is_not_followed_and_stays(lab):
    lab.srun(*BOOTSEER)
    plan = next((lab.store() / "plans").iterdir())
    newer = plan.read_bytes().replace(b'"version": 1', b'"version": 99')
    plan.write_bytes(newer)
    assert "plan.read" in lab.fallbacks(lab.srun(*KEY_ONLY, command="true"))
    job = lab.srun(*BOOTSEER)
    assert lab.fallbacks(job) == {"plan.read", "plan.write"}
    assert lab.report(job)["kind"] == "warm"
    assert plan.read_bytes() == newer


def test_another_users_plan_is_not_followed(lab):
    lab.srun(*BOOTSEER)
    plan = next((lab.store() / "plans").iterdir())
    plan.write_bytes(plan.read_bytes().replace(b'"alice"', b'"mallory"'))
    job = lab.srun(*KEY_ONLY, command="true")
    assert "mallory" in lab.stages(job)["plan.read"]["detail"]


def test_the_nodes_cache_disk_is_full(lab, config):
    config(CONFIG.replace("[store]", '[store]\nurl = "file:///var/lib/no-such-place/{user}"'))
    for node in lab.cluster.node_names:
        lab.cluster.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "full", "/var/cache/bootseer"],
            node=node,
        )
    try:
        lab.srun(*BOOTSEER)
    finally:
        for node in lab.cluster.node_names:
            lab.cluster.run(["umount", "/var/cache/bootseer"], node=node)


def test_the_run_directory_is_full(lab):
    for node in lab.cluster.node_names:
        lab.cluster.run(["mkdir", "-p", RUN_DIR], node=node)
        lab.cluster.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=3", "full", RUN_DIR], node=node
        )
    try:
        lab.srun(*BOOTSEER)
    finally:
        for node in lab.cluster.node_names:
            lab.cluster.run(["umount", RUN_DIR], node=node)


def test_the_agent_is_killed_in_mid_prefetch(lab, slow_share):
    lab.srun(*BOOTSEER)
    lab.drop_caches()
    job_id, running = lab.start_in_background(*BOOTSEER, "--bootseer-wait=30", command=lab.start())
    for node in lab.cluster.node_names:
        lab.wait_for_prefetch(node)
        os.kill(lab.agent(node, job_id), signal.SIGKILL)
    running.communicate(timeout=60)
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    lab.assert_clean()
    lab.srun(*BOOTSEER)  # publishes what waits, should the burial have come too late
    assert "agent.died" in lab.fallbacks(job_id)


def test_the_worker_is_killed_in_mid_prefetch(lab, slow_share):
    lab.srun(*BOOTSEER)
    lab.drop_caches()
    job_id, running = lab.start_in_background(*BOOTSEER, "--bootseer-wait=30", command=lab.start())
    for node in lab.cluster.node_names:
        lab.wait_for_prefetch(node)
        (worker,) = (
            p.pid
            for p in lab.cluster.processes(node)
            if f"jobs/{job_id}" in p.command
            and p.uid == lab.cluster.spec.uid("alice")
            and p.has_role("warm_up")
        )
        os.kill(worker, signal.SIGKILL)
    running.communicate(timeout=60)
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    lab.assert_clean()
    assert "agent.worker" in lab.fallbacks(job_id)


def test_the_wait_is_over_before_the_prefetch(lab, slow_share):
    lab.srun(*BOOTSEER)
    job = lab.srun(*BOOTSEER, "--bootseer-wait=1")
    stages = lab.stages(job)
    assert "prolog" in lab.fallbacks(job)
    assert "not ready within 1 s" in stages["prolog"]["detail"]
    assert stages["step.start"]["start_s"] < stages["image.prefetch"]["end_s"]


def test_the_hooks_deadline_is_over(lab):
    """A prolog that hangs for good is ended by the plugin."""
    script = site.libexec(lab.cluster) / "bootseer-prolog"
    good = script.read_text()
    site.install(lab.cluster, arguments=("max_wait=1",))
    try:
        script.write_text("#!/bin/sh\nsleep 300\n")
        lab.srun(*BOOTSEER, command="true")
    finally:
        script.write_text(good)
        site.install(lab.cluster, arguments=PLUGIN)


def test_the_job_is_cancelled_in_the_prolog(lab, slow_share):
    lab.srun(*BOOTSEER)
    lab.drop_caches()
    job_id, running = lab.start_in_background(*BOOTSEER, "--bootseer-wait=60")
    for node in lab.cluster.node_names:
        lab.wait_for_prefetch(node)
    lab.end(job_id, running)
    assert lab.cluster.job_state(job_id) == "CANCELLED"


def test_the_job_is_requeued(lab):
    job_id = lab.sbatch(
        f"#!/bin/sh\nsrun {lab.start()}\n[ -e /shared/again ] || sleep 60\n",
        "-N2",
        "--requeue",
        *BOOTSEER,
    )
    lab.wait_for_agents(job_id)
    (lab.cluster.shared / "again").touch()
    try:
        lab.cluster.run(["scontrol", "requeue", str(job_id)])
        # slurmd takes a job that starts in the second in which it was killed for the killed one;
        # Slurm would let it wait for two minutes.
        wait_until(lambda: lab.cluster.job_state(job_id) == "PENDING", "the job waiting")
        time.sleep(1.1)
        now = ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]
        wait_until(
            lambda: (
                lab.cluster.run(now, check=False).returncode
                and lab.cluster.job_state(job_id) in ("RUNNING", "COMPLETED")
            ),
            "the job running again",
        )
        assert lab.cluster.wait_for_job(job_id, timeout_s=60) == "COMPLETED"
    finally:
        (lab.cluster.shared / "again").unlink()
    lab.assert_clean()
    assert lab.fallbacks(job_id) == set()


def test_two_jobs_with_one_key_at_once(lab):
    lab.drop_caches()
    options = ("-N2", "-n2", "--ntasks-per-node=1", *BOOTSEER)
    jobs = [lab.sbatch(f"#!/bin/sh\nsrun {lab.start()}\n", *options) for _ in range(2)]
    for job in jobs:
        assert lab.cluster.wait_for_job(job) == "COMPLETED"
    lab.assert_clean()
    for job in jobs:
        assert len(lab.report(job)["nodes"]) == 2
        assert lab.fallbacks(job) == set()
    assert lab.report(lab.srun(*KEY_ONLY))["kind"] == "warm"


def test_slurmd_is_restarted_between_prolog_and_epilog(lab):
    job_id, running = lab.start_in_background(*BOOTSEER, command=f"{lab.start()}; sleep 4")
    lab.cluster.restart_slurmd("n1")
    running.communicate(timeout=60)
    assert lab.cluster.wait_for_job(job_id) == "COMPLETED"
    lab.assert_clean()
    assert {n["node"] for n in lab.report(job_id)["nodes"]} == {"n1", "n2"}


def test_the_settings_are_wrong(lab, config):
    config("[image]\nwindw_s = 3\n")
    lab.srun(*BOOTSEER)
    assert "unknown setting image.windw_s" in lab.slurmd_log("n1")


@pytest.fixture
def hooks_in_slurm_conf(lab):
    """Prolog= and Epilog= as the example of slurm.conf has them, beside the plugin."""
    conf = lab.cluster.etc_slurm / "slurm.conf"
    before = conf.read_text()
    libexec = site.libexec(lab.cluster)
    conf.write_text(f"{before}Prolog={libexec}/bootseer-prolog\nEpilog={libexec}/bootseer-epilog\n")
    lab.cluster.restart_slurmd()
    yield conf
    conf.write_text(before)
    lab.cluster.restart_slurmd()


def test_plugin_and_slurm_conf_both_do_the_work_once(lab, hooks_in_slurm_conf):
    for node in lab.report(lab.srun(*BOOTSEER))["nodes"]:
        stages = [stage["stage"] for stage in node["stages"]]
        assert [stages.count(name) for name in ("prolog", "agent.ready", "epilog")] == [1, 1, 1]


def test_slurm_conf_alone_does_the_work(lab, hooks_in_slurm_conf):
    """The plugin is where jobs are submitted, and on no node."""
    plugstack = lab.cluster.etc_slurm / "plugstack.conf.d/bootseer.conf"
    line = plugstack.read_text()
    login = lab.cluster.state_dir / "login"
    login.mkdir(exist_ok=True)
    (login / "plugstack.conf").write_text(line)
    (login / "slurm.conf").write_text(
        f"{hooks_in_slurm_conf.read_text()}PlugStackConfig={login}/plugstack.conf\n"
    )
    plugstack.write_text("")
    try:
        lab.cluster.restart_slurmd()
        env = {"SLURM_CONF": f"{login}/slurm.conf"}
        jobs = [lab.srun(*options, env=env) for options in (BOOTSEER, KEY_ONLY)]
    finally:
        plugstack.write_text(line)
    assert [lab.report(job)["kind"] for job in jobs] == ["cold", "warm"]
    for job in jobs:
        assert lab.fallbacks(job) == set()
        stages = {stage["stage"] for node in lab.report(job)["nodes"] for stage in node["stages"]}
        assert {"prolog", "epilog", "agent.ready"} <= stages

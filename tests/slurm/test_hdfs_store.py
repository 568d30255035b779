"""Warm plans, hot sets and events in HDFS, of jobs on the real cluster."""

import json
import os
import shutil
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.hdfs import Hdfs, conf, hadoop_jars
from bootseer_dev.hdfs.java import CONF_DIR
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, IMAGE, PLUGIN, Lab

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.hdfs, pytest.mark.fuse]

# These jobs are over before anything could be opened or warmed behind their back: they wait.
BOOTSEER = ("--bootseer=train", f"--bootseer-image={IMAGE}", "--bootseer-wait=10")
AGAIN = ("--bootseer=train", "--bootseer-wait=10")
BUILD = Path(__file__).parents[2] / "build"


@pytest.fixture(scope="module")
def cluster_with_hdfs(tmp_path_factory):
    images = tmp_path_factory.mktemp("images")
    images.chmod(0o755)
    jars = hadoop_jars(BUILD)
    spec = ClusterSpec(name=f"hdfs-jobs-{os.getpid()}", nodes=2, datanodes=2)
    with Cluster.up(spec) as cluster:
        hdfs = Hdfs.start(cluster, jars)
        config = CONFIG.replace("[store]", '[store]\nurl = "hdfs://site/user/{user}/.bootseer"')
        config += f'[hdfs]\nconf_dir = "{put_nameservice(hdfs)}"\n'
        site.install(cluster, arguments=PLUGIN, config=config)
        lab = Lab(cluster, images)
        lab.put_image()
        lab.mount_share()
        yield lab, hdfs
    shutil.rmtree(images)


@pytest.fixture
def lab_with_hdfs(cluster_with_hdfs):
    """The cluster with nothing known of any job."""
    lab, hdfs = cluster_with_hdfs
    lab.forget()
    hdfs.fs("-rm", "-r", "-f", "-skipTrash", "/user/alice/.bootseer")
    return lab, hdfs


def put_nameservice(hdfs):
    """Configure the HDFS as the nameservice "site", and return in which folder of every machine."""
    folder = hdfs.cluster.state_dir / "etc" / "hadoop" / "site"
    folder.mkdir()
    settings = {
        "dfs.nameservices": "site",
        "dfs.ha.namenodes.site": "one",
        "dfs.namenode.rpc-address.site.one": hdfs.url.removeprefix("hdfs://"),
    }
    (folder / "hdfs-site.xml").write_text(conf.xml(settings))
    (folder / "core-site.xml").write_text(conf.xml({"fs.defaultFS": "hdfs://site"}))
    return f"{CONF_DIR}/site"


def test_the_second_start_is_warm(lab_with_hdfs):
    lab, hdfs = lab_with_hdfs
    # The jobs say that they are somebody else; BootSeer does not take it from them on the nodes.
    env = {"HADOOP_USER_NAME": "mallory", "HADOOP_PROXY_USER": "mallory"}
    cold = lab.srun(*BOOTSEER, env=env)
    warm = lab.srun(*AGAIN, env=env)
    assert [lab.report(job)["kind"] for job in (cold, warm)] == ["cold", "warm"]
    # But at the prompt users are who they say, and the store is private.
    assert "user=mallory" in warm.stderr
    assert "hot set known" in lab.srun(*AGAIN).stderr
    for job in (cold, warm):
        assert lab.fallbacks(job) == set()
    shown = {tuple(line.split()[:3:2]) for line in listed(hdfs, "/user/alice/.bootseer")}
    assert shown == {("drwx------", "alice"), ("-rw-------", "alice")}
    lab.assert_clean()


def test_root_acts_as_the_user_whose_store_it_is(lab_with_hdfs):
    """Whatever the environment that root has."""
    lab, _ = lab_with_hdfs
    lab.srun(*BOOTSEER)
    ask = [site.bootseer(), "hot", "ls", "--json", "--user"]
    env = {"HADOOP_USER_NAME": "mallory"}
    found = lab.cluster.run([*ask, "alice"], env=env)
    assert len(json.loads(found.stdout)) == 1
    refused = lab.cluster.run([*ask[:-1]], user="alice", env=env, check=False)
    assert "user=mallory" in refused.stderr


def test_image_and_checkpoint_are_warm_together(lab_with_hdfs):
    lab, hdfs = lab_with_hdfs
    checkpoint = "--bootseer-ckpt=hdfs://site/user/alice/run42"
    options = (*BOOTSEER, checkpoint)
    shard = "$BOOTSEER_CKPT/step_{}/rank_$SLURM_PROCID.pt"
    write = "mkdir -p $(dirname {0}); head -c 20000000 /dev/urandom > {0}; sha256sum < {0}; "
    wrote = lab.srun(checkpoint, "-Jother", command=write.format(shard.format(1000)))
    start = f"set -e; {lab.start()} >/dev/null; sha256sum < {{}}; "
    mark = f"{site.bootseer()} mark first-step; "
    lab.drop_caches()
    cold = lab.srun(
        *options,
        command=start.format(shard.format(1000)) + mark + write.format(shard.format(2000)),
    )
    assert set(wrote.stdout.split()) <= set(cold.stdout.split())
    lab.drop_caches()
    warm = lab.srun(*options, "--bootseer-wait=20", command=start.format(shard.format(2000)) + mark)
    assert set(warm.stdout.split()) <= set(cold.stdout.split())
    assert [lab.report(job)["kind"] for job in (wrote, cold, warm)] == ["cold", "cold", "warm"]
    for node in lab.cluster.node_names:
        stages = lab.stages(warm, node)
        assert stages["checkpoint.prefetch"]["bytes"] == 20_000_000, stages
        # Once, and for the job what the kernel has dropped since, which may be all of it.
        assert 20_000_000 <= stages["checkpoint.read"]["bytes"] <= 40_000_000, stages
        assert stages["image.prefetch"]["bytes"] > 0
    for job in (wrote, cold, warm):
        assert lab.fallbacks(job) == set(), lab.report(job)
    owners = {tuple(line.split()[2:3]) for line in listed(hdfs, "/user/alice/run42")}
    assert owners == {("alice",)}
    lab.assert_clean()


@pytest.mark.faults
def test_a_job_outlives_the_namenode_of_its_checkpoint(lab_with_hdfs):
    lab, hdfs = lab_with_hdfs
    hdfs.stop("head")
    try:
        job = lab.srun(
            "--bootseer-ckpt=hdfs://site/user/alice/run42",
            command="cat $BOOTSEER_CKPT/step_1000/rank_0.pt || echo failed; true",
            timeout_s=120,
        )
        lab.assert_clean()
    finally:
        hdfs.start_namenode()
    assert job.stdout == "failed\n" * 2
    assert "Input/output error" in job.stderr


@pytest.mark.faults
def test_a_namenode_that_is_gone_costs_the_job_nothing_but_the_warmth(lab_with_hdfs):
    lab, hdfs = lab_with_hdfs
    hdfs.stop("head")
    try:
        lost = lab.srun(*BOOTSEER)
        again = lab.srun(*BOOTSEER)
        inside = f"srun -N2 {' '.join(BOOTSEER)} true"
        job_id = lab.sbatch(f"#!/bin/sh\n{inside}\n", "-N2", *BOOTSEER)
        lab.cluster.wait_for_job(job_id, timeout_s=60)
    finally:
        hdfs.start_namenode()
    # It is named once, and asked once: by the submission, and by the first job's agent.
    assert "store hdfs://site/user/alice/.bootseer does not answer" in lost.stderr
    assert "does not answer" not in again.stderr
    assert "bootseer: " not in (lab.cluster.shared / f"{job_id}.out").read_text()
    said = [line for line in lab.slurmd_log("n1").splitlines() if "not published, kept" in line]
    assert len(said) >= 3 and all("is not asked" in line for line in said[-3:])
    lab.forget_outages()
    lab.srun(*BOOTSEER)
    assert "publish" in lab.fallbacks(lost)
    lab.assert_clean()


def listed(hdfs, folder):
    lines = hdfs.fs("-ls", "-R", folder).stdout.splitlines()
    return [line for line in lines if not line.startswith("Found")]

"""Served images in HDFS and in S3, whose servers are killed, stopped and started again."""

import hashlib
import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import HEAD, address
from bootseer_dev.hdfs import Hdfs, HdfsSettings, hadoop_jars
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG, PLUGIN, Lab
from bootseer_dev.jobs.shell import JobShell

from bootseer.units import MIB

pytestmark = [
    pytest.mark.root,
    pytest.mark.slurm,
    pytest.mark.hdfs,
    pytest.mark.fuse,
    pytest.mark.faults,
]

BUILD = Path(__file__).parents[2] / "build"
NAME = "train:v1"
SERVED = ("--bootseer=served", f"--bootseer-image=bootseer://{NAME}")
WHOLE = "sha256sum < $BOOTSEER_IMAGE"
S3_PORT = 5555


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    images = tmp_path_factory.mktemp("images")
    spec = ClusterSpec(name=f"stores-{os.getpid()}", nodes=1, datanodes=2)
    with Cluster.up(spec) as cluster:
        site.install(cluster, arguments=PLUGIN, config=CONFIG)
        lab = Lab(cluster, images)
        lab.put_image()
        yield lab


def settings(lab, url, deadline_s):
    image = f'[image]\nstore_url = "{url}"\nio_deadline_s = {deadline_s}\nfill_mib_per_s = 0\n'
    image += f"shared_bucket = {'true' if url.startswith('s3:') else 'false'}\n"
    path = lab.cluster.etc_bootseer / "bootseer.toml"
    path.write_text(CONFIG.replace("[image]\n", image))


@pytest.fixture
def forgotten(lab):
    """The node has nothing of any image; afterwards it must be healthy and clean."""
    lab.cluster.run(["rm", "-rf", "/var/cache/bootseer/images"], node="n1")
    lab.forget()
    yield
    lab.assert_healthy()
    lab.assert_clean()


def add(lab, env=None):
    """Put the image into the store, as root; returns what jobs print of it."""
    source = lab.images / "tiny.sqsh"
    lab.cluster.run(
        [site.bootseer(), "image", "import", str(source), "--name", NAME, "-q"],
        env=env,
        timeout_s=90,
    )
    return f"{hashlib.sha256(source.read_bytes()).hexdigest()}  -"


@pytest.fixture(scope="module")
def in_hdfs(lab):
    blocks = HdfsSettings(block_bytes=MIB, replication=2)
    hdfs = Hdfs.start(lab.cluster, hadoop_jars(BUILD), blocks)
    settings(lab, f"{hdfs.url}/images", 30)
    expected = add(lab)
    hdfs.fs("-chmod", "-R", "755", "/images")
    return hdfs, expected


def test_a_datanode_is_killed_and_the_namenode_restarted(lab, in_hdfs, forgotten):
    hdfs, expected = in_hdfs
    settings(lab, f"{hdfs.url}/images", 30)
    with JobShell(lab, *SERVED) as job:
        job.run("head -c 1000000 $BOOTSEER_IMAGE | sha256sum")
        hdfs.stop("d1")
        assert job.run(WHOLE, timeout_s=60).text.strip() == expected
    assert lab.fallbacks(job.job_id) == set()
    hdfs.start_datanodes("d1")
    lab.cluster.run(["rm", "-rf", "/var/cache/bootseer/images"], node="n1")
    hdfs.stop(HEAD)
    with JobShell(lab, *SERVED) as job:  # waits for it when it touches the image, not before
        job.start(WHOLE)
        hdfs.start_namenode()
        assert job.answer(timeout_s=60).text.strip() == expected
    assert lab.fallbacks(job.job_id) == set()


def test_a_stopped_namenode_is_an_error_in_time(lab, in_hdfs, forgotten):
    hdfs, expected = in_hdfs
    settings(lab, f"{hdfs.url}/images", 3)
    hdfs.signal(HEAD, "STOP")
    try:
        with JobShell(lab, *SERVED) as job:
            assert job.run("head -c 1 $BOOTSEER_IMAGE", timeout_s=6).code != 0
    finally:
        hdfs.signal(HEAD, "CONT")
    assert "image.mount" in lab.fallbacks(job.job_id)
    with JobShell(lab, *SERVED) as job:
        assert job.run(WHOLE, timeout_s=60).text.strip() == expected


class S3:
    """An S3 server on the cluster's head, with one bucket."""

    def __init__(self, lab):
        self.lab = lab
        self.start()
        connection = http.client.HTTPConnection("s3")
        connection.sock = lab.cluster.connect(address(HEAD), S3_PORT, "n1")
        connection.request("PUT", "/images")
        assert connection.getresponse().status == 200
        connection.close()
        options = f"endpoint_override={address(HEAD)}:{S3_PORT}&scheme=http&region=us-east-1"
        self.url = f"s3://id:geheim@images?{options}"

    def start(self):
        argv = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(S3_PORT)]
        null = subprocess.DEVNULL
        self.starter = self.lab.cluster.popen(argv, stdout=null, stderr=null)
        wait_until(lambda: self.lab.cluster.is_listening(HEAD, S3_PORT), "S3", timeout_s=30)

    def signal(self, number):
        for process in self.lab.cluster.processes(HEAD):
            if "moto.server" in process.command:
                os.kill(process.pid, number)


@pytest.fixture
def in_s3(lab):
    s3 = S3(lab)
    settings(lab, s3.url, 4)
    yield s3, add(lab)
    s3.signal(signal.SIGKILL)
    s3.starter.wait()


def test_s3_hangs_comes_back_and_loses_the_image(lab, in_s3, forgotten):
    s3, expected = in_s3
    with JobShell(lab, *SERVED) as job:
        job.run("head -c 1 $BOOTSEER_IMAGE")
        s3.signal(signal.SIGSTOP)
        read = "dd if=$BOOTSEER_IMAGE of=/dev/null bs=4096 count=1 skip={}"
        answer = job.run(read.format(3000), timeout_s=7)
        assert "Input/output error" in answer.text
        job.start(read.format(4000))
        s3.signal(signal.SIGCONT)
        assert job.answer(timeout_s=15).code == 0
        assert job.run(WHOLE, timeout_s=60).text.strip() == expected
    assert lab.fallbacks(job.job_id) == {"image.read"}
    lab.assert_clean()  # it will publish nothing more
    lab.cluster.run(["rm", "-rf", "/var/cache/bootseer/images"], node="n1")
    lab.forget()  # and with it what would be read ahead
    with JobShell(lab, *SERVED) as job:
        job.run("head -c 1 $BOOTSEER_IMAGE")
        lab.cluster.run([site.bootseer(), "image", "rm", "--now", NAME, "-q"])
        answer = job.run(read.format(3000), timeout_s=4)
        assert "Input/output error" in answer.text
    assert "image.read" in lab.fallbacks(job.job_id)

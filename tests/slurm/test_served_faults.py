"""Whatever goes wrong with a served image, what can be read of it is right and the job goes on."""

import hashlib
import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.files import slow_share
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG
from bootseer_dev.jobs.shell import JobShell
from bootseer_dev.material.images import TinyImage

from bootseer.core.image_manifest import BLOCK_BYTES
from bootseer.units import MIB

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.faults]

NAME = "train:v1"
SERVED = ("--bootseer=served", f"--bootseer-image=bootseer://{NAME}")
CACHE = "/var/cache/bootseer"
STORE = "/mnt/images"
DEADLINE_S = 2
WHOLE = "sha256sum < $BOOTSEER_IMAGE"


@pytest.fixture
def config(lab):
    """Replace the nodes' settings of images, for one test."""
    path = lab.cluster.etc_bootseer / "bootseer.toml"

    def put(image=f"io_deadline_s = {DEADLINE_S}\n", more=""):
        url = f'store_url = "file://{STORE}"\nfill_mib_per_s = 0\n'
        path.write_text(CONFIG.replace("[image]\n", f"[image]\n{url}{image}") + more)

    put()
    yield put
    path.write_text(CONFIG)


class Stored:
    """Images in a store of the site's, which the nodes have behind a mount that can hang."""

    def __init__(self, lab):
        self.lab = lab
        self.folder = lab.cluster.shared / "store"
        self.sources = {}

    def add(self, name, recipe):
        """Put an image into the store, once."""
        if name not in self.sources:
            self.lab.put_image(recipe)
            source = self.lab.images / f"{name.replace(':', '-')}.sqsh"
            (self.lab.images / "tiny.sqsh").rename(source)
            self.lab.put_image()
            self.lab.cluster.run(["mkdir", "-p", "/shared/store"])
            config = self.lab.cluster.etc_bootseer / "bootseer.toml"
            before = config.read_text()
            config.write_text('[image]\nstore_url = "file:///shared/store"\n')
            add = [site.bootseer(), "image", "import", str(source), "--name", name, "--quiet"]
            self.lab.cluster.run(add)
            config.write_text(before)
            self.lab.cluster.run(["chmod", "-R", "a+rX", "/shared/store"])
            self.sources[name] = source

    def part(self, index, name=NAME):
        """A part of an image, on the host."""
        document = json.loads((self.folder / f"image-names/{quoted(name)}.json").read_text())
        return self.folder / f"images/{document['digest']}/part-{index:04}"

    def mount(self, bandwidth=None):
        """Show the store to the nodes."""
        self.lab.cluster.mount_share(
            self.folder, at=STORE, latency_s=0.0005, bandwidth_bytes_per_s=bandwidth
        )

    def unmount(self):
        self.lab.cluster.unmount_share(STORE)

    @contextmanager
    def stopped(self, node="n1"):
        """Its server on a node does not answer."""
        (server,) = (
            p.pid
            for p in self.lab.cluster.processes(node)
            if slow_share.MODULE in p.command and STORE in p.command
        )
        os.kill(server, signal.SIGSTOP)
        try:
            yield lambda: os.kill(server, signal.SIGCONT)
        finally:
            os.kill(server, signal.SIGCONT)


def quoted(name):
    return name.replace(":", "%3A")


@pytest.fixture(scope="module")
def images(cluster_lab):
    return Stored(cluster_lab)


@pytest.fixture
def stored(lab, config, images):
    """An image in the store, on no node."""
    images.add(NAME, TinyImage())
    images.mount()
    forget_blocks(lab)
    yield images
    lab.assert_healthy()
    lab.assert_clean()
    images.unmount()
    forget_blocks(lab)


def forget_blocks(lab):
    for node in lab.cluster.node_names:
        lab.cluster.run(["rm", "-rf", f"{CACHE}/images"], node=node)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def reads_whole(job, right, timeout_s=30):
    """Whether a job reads an image as it was given to the store."""
    answer = job.run(WHOLE, timeout_s)
    return answer.code == 0 and answer.text.split()[0] == sha256(right)


def read_at(offset, size_bytes=4096, flags=""):
    return f"dd if=$BOOTSEER_IMAGE bs=4096 skip={offset // 4096} count={size_bytes // 4096} {flags}"


def fallbacks(lab, job):
    """The stages of n1 that fell back, with their details."""
    stages = lab.report(job)["nodes"][0]["stages"]
    return {s["stage"]: s["detail"] for s in stages if s["status"] == "fallback"}


def right(stored, name=NAME):
    return stored.sources[name].read_bytes()


FLIP = "for at in 5 700000 20000000; do printf X | dd of=data bs=1 seek=$at conv=notrunc; done"
DAMAGES = (
    f"{FLIP}; head -c 1000 /dev/urandom | dd of=map bs=1 seek=16 conv=notrunc",
    "truncate -s 1000001 data",
    "truncate -s 77 map; truncate -s 99 manifest; rm claims",
    f"rm -r {CACHE}/*",
)


def test_what_root_does_to_the_cache_while_it_is_in_use(lab, stored):
    """The job that reads the image does not see it, nor does one that starts after that."""
    with JobShell(lab, *SERVED) as job:
        assert reads_whole(job, right(stored))
        for damage in DAMAGES:
            lab.cluster.run(["sh", "-c", f"cd {CACHE}/images/*/ && {{ {damage}; }}"], node="n1")
            lab.drop_caches()
            assert reads_whole(job, right(stored)), damage
            lab.drop_caches()
            with JobShell(lab, *SERVED) as later:
                assert reads_whole(later, right(stored)), damage


def test_a_damaged_block_of_the_store(lab, stored):
    at = 100 * BLOCK_BYTES
    part = stored.part(0)
    good = part.read_bytes()
    damaged = bytearray(good)
    damaged[at + 100] ^= 1
    part.write_bytes(damaged)
    try:
        with JobShell(lab, *SERVED) as job:
            answer = job.run(read_at(at + 8192), timeout_s=2)
            assert answer.code != 0 and "Input/output error" in answer.text
            copy = "dd if=$BOOTSEER_IMAGE of=/shared/copy bs=64K conv=noerror,sync"
            assert job.run(copy).text.count("Input/output error") == 1
    finally:
        part.write_bytes(good)
    expected = right(stored)
    copy = (lab.cluster.shared / "copy").read_bytes()
    assert copy[:at] == expected[:at]
    assert copy[at : at + BLOCK_BYTES] == bytes(BLOCK_BYTES)
    assert copy[at + BLOCK_BYTES : len(expected)] == expected[at + BLOCK_BYTES :]
    told = fallbacks(lab, job.job_id)["image.read"]
    assert f"part-0000' in file://{STORE} is damaged at byte {at}" in told


def is_waiting(lab, program, node="n1"):
    """Whether a process of alice's waits, and cannot be woken by just anything."""
    for process in lab.cluster.processes(node):
        if process.command.startswith(program) and process.uid != 0:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return "\nState:\tD" in status
    return False


def test_the_store_hangs_and_comes_back(lab, stored):
    with JobShell(lab, *SERVED) as job:
        job.run(read_at(0))
        with stored.stopped() as go_on:
            answer = job.run(read_at(8 * MIB), timeout_s=DEADLINE_S + 2)
            assert "Input/output error" in answer.text
            # Again, and of those that the kernel does not read ahead.
            answer = job.run(read_at(10 * MIB, flags="iflag=direct"), timeout_s=DEADLINE_S + 2)
            assert "Input/output error" in answer.text
            job.start("dd if=$BOOTSEER_IMAGE bs=1M skip=12 count=2 2>/dev/null | sha256sum")
            wait_until(lambda: is_waiting(lab, "dd "), "a reader waiting")
            go_on()
            answer = job.answer(timeout_s=DEADLINE_S)
        assert answer.text.split()[0] == sha256(right(stored)[12 * MIB : 14 * MIB])
        assert reads_whole(job, right(stored))
    assert f"no answer from file://{STORE}" in fallbacks(lab, job.job_id)["image.read"]


@pytest.mark.parametrize("flags", ["", "iflag=direct"])
def test_a_job_is_ended_while_the_store_hangs(lab, stored, flags):
    with stored.stopped(), JobShell(lab, *SERVED) as job:
        job.start(f"dd if=$BOOTSEER_IMAGE of=/dev/null bs=4096 {flags}")
        wait_until(lambda: is_waiting(lab, "dd "), "a reader waiting")
        assert job.cancel(timeout_s=DEADLINE_S + 10) == "CANCELLED"
        idle(lab)


def idle(lab, timeout_s=15):
    """Wait until the last epilog on n1 has ended."""
    wait_until(lambda: lab.cluster.node_states()["n1"] == "idle", "n1 idle", timeout_s=timeout_s)


def test_the_store_hangs_from_the_start(lab, stored):
    with stored.stopped():
        with JobShell(lab, *SERVED) as job:
            answer = job.run(read_at(0), timeout_s=DEADLINE_S + 2)
            assert answer.code != 0
        told = fallbacks(lab, job.job_id)["image.mount"]
        assert f"no answer from file://{STORE} within {DEADLINE_S} s" in told
        with JobShell(lab, *SERVED) as job:
            job.run("true")
        assert "before it could be read" in fallbacks(lab, job.job_id)["image.mount"]
        idle(lab)
    with JobShell(lab, *SERVED) as job:
        assert reads_whole(job, right(stored))


def test_the_job_is_cancelled_in_the_prolog(lab, stored, config):
    """Slurm lets the prolog go on, which holds the job for as long as it asked to be held."""
    config(image="io_deadline_s = 60\n")
    before = lab.newest_job()
    with stored.stopped():
        argv = ["srun", "-n1", "-wn1", *SERVED, "--bootseer-wait=5", "true"]
        running = lab.cluster.popen(argv, user="alice")
        job = wait_until(lambda: max(0, lab.newest_job() - before), "a new job") + before
        lab.wait_for_agents(job, "n1")
        lab.end(job, running)
        assert lab.cluster.job_state(job) == "CANCELLED"
        idle(lab)


@pytest.fixture
def slow(stored):
    """The same image by a line that takes some seconds for it."""
    stored.unmount()
    stored.mount(bandwidth=12e6)


@pytest.mark.parametrize("victims", [("agent",), ("server",), ("agent", "server")], ids="+".join)
def test_who_serves_is_killed_in_mid_fetch(lab, stored, slow, victims):
    with JobShell(lab, *SERVED) as job:
        pids = {"server": job.server(), "agent": lab.agent("n1", job.job_id)}
        job.start(WHOLE)
        wait_until(lambda: is_waiting(lab, "sha256sum"), "a reader waiting")
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        answer = job.answer()
        if "server" in victims:
            assert answer.code != 0
        else:
            assert answer.text.split()[0] == sha256(right(stored))
    lab.assert_clean()
    stored.unmount()
    stored.mount()
    with JobShell(lab, *SERVED) as later:
        assert reads_whole(later, right(stored))
    assert fallbacks(lab, later.job_id) == {}
    if "agent" in victims:
        assert "agent.died" in fallbacks(lab, job.job_id)
    else:
        assert "the image server has ended" in fallbacks(lab, job.job_id)["image.serve"]


def test_who_lends_blocks_is_killed_in_mid_fetch(lab, stored, slow):
    uid = int(lab.cluster.run(["id", "-u", "bootseer-cache"]).stdout)
    with JobShell(lab, *SERVED) as job:
        job.start(WHOLE)
        wait_until(lambda: is_waiting(lab, "sha256sum"), "a reader waiting")
        (lender,) = (p.pid for p in lab.cluster.processes("n1") if p.uid == uid)
        os.kill(lender, signal.SIGKILL)
        assert job.answer().text.split()[0] == sha256(right(stored))
    lab.assert_clean()
    assert "the lender has ended" in fallbacks(lab, job.job_id)["image.cache"]
    with JobShell(lab, *SERVED) as later:
        assert reads_whole(later, right(stored))
    assert fallbacks(lab, later.job_id) == {}


def test_the_job_stops_who_serves_its_image(lab, stored, slow):
    """Another job on the node, with the same image, is none the wiser."""
    with JobShell(lab, *SERVED) as other, JobShell(lab, *SERVED) as job:
        server = job.server()
        job.run(read_at(0))
        job.start(f"dd if=$BOOTSEER_IMAGE of=/dev/null iflag=direct bs=64K & {WHOLE} & wait")
        wait_until(lambda: is_waiting(lab, "dd "), "a reader waiting")
        os.kill(server, signal.SIGSTOP)
        other.start(WHOLE)
        assert sha256(right(stored)) not in job.answer().text  # an error, and the job goes on
        assert other.answer().text.split()[0] == sha256(right(stored))
    assert "the image server has ended" in fallbacks(lab, job.job_id)["image.serve"]
    assert fallbacks(lab, other.job_id).keys() <= {"image.cache"}


def test_the_job_stops_who_serves_its_image_and_the_agent_is_dead(lab, stored, slow):
    with JobShell(lab, *SERVED) as job:
        server, agent = job.server(), lab.agent("n1", job.job_id)
        job.start(WHOLE)
        wait_until(lambda: is_waiting(lab, "sha256sum"), "a reader waiting")
        os.kill(agent, signal.SIGKILL)
        os.kill(server, signal.SIGSTOP)
        assert job.cancel() == "CANCELLED"
        idle(lab)


@pytest.fixture
def small_disk(lab, stored):
    """What n1 keeps of images has few bytes; by default none at all."""
    mounted = []

    def put(size="4k,nr_inodes=2"):
        lab.cluster.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", CACHE], node="n1")
        mounted.append(CACHE)

    yield put
    for path in mounted:
        lab.cluster.run(["umount", path], node="n1")


@pytest.mark.parametrize("size", ["4k,nr_inodes=2", "36k", "5m"])
def test_the_nodes_disk_is_full(lab, stored, small_disk, size):
    small_disk(size)
    with JobShell(lab, *SERVED) as job:
        assert reads_whole(job, right(stored))
        lab.drop_caches()
        assert reads_whole(job, right(stored))
    assert fallbacks(lab, job.job_id).keys() == {"image.cache"}


def test_the_image_is_larger_than_the_quota(lab, stored, config):
    config(more="[cache]\nquota_gib = 0.01\n")
    for _ in range(2):
        with JobShell(lab, *SERVED) as job:
            assert reads_whole(job, right(stored))
        assert "full" in fallbacks(lab, job.job_id)["image.cache"]
    used = lab.cluster.run(["du", "-sm", f"{CACHE}/images"], node="n1").stdout.split()[0]
    assert 1 < int(used) <= 11


def test_images_push_each_other_out_of_the_cache(lab, stored, config):
    """Three of them, each read by a job after the other, where one and a half have room."""
    quota_mib = 36
    config(more=f"[cache]\nquota_gib = {quota_mib / 1024}\nuser_share = 1\n")
    names = [NAME, "second:v1", "third:v1"]
    for seed, name in enumerate(names):
        stored.add(name, TinyImage(seed=seed))
    loop = "for i in 1 2; do sha256sum < $BOOTSEER_IMAGE || exit 1; done"
    running = []
    for name in names * 2:
        options = ("--bootseer=served", f"--bootseer-image=bootseer://{name}")
        script = f"#!/bin/sh\n{loop}\n"
        running.append((name, lab.sbatch(script, "-n1", "-wn1", *options)))
    for name, job in running:
        assert lab.cluster.wait_for_job(job) == "COMPLETED"
        output = (lab.cluster.shared / f"{job}.out").read_text()
        assert output.split()[::2] == [sha256(right(stored, name))] * 2
        assert fallbacks(lab, job).keys() <= {"image.cache"}
    lab.assert_clean()
    used = lab.cluster.run(["du", "-sm", f"{CACHE}/images"], node="n1").stdout.split()[0]
    assert int(used) <= quota_mib + 1


def image_command(lab, *words):
    lab.cluster.run([site.bootseer(), "image", *words, "-q"], user="alice")


def test_the_image_is_removed_or_replaced_while_it_is_read(lab, images):
    """In alice's own store."""
    for seed, name in enumerate((NAME, "second:v1")):
        images.add(name, TinyImage(seed=seed))
    expected, other = (right(images, name) for name in (NAME, "second:v1"))
    source = lab.cluster.shared / "mine.sqsh"

    def add(data):
        source.write_bytes(data)
        image_command(lab, "import", str(source), "--name", NAME)

    forget_blocks(lab)
    add(expected)
    with JobShell(lab, *SERVED) as job:
        job.run(read_at(0))
        add(other)  # the name is that one's from now on
        with JobShell(lab, *SERVED) as later:
            later.run(read_at(0))
            image_command(lab, "rm", NAME)
            assert reads_whole(later, other)
        assert reads_whole(job, expected)
    assert fallbacks(lab, job.job_id) == fallbacks(lab, later.job_id) == {}
    add(expected)
    forget_blocks(lab)
    with JobShell(lab, *SERVED) as job:
        job.run(read_at(0))
        image_command(lab, "rm", "--now", NAME)
        assert reads_whole(job, expected)  # of a directory, what is open can be read
        with JobShell(lab, *SERVED) as later:
            assert later.run(read_at(0)).code != 0
    assert "there is no image" in fallbacks(lab, later.job_id)["image.mount"]
    source.unlink()

"""Nodes of a job read from each other what they share."""

import hashlib
import json
import random
import re
import shlex
import subprocess

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import CONFIG

from bootseer.units import MIB

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

CACHE = "/var/cache/bootseer/images"
OPTIONS = ("--bootseer=record", "-Jpeers", "--bootseer-image=bootseer://large")
SUM = "sha256sum < $BOOTSEER_IMAGE"
SERVER = "ss -Hltnp 'sport >= :47100 and sport <= :47499'"
SENT = re.compile(r"sent to 2 nodes, of ([\d.]+) MB read from the store for them")


@pytest.fixture(scope="module")
def large(cluster_lab):
    """An image in alice's store, of bytes that cannot be packed."""
    lab = cluster_lab
    folder = lab.cluster.state_dir / "large"
    folder.mkdir()
    (folder / "data").write_bytes(random.Random(1).randbytes(24 * MIB))
    image = lab.cluster.shared / "large.sqsh"
    argv = ["mksquashfs", str(folder), str(image), "-noD", "-quiet", "-no-progress"]
    subprocess.run(argv, check=True, capture_output=True)
    return image


@pytest.fixture
def peers(lab, large):
    """The lab, with nodes that read from each other however few they are."""
    add = [site.bootseer(), "image", "import", "/shared/large.sqsh", "--name", "large", "-q"]
    lab.cluster.run(add, user="alice")
    toml = lab.cluster.etc_bootseer / "bootseer.toml"
    toml.write_text(CONFIG + "[peers]\nmin_nodes = 2\n")
    for node in lab.cluster.node_names:
        lab.cluster.run(["rm", "-rf", CACHE], node=node)
    lab.drop_caches()
    yield lab
    toml.write_text(CONFIG)


def wait_for_port(lab):
    """Return the port of each server on n1, once there is one."""
    look = ["sh", "-c", SERVER]
    wait_until(lambda: lab.cluster.run(look, node="n1").stdout, "a server listens")
    return re.findall(r":(\d+) ", lab.cluster.run(look, node="n1").stdout)


def once_both_serve(lab):
    """Return a command for both nodes that ends once each of them has a server."""
    lab.cluster.run(["sh", "-c", "rm -rf /shared/up; mkdir /shared/up"], user="alice")
    up = f"until {SERVER} | grep -q .; do sleep 0.1; done; touch /shared/up/$SLURM_PROCID"
    return f"{up}; while [ $(ls /shared/up | wc -l) -lt 2 ]; do sleep 0.1; done"


def sums(large):
    return [hashlib.sha256(large.read_bytes()).hexdigest(), "-"] * 2


def test_each_byte_leaves_the_store_once(peers, large):
    job = peers.srun(*OPTIONS, command=SUM)
    assert job.stdout.split() == sums(large)
    read_mb = 0.0
    for node in peers.cluster.node_names:
        stages = peers.stages(job, node)
        assert "of it through the job's nodes" in stages["image.serve"]["detail"]
        read_mb += float(SENT.fullmatch(stages["peers.serve"]["detail"])[1])
    assert read_mb <= 1.1 * large.stat().st_size / 1e6
    assert peers.fallbacks(job) == set()


def test_an_environment_is_unpacked_from_what_leaves_the_store_once(peers):
    """A file for each node, so that none of them has the other's by a shared folder."""
    target = "/local/peers"
    make = f"mkdir -p {target}; head -c 6000000 /dev/urandom > {target}/data"
    run = f"{site.bootseer()} env run --target {target} --mode=unpack"
    command = f"{run} --wait -- sh -c {shlex.quote(make)} && sha256sum < {target}/data"
    sums = set()
    for _ in range(2):
        job = peers.srun("--bootseer=peers", command=command)
        sums |= set(job.stdout.split())
        assert peers.fallbacks(job) == set()
        for node in peers.cluster.node_names:
            peers.cluster.run(["rm", "-rf", target], node=node)
    assert len(sums) == 2, "the sum, and sha256sum's dash"
    read_mb = 0.0
    for node in peers.cluster.node_names:
        stages = peers.stages(job, node)
        assert "env.unpack" in stages
        read_mb += float(SENT.fullmatch(stages["peers.serve"]["detail"])[1])
    assert 6 <= read_mb <= 1.1 * 6


CHECKPOINT = "--bootseer-ckpt=file:///shared/run"
THROUGH = re.compile(r"([\d.]+) MB of it through the job's nodes")


@pytest.fixture
def checkpoint(peers):
    """A striped file of alice's, which both nodes read, and one for each node; their length."""
    size = 64 * MIB
    peers.cluster.run(["sh", "-c", "rm -rf /shared/run; mkdir /shared/run"], user="alice")
    write = f"for f in all rank_0 rank_1; do head -c {size} /dev/urandom > $BOOTSEER_CKPT/$f; done"
    peers.srun("-N1", CHECKPOINT, command=write)
    return size


def test_what_all_nodes_read_of_a_checkpoint_leaves_the_store_once(peers, checkpoint):
    """Both read the first window, find out about each other, and read the rest a little later."""
    read = "head -c 1 $BOOTSEER_CKPT/all >/dev/null; sleep 2; sha256sum < $BOOTSEER_CKPT/all"
    read = f"{once_both_serve(peers)}; {read}"
    job = peers.srun("--bootseer=record", CHECKPOINT, "-Jshared", command=read)
    assert len(set(job.stdout.split())) == 2, "the sum, and sha256sum's dash"
    from_store = 0.0
    for node in peers.cluster.node_names:
        stages = peers.stages(job, node)
        through = THROUGH.search(stages["checkpoint.read"]["detail"])
        from_store += float(SENT.fullmatch(stages["peers.serve"]["detail"])[1])
        from_store += stages["checkpoint.read"]["bytes"] / 1e6 - float(through[1])
    assert from_store <= 1.4 * checkpoint / 1e6
    assert peers.fallbacks(job) == set()


def test_what_one_node_reads_of_a_checkpoint_takes_no_second_link(peers, checkpoint):
    read = "sha256sum < $BOOTSEER_CKPT/rank_$SLURM_PROCID"
    job = peers.srun("--bootseer=record", CHECKPOINT, "-Jshards", command=read)
    assert len(set(job.stdout.split())) == 3
    for node in peers.cluster.node_names:
        stages = peers.stages(job, node)
        assert stages["checkpoint.read"]["bytes"] == checkpoint
        assert "through" not in stages["checkpoint.read"]["detail"]
        said = re.search(r", of (\d+) B read", stages["peers.serve"]["detail"])
        assert int(said[1]) < 10_000, "plan and recorded reads"


def test_without_the_other_node_the_store_is_read(peers, large):
    run = peers.cluster.run
    run(["sh", "-c", "rm -f /shared/go"])
    # So that n1 knows the server that is gone: it is no late one.
    begin = "head -c 4M $BOOTSEER_IMAGE >/dev/null; touch /shared/up/begun.$SLURM_PROCID"
    go = "until [ -e /shared/go ]; do sleep 0.1; done"
    command = f"{once_both_serve(peers)}; {begin}; {go}; {SUM}"
    job, running = peers.start_in_background(*OPTIONS, command=command)
    begun = ["sh", "-c", "ls /shared/up/begun.* | wc -l"]
    wait_until(lambda: run(begun).stdout == "2\n", "both have begun to read")
    # Root alone sees whose socket it is.
    kill = f"kill $({SERVER} | grep -o 'pid=[0-9]*' | cut -d= -f2)"
    wait_until(
        lambda: run(["sh", "-c", kill], node="n2", check=False).returncode == 0, "it is killed"
    )
    run(["touch", "/shared/go"])
    assert running.communicate(timeout=120)[0].split() == sums(large)
    peers.cluster.wait_for_job(job)
    assert {"peers.lost"} <= peers.fallbacks(job) <= {"peers.lost", "peers.serve"}
    assert "peers.serve" in peers.stages(job, "n1"), "the other node's goes on"


def test_small_jobs_open_no_port(peers):
    toml = peers.cluster.etc_bootseer / "bootseer.toml"
    toml.write_text(CONFIG)
    job = peers.srun(*OPTIONS, command=f"head -c 4096 $BOOTSEER_IMAGE | wc -c; {SERVER}")
    assert job.stdout.split() == ["4096"] * 2
    assert "peers.serve" not in peers.stages(job)


def test_a_port_in_use_is_passed_over(peers, large):
    toml = peers.cluster.etc_bootseer / "bootseer.toml"
    toml.write_text(CONFIG + "[peers]\nmin_nodes = 2\nfirst_port = 47100\nports = 1\n")
    listen = "import socket,time; s=socket.create_server(('', 47100)); time.sleep(60)"
    held = peers.cluster.popen(["python3", "-c", listen], node="n1")
    try:
        job = peers.srun(*OPTIONS, command=SUM)
    finally:
        held.kill()
        held.communicate()
    assert job.stdout.split() == sums(large)
    assert {"peers.serve", "peers.lost"} <= peers.fallbacks(job)
    assert "peers.first_port" in peers.stages(job, "n1")["peers.serve"]["detail"]


STRANGER = """
import re, socket, sys
with socket.create_connection(("n1", int(sys.argv[1])), 10) as connection:
    told = connection.recv(1000)
    connection.sendall(bytes(48))
    connection.sendall(bytes([2, 0, 0, 1, 0, 0, 1, 0]) + bytes(8) + b"x")
    try:
        told += connection.recv(1000)
    except ConnectionResetError:
        pass
print(len(told), told[:16])
"""
LOOK = (
    "exec 2>/dev/null; scontrol -a -d show job; scontrol -d show step; squeue -a -O ALL; "
    "cat /proc/*/environ /proc/*/cmdline /run/bootseer/jobs/*/* /run/bootseer/jobs/*/*/*"
)


def test_another_user_learns_nothing(peers):
    command = "head -c 4096 $BOOTSEER_IMAGE | wc -c; sleep 60"
    job_id, running = peers.start_in_background(*OPTIONS, command=command)
    run = peers.cluster.run
    job = json.loads(run(["cat", f"/run/bootseer/jobs/{job_id}/job.json"], node="n1").stdout)
    assert re.fullmatch("[0-9a-f]{64}", job["secret"])
    [port] = wait_for_port(peers)
    said = run(["python3", "-c", STRANGER, port], user="mallory", node="n2").stdout
    assert said == "32 b'bootseer peers 1'\n"
    for node in ("n1", "n2"):
        seen = run(["sh", "-c", LOOK], user="mallory", node=node, check=False).stdout
        assert f"JobId={job_id} " in seen and job["secret"] not in seen
    peers.end(job_id, running)
    detail = peers.stages(job_id, "n1")["peers.serve"]["detail"]
    assert detail.endswith("; 1 connections were no node's")

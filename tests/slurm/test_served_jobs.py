"""Served images and whatever Slurm and other users do: the bytes are right, or nobody's."""

import hashlib
import json
import os

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.jobs.lab import RUN_DIR
from bootseer_dev.jobs.shell import JobShell

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

NAME = "train:v1"
SERVED = ("--bootseer=served", f"--bootseer-image=bootseer://{NAME}")
WHOLE = "sha256sum < $BOOTSEER_IMAGE"
CACHE = "/var/cache/bootseer/images"


@pytest.fixture
def stored(lab):
    """Alice's image in her store; its length and digest, and the checksum that jobs print."""
    source = lab.cluster.shared / "tiny.sqsh"
    data = (lab.images / "tiny.sqsh").read_bytes()
    source.write_bytes(data)
    answer = lab.cluster.run(
        [site.bootseer(), "image", "import", str(source), "--name", NAME, "--json"], user="alice"
    )
    source.unlink()
    yield {**json.loads(answer.stdout), "sum": f"{hashlib.sha256(data).hexdigest()}  -"}
    for node in lab.cluster.node_names:
        lab.cluster.run(["rm", "-rf", CACHE], node=node)


def test_others_get_at_neither_mount_nor_cache(lab, stored):
    with JobShell(lab, *SERVED) as job:
        assert job.run(WHOLE).text.strip() == stored["sum"]
        image = f"{RUN_DIR}/jobs/{job.job_id}/image"
        for path in (f"{image}/image.sqsh", image, CACHE, f"{RUN_DIR}/jobs/{job.job_id}/job.json"):
            command = ["sh", "-c", f"cat {path} || ls {path}/"]
            answer = lab.cluster.run(command, user="mallory", node="n1", check=False)
            assert answer.returncode and not answer.stdout, path
            assert "Permission denied" in answer.stderr
        own = ["sh", "-c", f"ls {CACHE} || cat {RUN_DIR}/jobs/{job.job_id}/job.json"]
        assert lab.cluster.run(own, user="alice", node="n1", check=False).returncode
        server = job.server()
        memory = ["sh", "-c", f"cat /proc/{_inside(server)}/mem; ls /proc/{_inside(server)}/fd"]
        answer = lab.cluster.run(memory, user="alice", node="n1", check=False)
        assert answer.returncode and not answer.stdout  # what root lends it is not its user's


def _inside(pid):
    """A process of a node as the node counts."""
    with open(f"/proc/{pid}/status") as file:
        (line,) = (line for line in file if line.startswith("NSpid"))
    return line.split()[-1]


def test_blocks_of_the_node_are_for_those_who_can_read_the_manifest(lab, stored):
    """Mallory knows digest, names, length and times, and at last the manifest."""
    with JobShell(lab, *SERVED) as job:
        assert job.run(WHOLE).text.strip() == stored["sum"]
    digest = stored["digest"]
    folder = lab.store() / "images" / digest
    part = (folder / "part-0000").stat()
    fake = lab.cluster.shared / "fake" / "images" / digest
    fake.mkdir(parents=True)
    (fake / "part-0000").touch()
    os.truncate(fake / "part-0000", part.st_size)
    os.utime(fake / "part-0000", ns=(part.st_mtime_ns, part.st_mtime_ns))
    known = (folder / "manifest").read_bytes()
    assert (folder / "token").stat().st_mode == (folder / "manifest").stat().st_mode
    options = ("--bootseer=served", f"--bootseer-image=bootseer://{digest}")

    def reads(manifest, token):
        """What a job of hers reads of the image when her store has this of it."""
        (fake / "manifest").write_bytes(manifest)
        (fake / "token").write_text(token)
        for command in (
            ["rm", "-rf", "/home/mallory/.bootseer"],
            ["cp", "-a", "/shared/fake", "/home/mallory/.bootseer"],
            ["chown", "-R", "mallory", "/home/mallory/.bootseer"],
        ):
            lab.cluster.run(command)
        with JobShell(lab, *options, user="mallory") as job:
            return job.run(f'head -c 4096 "$BOOTSEER_IMAGE" | od -c | head; {WHOLE}').text

    forged = known[: len(known) // 2] + bytes(len(known) - len(known) // 2 - 32) + known[-32:]
    for manifest, token in ((forged, digest), (forged[:1000], "0" * 64)):
        text = reads(manifest, token)
        assert "h   s   q   s" not in text and stored["sum"] not in text
    # Who knows every block's digest may have the blocks, from whatever store.
    assert stored["sum"] in reads(known, "")
    for path in ("/shared/fake", "/home/mallory/.bootseer"):
        lab.cluster.run(["rm", "-rf", path])


HOSTILE = (
    "bootseer://../../home/alice/.bootseer/images",
    "bootseer://" + "x" * 4000,
    "bootseer://" + "0" * 64,
    "bootseer://\u202e\u009b31m",
    "hdfs://nowhere/x",
)


def test_a_name_that_makes_no_sense_costs_the_job_nothing(lab, stored):
    for name in HOSTILE:
        with JobShell(lab, "--bootseer=served", f"--bootseer-image={name}") as job:
            assert job.run('cat "$BOOTSEER_IMAGE"').code != 0
        told = {s["stage"] for s in lab.report(job.job_id)["nodes"][0]["stages"]}
        assert "image.mount" in told & lab.fallbacks(job.job_id), name
    for name in ("bootseer://a\nb", "bootseer://" + "x" * 5000, "bootseer:/x"):
        argv = ["srun", "-n1", "--bootseer=served", f"--bootseer-image={name}", "true"]
        refused = lab.cluster.run(argv, user="alice", check=False)
        assert refused.returncode != 0 and "--bootseer-image" in refused.stderr


def test_steps_of_a_job_at_once_and_arrays(lab, stored):
    step = f"srun -n1 --overlap sh -c '{WHOLE}'"
    script = f"#!/bin/sh\n{step} & {step} & {step} & wait\n{WHOLE}\n"
    others = set(lab.cluster.shared.glob("*.out"))
    job = lab.sbatch(script, "-n4", "-wn1", *SERVED)
    array = lab.sbatch(f"#!/bin/sh\n{WHOLE}\n", "--array=1-4", "-wn1", *SERVED)
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    output = (lab.cluster.shared / f"{job}.out").read_text().splitlines()
    assert [line for line in output if "bootseer:" not in line] == [stored["sum"]] * 4

    def done():
        left = lab.cluster.run(["squeue", "--noheader", "--job", str(array)], check=False)
        return not left.stdout.strip()

    wait_until(done, "the array's end", timeout_s=60)
    outputs = set(lab.cluster.shared.glob("*.out")) - others
    assert [path.read_text().splitlines()[-1] for path in outputs] == [stored["sum"]] * 5


def test_slurmd_is_restarted_while_the_image_is_mounted(lab, stored):
    with JobShell(lab, *SERVED, node="n2") as job:
        job.run("head -c 1 $BOOTSEER_IMAGE")
        lab.cluster.restart_slurmd("n2")
        assert job.run(WHOLE).text.strip() == stored["sum"]
        assert job.run(f"srun --overlap -n1 sh -c '{WHOLE}'").text.strip() == stored["sum"]
    assert not lab.fallbacks(job.job_id)


def test_a_job_is_requeued_while_it_reads(lab, stored):
    again = lab.cluster.shared / "again"
    script = (
        f"#!/bin/sh\n[ -e /shared/again ] || while {WHOLE}; do touch /shared/reads; done\n{WHOLE}\n"
    )
    job = lab.sbatch(script, "-n1", "-wn1", "--requeue", *SERVED)
    wait_until((lab.cluster.shared / "reads").exists, "the job reading")
    again.touch()
    lab.cluster.run(["scontrol", "requeue", str(job)])
    wait_until(lambda: lab.cluster.job_state(job) == "PENDING", "the job waiting")
    # If it starts in the second in which it was ended, slurmd takes it for the job that was killed.
    soon = ["scontrol", "update", f"JobId={job}", "StartTime=now+2"]
    wait_until(lambda: not lab.cluster.run(soon, check=False).returncode, "another start")
    wait_until(
        lambda: lab.cluster.job_state(job) in ("RUNNING", "COMPLETED"), "the job running again"
    )
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    assert (lab.cluster.shared / f"{job}.out").read_text().splitlines()[-1] == stored["sum"]
    for name in ("again", "reads", f"{job}.out"):
        (lab.cluster.shared / name).unlink()

"""Jobs whose image is in the store: served block by block, recorded, warm, shared by a node."""

import json
import os
import shlex
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.material.images import TinyImage, ch_run, write_image

from bootseer.core.image_manifest import BLOCK_BYTES

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

NAME = "train:v1"
SERVED = ("--bootseer=served", f"--bootseer-image=bootseer://{NAME}")
WAIT = "--bootseer-wait=10"  # until it is known whether there is an image
READ = 'cat "${BOOTSEER_IMAGE:?}"'
CACHE = "/var/cache/bootseer/images"


@pytest.fixture(autouse=True)
def stored(lab):
    """Alice's image in her store, on no node."""
    source = lab.cluster.shared / "tiny.sqsh"
    source.write_bytes((lab.images / "tiny.sqsh").read_bytes())
    answer = lab.cluster.run(
        [site.bootseer(), "image", "import", str(source), "--name", NAME, "--json"], user="alice"
    )
    forget_blocks(lab)
    yield json.loads(answer.stdout)
    forget_blocks(lab)


def store_bytes(lab, job):
    """How much each node has read of the store for a job."""
    return [lab.stages(job, node)["image.serve"]["bytes"] for node in lab.cluster.node_names]


def forget_blocks(lab):
    for node in lab.cluster.node_names:
        lab.cluster.run(["rm", "-rf", CACHE], node=node)


def start(lab):
    """What a job script does: the image is where BOOTSEER_IMAGE says."""
    program = ch_run(Path("IMAGE"), lab.containers, *TinyImage().command)
    return shlex.join(program).replace("IMAGE", '"$BOOTSEER_IMAGE"')


def served(lab, *options, **more):
    return lab.srun(*SERVED, *options, command=start(lab), **more)


def test_an_image_is_served_recorded_and_warm_the_next_time(lab, stored):
    # Or the end of the job, which takes long on a busy machine, would fetch the rest.
    with image_setting(lab, "fill_mib_per_s = 0"):
        cold = served(lab)
    assert cold.stdout == TinyImage().output * 2
    assert lab.report(cold)["kind"] == "cold"
    first = lab.stages(cold)
    assert first["image.record"]["bytes"] > 30 * 96 * 1024
    assert 0 < first["image.serve"]["bytes"] < stored["size_bytes"] / 2
    assert lab.fallbacks(cold) == set()
    forget_blocks(lab)
    warm = served(lab, "--bootseer-wait=10")
    assert warm.stdout == TinyImage().output * 2
    assert lab.report(warm)["kind"] == "warm"
    for node in ("n1", "n2"):
        stages = lab.stages(warm, node)
        assert stages["image.prefetch"]["bytes"] >= 30 * 96 * 1024
        assert stages["image.record"]["bytes"] == 0  # the start found everything there
        # Whole blocks: of each of the hot files, up to one more at either end.
        rounded = stages["image.prefetch"]["bytes"] + 30 * 2 * BLOCK_BYTES
        assert stages["image.serve"]["bytes"] <= rounded
    assert lab.fallbacks(warm) == set()
    again = served(lab, "--bootseer-wait=10")
    assert again.stdout == TinyImage().output * 2
    assert lab.stages(again)["image.serve"]["bytes"] == 0  # what the node has is not read again


def packed(lab):
    """Have alice's image recorded, confirmed and packed; returns the pack's index."""
    served(lab)
    until = f"until ls {lab.store()}/packs/*/index; do sleep 0.1; done"
    behind = f'{start(lab)}; {site.bootseer()} mark first-step; timeout 10 sh -c "{until}"'
    for _ in range(4):  # a start that is held up may read what the first has not
        confirmed = lab.srun(*SERVED, command=f"({behind}) 2>/dev/null || true")
        assert TinyImage().output in confirmed.stdout
        if found := list(lab.store().glob("packs/*/index")):
            break
    (index,) = found
    assert lab.stages(confirmed)["image.pack.write"]["bytes"] > 30 * 96 * 1024
    assert "image.pack.write" not in lab.stages(confirmed, "n2"), "one node of a job is enough"
    assert lab.fallbacks(confirmed) == set()
    forget_blocks(lab)
    lab.drop_caches()
    return index


def test_a_later_start_reads_the_hot_pack_and_not_the_image(lab, stored):
    packed(lab)
    shown = lab.cluster.run([site.bootseer(), "hot", "ls", "--json"], user="alice").stdout
    digest = json.loads(shown)[0]["digest"]
    show = [site.bootseer(), "hot", "show", digest]
    assert "hot pack of" in lab.cluster.run(show, user="alice").stdout
    warm = served(lab, "--bootseer-wait=10")
    assert warm.stdout == TinyImage().output * 2
    for node in lab.cluster.node_names:
        stages = lab.stages(warm, node)
        assert stages["image.pack"]["bytes"] >= 30 * 96 * 1024
        assert stages["image.prefetch"]["bytes"] >= 30 * 96 * 1024
        beside = stages["image.serve"]["bytes"] - stages["image.pack"]["bytes"]
        assert beside <= 10 * BLOCK_BYTES, "only what the runtime asked for before"
    assert lab.fallbacks(warm) == set()
    lab.cluster.run([site.bootseer(), "hot", "rm", digest], user="alice")
    assert not list(lab.store().glob("packs/*"))


@pytest.mark.faults
@pytest.mark.parametrize("damage", ["index", "block", "cut", "gone"])
def test_a_hot_pack_that_is_damaged_is_done_without(lab, stored, damage):
    index = packed(lab)
    (part,) = index.parent.glob("*/part-*")
    if damage == "index":
        index.write_bytes(index.read_bytes()[:-1])
    elif damage == "block":
        content = part.read_bytes()
        half = len(content) // 2
        part.write_bytes(content[:half] + b"damaged" + content[half + 7 :])
    elif damage == "cut":
        os.truncate(part, part.stat().st_size // 2)
    else:
        part.unlink()
    warm = served(lab, "--bootseer-wait=10")
    assert warm.stdout == TinyImage().output * 2
    assert lab.fallbacks(warm) == {"image.pack"}
    assert lab.stages(warm)["image.prefetch"]["bytes"] >= 30 * 96 * 1024


@contextmanager
def image_setting(lab, line):
    """Jobs that begin in the block have one setting more."""
    config = lab.cluster.etc_bootseer / "bootseer.toml"
    before = config.read_text()
    config.write_text(before.replace("[image]\n", f"[image]\n{line}\n"))
    try:
        yield
    finally:
        config.write_text(before)


def test_who_may_not_read_the_image_gets_nothing_of_what_the_node_has(lab, stored):
    with image_setting(lab, f'store_url = "file://{lab.store()}"'):
        assert served(lab).stdout == TinyImage().output * 2
        other = lab.srun(*SERVED, WAIT, command=READ, user="mallory", check=False)
    assert other.exit_code != 0 and other.stdout == ""
    assert "BOOTSEER_IMAGE: parameter not set" in other.stderr
    assert "the image cannot be read" in other.stderr


def test_jobs_of_two_users_share_what_the_node_has(lab, stored):
    """Ten at once: what each reads of the store, no other reads again."""
    lab.cluster.run(["cp", "-r", str(lab.store()), "/shared/images-of-all"], user="alice")
    lab.cluster.run(["chmod", "-R", "a+rX", "/shared/images-of-all"], user="alice")
    with image_setting(lab, 'store_url = "file:///shared/images-of-all"'):
        command = f"{start(lab)}; cksum $BOOTSEER_IMAGE"
        argv = ["srun", "-w", "n1", *SERVED, "sh", "-c", command]
        running = [lab.cluster.popen(argv, user=u) for u in ("alice", "mallory") * 5]
        answers = [job.communicate(timeout=120) for job in running]
    whole = subprocess.check_output(["cksum", lab.images / "tiny.sqsh"], text=True).split()[:2]
    for (out, err), job in zip(answers, running, strict=True):
        assert job.returncode == 0, err
        first, last = out.splitlines()
        assert f"{first}\n" == TinyImage().output
        assert last.split()[:2] == whole
    jobs = range(lab.newest_job() - 9, lab.newest_job() + 1)
    stages = [
        stage
        for job in jobs
        for user in ("alice", "mallory")
        if list((lab.store(user) / "runs").glob(f"*.{job}"))
        for stage in lab.report(job, user=user)["nodes"][0]["stages"]
        if stage["stage"] == "image.serve"
    ]
    assert len(stages) == 10
    assert sum(stage["bytes"] for stage in stages) == stored["size_bytes"]


def test_what_is_damaged_on_the_node_is_fetched_again(lab, stored):
    served(lab)
    served(lab, "--bootseer-wait=10")
    for node in lab.cluster.node_names:
        damage = f"for f in {CACHE}/*/data; do printf X | dd of=$f bs=1 seek=5 conv=notrunc; done"
        lab.cluster.run(["sh", "-c", damage], node=node)
    again = served(lab, "--bootseer-wait=10")
    assert again.stdout == TinyImage().output * 2
    for node in lab.cluster.node_names:
        stage = lab.stages(again, node)["image.serve"]
        assert "1 damaged blocks" in stage["detail"]
        # A job's end may have come before the last blocks of its start were kept.
        assert BLOCK_BYTES <= stage["bytes"] <= 10 * BLOCK_BYTES


def test_the_job_goes_on_when_its_agent_dies(lab, stored):
    begun = 'head -c1 "$BOOTSEER_IMAGE" >/dev/null; touch /shared/started-$SLURMD_NODENAME'
    wait = f"{begun}; while [ ! -e /shared/go ]; do sleep 0.1; done"
    command = f"{wait}; {start(lab)}"
    for name in ("go", "started-n1", "started-n2"):
        lab.cluster.run(["rm", "-f", f"/shared/{name}"])
    job_id, running = lab.start_in_background(*SERVED, command=command)
    for node in lab.cluster.node_names:
        wait_until(lambda node=node: (lab.cluster.shared / f"started-{node}").exists(), "the step")
        agent = lab.agent(node, job_id)
        os.kill(agent, signal.SIGKILL)
    # Another job's prolog, on the same nodes, leaves it alone.
    lab.cluster.run(["srun", "-N2", "--overcommit", "--bootseer=other", "true"], user="alice")
    lab.cluster.run(["touch", "/shared/go"], user="alice")
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, TinyImage().output * 2), err
    lab.assert_clean()
    assert lab.fallbacks(job_id) >= {"agent.died"}


def test_a_store_that_a_stranger_can_write_is_not_used(lab, stored):
    folder = lab.cluster.shared / "open"
    lab.cluster.run(["cp", "-r", str(lab.store()), "/shared/open"], user="alice")
    lab.cluster.run(["chmod", "-R", "a+rX", "/shared/open"], user="alice")
    try:
        with image_setting(lab, 'store_url = "file:///shared/open"'):
            assert served(lab, user="mallory").stdout == TinyImage().output * 2
            (folder / "image-names").chmod(0o777)
            refused = lab.srun(*SERVED, WAIT, command=READ, user="mallory", check=False)
            assert refused.exit_code != 0 and refused.stdout == ""
            (stage,) = [
                stage
                for stage in lab.report(refused, user="mallory")["nodes"][0]["stages"]
                if stage["stage"] == "image.mount"
            ]
            assert stage["status"] == "fallback"
            assert "chmod o-w /shared/open/image-names" in stage["detail"]
    finally:
        lab.cluster.run(["rm", "-r", "/shared/open"])


def tag_again(lab, seed):
    """Give the name to an image with other data in files of the same names and sizes."""
    source = lab.cluster.shared / "tiny.sqsh"
    source.unlink()
    recipe = TinyImage(seed=seed)
    write_image(recipe, source)
    source.chmod(0o644)
    add = [site.bootseer(), "image", "import", str(source), "--name", NAME, "--json"]
    return json.loads(lab.cluster.run(add, user="alice").stdout)["digest"], recipe


def test_a_name_that_leads_to_another_image_is_told(lab, stored):
    served(lab)
    digest, recipe = tag_again(lab, 7)
    moved = served(lab)
    assert moved.stdout == recipe.output * 2
    assert lab.fallbacks(moved) == {"image.retagged"}
    detail = lab.stages(moved)["image.retagged"]["detail"]
    assert digest[:12] in detail and stored["digest"][:12] in detail
    assert "another image than in the last run" in moved.stderr
    again = served(lab)
    assert lab.fallbacks(again) == set(), "it is told once"
    assert "another image" not in again.stderr


def test_a_pinned_name_that_leads_to_another_image_is_not_served(lab, stored):
    served(lab)
    digest, recipe = tag_again(lab, 8)
    with image_setting(lab, "pin = true"):
        for _ in range(2):  # a run that was refused does not change what is known
            refused = lab.srun(*SERVED, WAIT, command=READ, check=False)
            assert refused.exit_code != 0 and refused.stdout == ""
            assert {"image.retagged", "image.mount"} <= lab.fallbacks(refused)
            assert f"bootseer://{digest}" in lab.stages(refused)["image.retagged"]["detail"]
            assert "is refused" in refused.stderr
        named = (SERVED[0], f"--bootseer-image=bootseer://{digest}")
        assert lab.srun(*named, command=start(lab)).stdout == recipe.output * 2
        record = ("--bootseer=record", "--job-name=served", SERVED[1])
        assert lab.srun(*record, command=start(lab)).stdout == recipe.output * 2
        accepted = served(lab)
        assert accepted.stdout == recipe.output * 2
        assert lab.fallbacks(accepted) == set()


def test_a_container_of_bootseer_squashfuse_has_its_hot_files_read_ahead(lab):
    program = site.libexec(lab.cluster) / "bootseer-squashfuse"
    files = " ".join(f"m{name}" for name in TinyImage().hot)
    script = lab.cluster.shared / "container.sh"
    script.write_text(
        f"""cd $(mktemp -d) && mkdir m || exit 1
        {program} -f $BOOTSEER_IMAGE m 2>&1 & server=$!
        until mountpoint -q m; do sleep 0.05; done
        cat {files} | sha256sum
        sleep 2; for i in $(seq 80); do umount m && break; sleep 0.1; done 2>/dev/null
        mountpoint -q m && {{ echo "the reader waits for what is not prefetched"; kill $server; }}
        wait; rmdir m
        """
    )
    for is_warm in (False, True):
        command = f"unshare -rm sh {script}"
        job = lab.srun("--bootseer=ahead", SERVED[1], command=command)
        digest = TinyImage().output.split()[-1]
        assert [line.split()[0] for line in job.stdout.splitlines()] == [digest] * 2
        for node in lab.cluster.node_names:
            stages = lab.stages(job, node)
            assert ("image.decompress" in stages) == is_warm
            if is_warm:
                assert stages["image.decompress"]["bytes"] > 0
        lab.assert_clean()

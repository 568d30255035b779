"""What lies in one's own store is made to harm, with checksums that are right."""

import shlex

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

TARGET = "/local/m/env"
IMAGE = "/mnt/share/tiny.sqsh"
MEMORY_MIB = 900
"""Of all our processes for a job; what is hot is page cache and does not count."""
LAST = f"ls -lR {TARGET} > /dev/null; cat {TARGET}/* > /dev/null 2>&1; true"


def env_run(make, *options):
    argv = [site.bootseer(), "env", "run", "--target", TARGET, *options]
    return shlex.join([*argv, "--", "sh", "-c", make])


@pytest.fixture
def whole(arena):
    """A store of mallory's with a served image, an environment, a plan, hot sets and reads."""
    make = (
        f"mkdir -p {TARGET}/lib; cd {TARGET}; seq 100000 > a; head -c 900000 /dev/urandom > b;"
        "ln -s a c; ln a lib/d; for i in $(seq 40); do echo $i > lib/$i; done"
    )
    (arena.cluster.shared / "m.sqsh").write_bytes((arena.images / "tiny.sqsh").read_bytes())
    arena.sh("mkdir -p /shared/m-ckpt /local/m; ")
    arena.sh(f"{site.bootseer()} image import /shared/m.sqsh --name m --quiet")
    options = (
        "--bootseer=m",
        "--bootseer-image=bootseer://m",
        "--bootseer-ckpt=file:///shared/m-ckpt",
        "--bootseer-wait=5",
    )
    with arena.shell(*options) as job:
        assert job.run(env_run(make, "--wait")).code == 0
        job.run("head -c 9000000 /dev/urandom > $BOOTSEER_CKPT/a; cat $BOOTSEER_IMAGE > /dev/null")
    return options, make


def use_all(arena, options, make):
    """Jobs that use everything end well, and the agent lives; returns the memory it took."""
    most = 0.0
    for mode in ("--mode=mount", "--mode=unpack"):
        arena.sh(f"rm -rf {TARGET}")
        with arena.shell(*options) as job:
            job.run(f"{env_run(make, mode, '--no-capture')}; {LAST}", 90)
            job.run(
                "for f in $BOOTSEER_IMAGE $BOOTSEER_CKPT/a; do timeout 20 cat $f; done > /dev/null",
                60,
            )
            assert [one for one in arena.ours(job.job_id) if one.uid == 0], "its agent lives"
            most = max(most, arena.memory_mib(job.job_id))
            log = arena.on_host(f"{arena.folder(job.job_id)}/agent.log")
            assert "Traceback" not in log.read_text(errors="replace")
    return most


OBJECTS = {
    "manifests of images": "images/*/manifest",
    "names of images": "image-names/*",
    "parts of images": "images/*/part-*",
    "plans": "plans/*",
    "hot sets": "hot/*.hotset",
    "traces": "traces/*/*",
    "index of an environment": "env/snapshots/*/*/index",
    "manifest of an environment": "env/snapshots/*/manifest.json",
    "reads of a checkpoint": "reads/**/*",
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_other_bits_with_right_checksums(arena, whole, kind):
    """Few or many bits of one kind of object are other ones: jobs run, and nobody else notices."""
    for count in (3, 43):
        arena.attack("forge_store.py", "flip", OBJECTS[kind], count, count, check=True)
        assert use_all(arena, *whole) < MEMORY_MIB


@pytest.mark.parametrize("seed", [1, 20, 400])
def test_other_rows_of_an_environments_tree(arena, whole, seed):
    """The index and the manifest of it are right, and what they say of the tree is not."""
    arena.attack("forge_snapshot.py", "bits", seed, check=True)
    assert use_all(arena, *whole) < MEMORY_MIB


def test_a_checkpoint_with_other_bits(arena, whole):
    """Striped files are damaged: reading gives errors or other bytes, and an answer in time."""
    arena.sh(
        "cd /shared/m-ckpt; for f in $(find . -type f); do "
        "printf '\\377\\377\\377\\377' | dd of=$f bs=1 seek=12 conv=notrunc 2>/dev/null; done"
    )
    assert use_all(arena, *whole) < MEMORY_MIB


def test_blocks_that_grow_without_end(arena, whole):
    """Each block of an environment's squashfs decompresses to far more than its index says."""
    arena.attack("forge_snapshot.py", "bomb", 1 << 30, check=True)
    assert use_all(arena, *whole) < MEMORY_MIB


@pytest.mark.parametrize("count", [100_000, 199_999, 300_000])
def test_a_hot_set_of_very_many_ranges(arena, count):
    """Hundreds of thousands of ranges of an image of 32 TB: memory and time are bounded."""
    arena.attack("forge_store.py", "hot_set", IMAGE, count, check=True)
    with arena.shell("--bootseer=m", f"--bootseer-image={IMAGE}") as job:
        for _ in range(5):
            assert arena.memory_mib(job.job_id) < MEMORY_MIB
            job.run("sleep 0.3")
        assert [one for one in arena.ours(job.job_id) if one.uid == 0]


def test_a_plan_of_very_many_images(arena):
    arena.attack("forge_store.py", "plan", "m", 100_000, check=True)
    with arena.shell("--bootseer=m", "--bootseer-wait=5") as job:
        assert arena.memory_mib(job.job_id) < MEMORY_MIB
        assert [one for one in arena.ours(job.job_id) if one.uid == 0]


SQUASHED = (
    *("inodes", "blocks", "huge blocks", "fragments", "ids", "no tables", "tables at the end"),
    *("tables in order backwards", "long", "root", "codec", "noise", "half"),
)


def test_a_squashfs_that_promises_what_cannot_be(arena):
    """Opened, identified, added, served and kept: errors of ours, no trace-back."""
    failed = {}
    for number, kind in enumerate(SQUASHED):
        path = f"/shared/m-{number}.sqsh"
        arena.attack("forge_store.py", "squashfs", kind, path, check=True)
        commands = [
            f"image import {path} --name m{number} --quiet",
            f"image show m{number}",
            f"image verify m{number}",
        ]
        for command in commands:
            done = arena.sh(
                f"ulimit -v 8000000; timeout 60 {site.bootseer()} {command}", check=False
            )
            if "Traceback" in done.stderr or done.returncode > 120:
                failed[kind, command] = (done.returncode, done.stderr[-300:])
        with arena.shell("--bootseer=m", f"--bootseer-image={path}", "--bootseer-wait=2") as job:
            served = shlex.join(arena.program("talk_serve.py", f"bootseer://m{number}", path))
            job.run(f"{served}; true", 60)
            if not [one for one in arena.ours(job.job_id) if one.uid == 0]:
                failed[kind] = "the agent has died"
            log = arena.on_host(f"{arena.folder(job.job_id)}/agent.log").read_text(errors="replace")
            if "Traceback" in log:
                failed[kind, "agent.log"] = log[-300:]
    assert not failed


def test_what_workers_say_is_not_believed(arena, victim):
    """A manifest that mallory may not read gives her no blocks that the node has for alice."""
    add = f"{site.bootseer()} image import /mnt/share/tiny.sqsh --name a --quiet"
    arena.sh(add, user="alice")
    with arena.shell("--bootseer=a", "--bootseer-image=bootseer://a", user="alice") as job:
        job.run("cat $BOOTSEER_IMAGE > /dev/null")
    digests = [p.name for p in arena.store("alice").glob("images/*")]
    assert digests
    with arena.shell("--bootseer=m") as job:
        for digest in digests:
            for uri in (f"bootseer://{digest}", f"bootseer-env://{digest}"):
                argv = arena.program("talk_serve.py", uri, "/dev/null")
                said = job.run(shlex.join(argv))
                assert "error" in said.text and "path" not in said.text.split("error")[0]
    wait_until(lambda: arena.ours(victim.id), "the victim's agent")
    arena.sh(f"{site.bootseer()} image rm a --now --quiet || true", user="alice")

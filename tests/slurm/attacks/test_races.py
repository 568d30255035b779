"""Paths that change while root looks at them: links to root's places in turn with folders."""

import os
import shlex
from pathlib import Path

import pytest
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

ROUNDS = 6


def listing(arena):
    """Everything in root's places that a write, a chown or a removal would change."""
    root = Path(f"/proc/{arena.cluster.holder_pid('n1')}/root")
    found = {}
    for place in (root / "etc/bootseer", root / "etc/slurm", root / "root", root / "home/alice"):
        for path in [place, *place.rglob("*")]:
            info = path.lstat()
            if ".bootseer" not in path.parts and not path.match("home/alice"):
                found[str(path)] = (info.st_mode, info.st_uid, info.st_size)
    return found


@pytest.fixture(autouse=True)
def _roots_places_are_as_they_were(arena):
    before = listing(arena)
    yield
    assert listing(arena) == before


def env_run(target):
    argv = [site.bootseer(), "env", "run", "--target", target, "--mode=mount", "--wait-seconds=5"]
    make = f"mkdir -p {target}; echo 7 > {target}/x; true"
    return shlex.join([*argv, "--", "sh", "-c", make]) + " || true"


def mounted_at(arena, place):
    """Count what is mounted at or below a place on the node."""
    return len([m for m in arena.cluster.mounts("n1") if m.mountpoint.startswith(place)])


@pytest.mark.parametrize("place", ["/etc", "/root", "/home/alice", "/run/bootseer", "/var/cache"])
def test_the_mount_point_of_a_checkpoint_is_swapped(arena, place):
    """--bootseer-ckpt=URL:MOUNTPOINT, where MOUNTPOINT is in turn a folder and a link to PLACE."""
    arena.sh("mkdir -p /shared/m-ckpt /local/m")
    option = "--bootseer-ckpt=file:///shared/m-ckpt:/local/m/point"
    see = f"grep -E ' {place} .* - fuse' /proc/self/mountinfo"
    with arena.attacking("swap.py", place, "/local/m/point"):
        for _ in range(ROUNDS // 2):
            command = f"{see} && touch /shared/pwned; true"
            arena.runs_well("--bootseer=m", option, command=command)
    assert not mounted_at(arena, "/local/m")


@pytest.mark.parametrize("place", ["/etc", "/home/alice", "/run/bootseer/jobs"])
def test_the_target_of_an_environment_is_swapped(arena, place):
    """`env run --target T` in a loop, where T is in turn a folder and a link to PLACE."""
    attack = arena.attacking("swap.py", place, "/local/m/target")
    with attack, arena.shell("--bootseer=m") as job:
        over = f"grep -cE ' {place} .* - (overlay|fuse)' /proc/self/mountinfo"
        before = job.run(over).text.strip()
        for _ in range(ROUNDS):
            job.run(env_run("/local/m/target"), 60)
            assert job.run(over).text.strip() == before
        # Later tasks get what was mounted, and nowhere else.
        assert job.run(f"srun --overlap -n1 -wn1 {over} 2>/dev/null").text.strip() == before


def test_a_parent_of_the_target_is_swapped(arena):
    """Not the target itself, but a folder above it is in turn hers and a link to alice's home."""
    before = mounted_at(arena, "/home/alice")
    arena.sh("mkdir -p /local/m/up/er")
    attack = arena.attacking("swap.py", "/home/alice", "/local/m/up")
    with attack, arena.shell("--bootseer=m") as job:
        for _ in range(ROUNDS):
            job.run(env_run("/local/m/up/er"), 60)
    assert mounted_at(arena, "/home/alice") == before


@pytest.mark.parametrize("name", ["", "images", "image-names", "plans", "runs", "hot", "env"])
def test_the_users_store_is_swapped(arena, name):
    """~/.bootseer, or a folder in it, is in turn hers and a link into alice's home, or root's."""
    place = f"/home/mallory/.bootseer/{name}".rstrip("/")
    arena.sh("mkdir -p ~/.bootseer; chmod 700 ~/.bootseer")
    with arena.attacking("swap.py", "/home/alice/.bootseer", place):
        for _ in range(2):
            arena.runs_well("--bootseer=m", f"--bootseer-image={'/mnt/share/tiny.sqsh'}")


def test_the_checkpoint_folder_is_swapped(arena):
    """The folder behind file:///…/ckpt is in turn hers and a link to alice's."""
    arena.sh("mkdir -p /home/alice/x 2>/dev/null; mkdir -p /shared/m-x; true")
    (arena.cluster.state_dir / "home/alice/seen").write_text("alice's")
    os.chmod(arena.cluster.state_dir / "home/alice/seen", 0o600)
    with arena.attacking("swap.py", "/home/alice", "/shared/m-x/ckpt"):
        for _ in range(2):
            command = (
                "cat $BOOTSEER_CKPT/seen > /shared/m-seen; ls $BOOTSEER_CKPT > /dev/null; true"
            )
            arena.runs_well(
                "--bootseer=m", "--bootseer-ckpt=file:///shared/m-x/ckpt", command=command
            )
    seen = arena.cluster.shared / "m-seen"
    assert not seen.exists() or "alice's" not in seen.read_text()
    (arena.cluster.state_dir / "home/alice/seen").unlink()


def test_the_image_is_swapped(arena):
    """--bootseer-image=PATH is in turn an image and a link to a file of root's."""
    arena.sh("mkdir -p /local/m")
    arena.sh("cp /mnt/share/tiny.sqsh /local/m/image; ln -s /shared/roots /local/m/image.other")
    with arena.attacking("swap.py", "/shared/roots", "/local/m/image"):
        for _ in range(ROUNDS // 2):
            arena.runs_well("--bootseer=m", "--bootseer-image=/local/m/image", "--bootseer-wait=3")


def test_nobody_can_put_anything_into_roots_folders(arena, victim):
    """In the run folder, in the cache, and in what belongs to alice's job: make, rename, remove."""
    folders = ["/run/bootseer", "/run/bootseer/jobs", "/run/bootseer/dead", "/var/cache/bootseer"]
    folders += [arena.folder(victim.id), arena.scratch, arena.images_cache]
    folders += [f"{arena.folder(victim.id)}/{n}" for n in ("envs", "ckpt", "image", "root")]
    for folder in folders:
        for attempt in (
            f"touch {folder}/x",
            f"mkdir {folder}/99999",
            f"ln -s /etc {folder}/99999",
            f"mv {folder} {folder}-x",
            f"rmdir {folder}",
            f"ln {folder}/events.jsonl /local/m-x",
        ):
            done = arena.sh(f"{attempt} 2>&1", check=False)
            assert done.returncode != 0, attempt


def test_the_next_jobs_folder_cannot_be_made_beforehand(arena):
    """Guessing the next numbers gives nothing: root makes the folder, in one of root's."""
    number = arena.newest_job() + 1
    made = arena.sh(
        f"mkdir -p /run/bootseer/jobs/{number} /var/cache/bootseer/environments/{number}",
        check=False,
    )
    assert made.returncode != 0
    arena.runs_well("--bootseer=m")


def test_spill_and_scratch_folders_are_full_of_links(arena):
    """/var/tmp is open to all: names there that could be ours are links to root's files."""
    number = arena.newest_job() + 1
    names = [f"bootseer-{number}", f"bootseer-spill-{number}", f".bootseer-{number}"]
    make = "; ".join(f"ln -sfn /etc/bootseer/bootseer.toml /var/tmp/{name}" for name in names)
    arena.sh(make)
    try:
        arena.sh("mkdir -p /shared/m-c")
        write = "dd if=/dev/zero of=$BOOTSEER_CKPT/x bs=1M count=3 seek=5 2>/dev/null"
        arena.runs_well("--bootseer=m", "--bootseer-ckpt=file:///shared/m-c", command=write)
    finally:
        arena.sh("; ".join(f"rm -f /var/tmp/{name}" for name in names))

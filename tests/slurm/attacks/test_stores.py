"""Stores and folders that others can write to."""

import re
import shlex
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse, pytest.mark.attacks]

STORE = "/shared/images"
ENROOT = """#!/bin/sh
[ "$1 $2 $4" = "import --output --" ] && exec cp /mnt/share/tiny.sqsh "$3"
exit 1
"""


# Attack 8: where images of all users are.


@pytest.fixture
def common(arena):
    """A folder for the images of all that everybody may write to, with an image of alice's."""
    arena.cluster.run(["sh", "-c", f"rm -rf {STORE}; mkdir -m 1777 {STORE}"])
    for name in ("one", "two"):
        data = (arena.images / "tiny.sqsh").read_bytes() + name.encode() * 4096
        (arena.cluster.shared / f"m-{name}.sqsh").write_bytes(data)
    with arena.settings(image={"store_url": f'"file://{STORE}"'}):
        yield
    arena.cluster.run(["rm", "-rf", STORE, "/shared/alice/read", "/shared/alice/seen"])


def add(arena, path, name, user, url=f"file://{STORE}"):
    argv = [site.bootseer(), "image", "import", path, "--name", name, "--quiet"]
    env = {"STORE": url}
    return arena.cluster.run(argv, user=user, check=False, env=env)


@pytest.mark.parametrize("mode", ["777", "1777", "2777"])
def test_a_store_that_everybody_may_write_to_is_refused(arena, common, mode):
    """The administrator has named a folder of mode 0777: it is not used, and a stage says why."""
    add(arena, "/shared/m-one.sqsh", "shared", "alice")
    arena.cluster.run(["sh", "-c", f"chmod {mode} {STORE}"])
    options = ("--bootseer=s", "--bootseer-image=bootseer://shared")
    read = 'head -c1 "$BOOTSEER_IMAGE" > /dev/null && echo read > /shared/alice/read; true'
    job = arena.runs_well(*options, user="alice", command=read)
    assert not (arena.cluster.shared / "alice/read").exists(), "the store was used"
    told = arena.told(job, "alice")
    assert STORE in " ".join(told.values()), told
    assert re.search(r"writ|everybody|others", " ".join(told.values())), told
    add_again = add(arena, "/shared/m-one.sqsh", "again", "alice")
    assert add_again.returncode != 0


def test_a_stranger_gives_a_name_to_another_image(arena, common):
    """Mallory tags her image with alice's name, by the command and by hand; alice has hers."""
    add(arena, "/shared/m-one.sqsh", "shared", "alice")
    add(arena, "/shared/m-two.sqsh", "shared", "mallory")
    names = f"{STORE}/image-names"
    arena.sh(
        f"d=$(ls -t {STORE}/images | head -1); mv {names} {names}.old; mkdir -m 777 {names};"
        f'printf \'{{"format":"bootseer image name","version":1,"name":"shared","digest":"%s",'
        f'"size_bytes":1,"named_ns":1}}\\n\' $d > {names}/shared.json',
        check=False,
    )
    options = ("--bootseer=s", "--bootseer-image=bootseer://shared")
    seen = "tail -c 3 $BOOTSEER_IMAGE > /shared/alice/seen 2>/dev/null; true"
    arena.runs_well(*options, user="alice", command=seen)
    assert (arena.cluster.shared / "alice/seen").read_text() in ("", "one")


def test_a_stranger_replaces_parts_of_an_image(arena, common):
    """What is in the store is not what the manifest says: an error, not other bytes."""
    add(arena, "/shared/m-one.sqsh", "shared", "alice")
    arena.sh(
        f"for f in {STORE}/images/*/part-*; do mv $f $f.old; cp /shared/m-two.sqsh $f; done",
        check=False,
    )
    options = ("--bootseer=s", "--bootseer-image=bootseer://shared")
    seen = "tail -c 3 $BOOTSEER_IMAGE > /shared/alice/seen 2>/dev/null; true"
    arena.runs_well(*options, user="alice", command=seen)
    assert (arena.cluster.shared / "alice/seen").read_text() in ("", "one")


def test_a_store_below_a_folder_of_a_strangers_is_not_exchanged(arena, common):
    """The folder is alice's and closed, but everybody can rename it, and mallory puts his there."""
    arena.sh("rm -rf /shared/m-up; mkdir -m 777 /shared/m-up")
    arena.sh("mkdir -m 700 /shared/m-up/store", user="alice")
    arena.sh("mv /shared/m-up/store /shared/m-up/hers; mkdir -m 777 /shared/m-up/store")
    with arena.settings(store={"url": '"file:///shared/m-up/store"'}):
        job, code, _ = arena.ask_for_job("--bootseer=s", user="alice")
        assert code == 0
        wait_until(lambda: not arena.ours(job), "its end", timeout_s=30)
    assert list((arena.cluster.shared / "m-up/store").iterdir()) == []
    arena.sh("rm -rf /shared/m-up/hers", user="alice")


@pytest.mark.parametrize(
    "url", ["s3://bucket/x", "gs://bucket/x", "abfs://c/x", "s3://bucket/home"]
)
def test_one_bucket_for_all_users_is_refused(arena, url):
    """An object store has no owners: without {user} in its URL anybody could be anybody."""
    before = len(arena.slurmd_log("n1"))
    with arena.settings(store={"url": f'"{url}"'}):
        job, code, _ = arena.ask_for_job("--bootseer=s")
        assert code == 0
        wait_until(lambda: not arena.ours(job), "its end", timeout_s=60)
    assert "store.shared_bucket" in arena.slurmd_log("n1")[before:]


# Attack 9: the importer.


@pytest.fixture
def pyxis(arena):
    """What runs the importer as Pyxis does, with a stand-in for Enroot; gives the commands."""
    here = arena.cluster.shared
    (here / "m-as_pyxis.py").write_bytes((Path(__file__).parents[1] / "as_pyxis.py").read_bytes())
    (here / "m-bin").mkdir()
    (here / "m-bin/enroot").write_text(ENROOT)
    (here / "m-bin/enroot").chmod(0o755)
    script = str(site.libexec(arena.cluster) / "bootseer-importer")
    python = site.bootseer().removesuffix("bootseer") + "python"
    get = shlex.join([python, "/shared/m-as_pyxis.py", script, "get"])
    release = shlex.join([python, "/shared/m-as_pyxis.py", script, "release"])
    return f"PATH=/shared/m-bin:$PATH; export PATH; {get} docker://x/y:$SLURM_JOB_ID", release


TRAPS = {
    "folder of all": "mkdir -m 777 {}",
    "folder with an image": "mkdir -m 755 {}; cp /mnt/share/tiny.sqsh {}/image.sqsh",
    "link to alice's home": "ln -sfn /home/alice {}",
    "link to alice's folder": "ln -sfn /shared/alice {}",
    "link to nothing": "ln -sfn /nowhere/x {}",
    "link to itself": "ln -sfn {} {}",
    "FIFO": "mkfifo {}",
    "file": "touch {}",
}


@pytest.mark.parametrize("kind", TRAPS)
@pytest.mark.parametrize("parents", [("/var/tmp",), ("/tmp", "/var/tmp")])
def test_folders_made_beforehand_for_anothers_importer(arena, pyxis, kind, parents):
    """Mallory guesses alice's folder for imports and makes it first, in one place or in both."""
    get, release = pyxis
    number, uid = arena.newest_job() + 1, arena.uid("alice")
    traps = [f"{p}/bootseer-import-{uid}-n1-{number}.0" for p in parents]
    arena.sh("; ".join(TRAPS[kind].replace("{}", trap) for trap in traps))
    try:
        command = f"{get} > /shared/alice/got; {release}; {release}; true"
        job, code, stderr = arena.ask_for_job("--bootseer=i", user="alice", command=command)
        assert (job, code) == (number, 0)
        assert "Traceback" not in stderr, stderr
        got = (arena.cluster.shared / "alice/got").read_text()
        assert got.endswith("/image.sqsh\n"), (got, stderr)
        assert not any(got.startswith(f"{trap}/") for trap in traps), (got, stderr)
        assert not (arena.cluster.shared / "alice/image.sqsh").exists()
        assert not (arena.cluster.state_dir / "home/alice/image.sqsh").exists()
    finally:
        arena.sh("; ".join(f"rm -rf {trap}" for trap in traps))


def test_very_many_folders_made_beforehand(arena, pyxis):
    """Those of the next three hundred jobs and their first steps."""
    get, release = pyxis
    number, uid = arena.newest_job(), arena.uid("alice")
    name = f"/var/tmp/bootseer-import-{uid}-n1-$n.$s"
    steps = f"for s in 0 1 batch; do mkdir -m 777 {name}; done"
    arena.sh(f"for n in $(seq {number} {number + 300}); do {steps}; done")
    try:
        for _ in range(3):
            command = f"{get} > /shared/alice/got && {release}"
            _, code, stderr = arena.ask_for_job("--bootseer=i", user="alice", command=command)
            assert code == 0 and "Traceback" not in stderr, stderr
            got = (arena.cluster.shared / "alice/got").read_text()
            made = re.match(r"/var/tmp/bootseer-import-\d+-n1-[0-9.]+(-[0-9a-f]{16})/", got)
            assert made, (got, stderr)
    finally:
        arena.sh(f"rm -rf /var/tmp/bootseer-import-{uid}-n1-*")


def test_an_import_of_something_that_is_no_image(arena, pyxis):
    """Enroot's result is a FIFO, a link to root's file or a device, or nothing: told, not hung."""
    get, release = pyxis
    enroot = arena.cluster.shared / "m-bin/enroot"
    clear = f"rm -rf /var/tmp/bootseer-import-{arena.uid('mallory')}-n1-$SLURM_JOB_ID.*"
    for make in ("mkfifo", "ln -s /shared/roots", "mkdir", "ln -s /dev/zero", "true"):
        enroot.write_text(f'#!/bin/sh\n{make} "$3"\nexit 0\n')
        job, code, stderr = arena.ask_for_job(
            "--bootseer=i", command=f"timeout 40 sh -c '{get}'; {release}; {clear}; true"
        )
        assert code == 0 and "Traceback" not in stderr, (make, stderr)
        wait_until(lambda job=job: not arena.ours(job), "its end", timeout_s=40)


def test_alices_groups_store_is_not_mallorys(arena):
    """env.shared names one folder, which all may write to, for alice's group and for mallory's."""
    arena.cluster.run(["sh", "-c", "mkdir -p -m 2777 /shared/m-group"])
    with arena.settings(
        env={"shared": '["alice=file:///shared/m-group", "mallory=file:///shared/m-group"]'}
    ):
        make = "mkdir -p /local/m/e; echo bad > /local/m/e/x"
        run = ["env", "run", "--wait", "--target", "/local/m/e", "--", "sh", "-c"]
        publish = shlex.join([site.bootseer(), *run, make])
        with arena.shell("--bootseer=m") as job:
            job.run(publish, 60)
        arena.sh(
            f"k=$(ls ~/.bootseer/env/snapshots | head -1);"
            f"{site.bootseer()} env share $k --group mallory;"
            "chmod -R a+rX /shared/m-group; rm -rf /local/m/e",
            check=False,
        )
        arena.sh("rm -rf /local/m; mkdir -m 777 /local/m")
        with arena.shell("--bootseer=a", user="alice") as job:
            said = job.run(publish.replace("--wait", "--wait --no-capture"), 60)
        assert "without running the command" not in said.text
        assert "mounted" not in said.text and "unpacked" not in said.text
    arena.cluster.run(["rm", "-rf", "/shared/m-group"])
    arena.cluster.run(["rm", "-rf", "/local/m"], node="n1")


def test_names_of_alices_images_cannot_be_taken_in_her_own_store(arena):
    """Mallory writes, links and renames in alice's store, in every folder that there is."""
    store = "/home/alice/.bootseer"
    for folder in ("", "/plans", "/images", "/image-names", "/hot", "/env"):
        for attempt in (
            f"touch {store}{folder}/x",
            f"mv {store}{folder} {store}-x",
            f"ln -s /etc {store}{folder}/y",
        ):
            assert arena.sh(attempt, check=False).returncode != 0

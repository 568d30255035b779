"""Images that the administrator lists, mounted by the kernel for their jobs."""

import json

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.material.images import TinyImage

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

SERVED = ("--bootseer=rooted", "--bootseer-image=bootseer://rooted")
CACHE = "/var/cache/bootseer/images"


@pytest.fixture
def listed(lab):
    """Alice's image in her store, and in the list."""
    source = lab.cluster.shared / "tiny.sqsh"
    source.write_bytes((lab.images / "tiny.sqsh").read_bytes())
    argv = [site.bootseer(), "image", "import", str(source), "--name", "rooted", "--json"]
    digest = json.loads(lab.cluster.run(argv, user="alice").stdout)["digest"]
    config = lab.cluster.etc_bootseer / "bootseer.toml"
    before = config.read_text()
    config.write_text(before.replace("[image]\n", f'[image]\nkernel_mount = ["{digest}"]\n'))
    for node in lab.cluster.node_names:  # other tests have left what has the same content
        lab.cluster.run(["rm", "-rf", CACHE], node=node)
    yield digest
    config.write_text(before)


def test_a_listed_image_is_a_tree_once_the_node_has_all_of_it(lab, listed):
    first = lab.srun(*SERVED, command='echo "[$BOOTSEER_ROOTFS]"; cat $BOOTSEER_IMAGE >/dev/null')
    assert first.stdout == "[]\n[]\n"
    assert "not on this node yet" in lab.stages(first)["image.kernel"]["detail"]
    recipe = TinyImage()
    read = f"cat {' '.join(f'$BOOTSEER_ROOTFS{name}' for name in recipe.hot)} | sha256sum"
    second = lab.srun(*SERVED, "--bootseer-wait=10", command=f"{read}; ! touch $BOOTSEER_ROOTFS/x")
    digest = recipe.output.split()[-1]
    assert [line.split()[0] for line in second.stdout.splitlines()] == [digest] * 2
    assert "Read-only file system" in second.stderr
    for node in lab.cluster.node_names:
        stages = lab.stages(second, node)
        assert stages["image.kernel"]["detail"] == "mounted by the kernel"
        assert "files, decompressed" in stages["image.prefetch"]["detail"]
        assert stages["image.serve"]["bytes"] == 0
    assert lab.fallbacks(second) == set()
    lab.assert_clean()
    for node in lab.cluster.node_names:
        assert not [m for m in lab.cluster.mounts(node) if m.kind == "squashfs"]


def test_nobody_else_can_reach_the_tree(lab, listed):
    lab.srun(*SERVED, command="cat $BOOTSEER_IMAGE >/dev/null")
    job_id, running = lab.start_in_background(*SERVED, command="sleep 60")
    try:
        tree = f"/run/bootseer/jobs/{job_id}/root/rootfs"
        wait_until(
            lambda: any(m.mountpoint == tree for m in lab.cluster.mounts("n1")), "the tree mounted"
        )
        look = ["ls", tree]
        assert "data" in lab.cluster.run(look, user="alice", node="n1").stdout
        assert lab.cluster.run(look, user="mallory", node="n1", check=False).returncode != 0
        names = set(lab.cluster.run(["ps", "-eo", "comm="], node="n1").stdout.split())
        roles = {"bs-supervisor", "bs-serve_image", "bs-warm_up"}
        assert roles <= names, "not those of their parents"
    finally:
        lab.end(job_id, running)
    lab.assert_clean()


def test_what_is_not_listed_is_not_mounted(lab, listed):
    config = lab.cluster.etc_bootseer / "bootseer.toml"
    config.write_text(config.read_text().replace(listed, "0" * 64))
    for _ in range(2):
        job = lab.srun(*SERVED, command='echo "[$BOOTSEER_ROOTFS]"; cat $BOOTSEER_IMAGE >/dev/null')
        assert job.stdout == "[]\n[]\n"
    told = lab.fallbacks(job)
    if told == {"image.kernel"}:  # a prolog did not wait for a busy machine's agent to say so
        stages = [lab.stages(job, node) for node in lab.cluster.node_names]
        details = {one["image.kernel"]["detail"] for one in stages if "image.kernel" in one}
        told -= told if details <= {"not mounted within 3 s; the job starts without it"} else set()
    assert told == set()

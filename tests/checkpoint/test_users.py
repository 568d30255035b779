"""Real users of a checkpoint mount on a real HDFS: they save what they would save locally."""

import json
import sys
from pathlib import Path

import pytest
from bootseer_dev.bench.checkpoint import drop_caches
from bootseer_dev.files.checkpoint_mount import MOUNTPOINT, mounted
from bootseer_dev.files.fsx_rounds import USER

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.hdfs]

PROGRAMS = Path(__file__).parent / "programs"
TORCH = Path(sys.prefix) / "torch" / "bin" / "python"
"""What `make test-torch` makes."""


@pytest.fixture
def local(hdfs):
    return hdfs.cluster.run(["mktemp", "-d"], user=USER).stdout.strip()


def user(hdfs, python, program, what, folder, **env):
    # The checkout may be closed to other users, so they are given the text.
    argv = [str(python), "-c", (PROGRAMS / program).read_text(), what, folder]
    return hdfs.cluster.run(argv, user=USER, timeout_s=300, env=env or None, cwd="/")


def two_ranks(hdfs, folder):
    text = (PROGRAMS / "torch_user.py").read_text()
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    env = {**places, "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        hdfs.cluster.popen(
            [str(TORCH), "-c", text, "ranks", folder],
            user=USER,
            env={**env, "RANK": str(rank)},
            cwd="/",
            stderr=None,
        )
        for rank in range(2)
    ]
    for process in running:
        process.communicate(timeout=300)
    assert [process.returncode for process in running] == [0, 0]


def assert_same(hdfs, local, *names):
    for name in names:
        hdfs.cluster.run(["cmp", f"{MOUNTPOINT}/{name}", f"{local}/{name}"], user=USER)


def assert_striped(hdfs, url):
    bootseer = str(Path(sys.executable).with_name("bootseer"))
    told = hdfs.cluster.run([bootseer, "ckpt", "show", "--json", url], user=USER).stdout
    found = json.loads(told)
    assert found["kind"] == "striped" and found["whole"]


def check_one_user(hdfs, tree, local, python, program, names):
    with mounted(hdfs.cluster, tree, USER):
        user(hdfs, python, program, "save", MOUNTPOINT)
        user(hdfs, python, program, "save", local)
        user(hdfs, python, program, "load", MOUNTPOINT)
        drop_caches()
        user(hdfs, python, program, "load", MOUNTPOINT)
    with mounted(hdfs.cluster, tree, USER):
        user(hdfs, python, program, "load", MOUNTPOINT)
        assert_same(hdfs, local, *names)
    for name in names:
        assert_striped(hdfs, f"{tree}/{name}")


def test_numpy_and_safetensors(hdfs, tree, local):
    names = ("model.safetensors", "weights.npy", "mapped.npy")
    check_one_user(hdfs, tree, local, sys.executable, "numpy_user.py", names)


@pytest.mark.torch
def test_pytorch_and_safetensors(hdfs, tree, local):
    names = ("model.pt", "over.pt", "latest.pt", "model.safetensors")
    check_one_user(hdfs, tree, local, TORCH, "torch_user.py", names)
    with mounted(hdfs.cluster, tree, USER):
        assert_same(
            hdfs, local, "small.pt", *(f"many/layer{number}" for number in range(0, 100, 9))
        )


@pytest.mark.torch
def test_a_checkpoint_of_two_ranks(hdfs, tree, local):
    names = [f"{folder}/__{rank}_0.distcp" for folder in ("dcp", "background") for rank in (0, 1)]
    with mounted(hdfs.cluster, tree, USER):
        two_ranks(hdfs, MOUNTPOINT)
        two_ranks(hdfs, local)
    drop_caches()
    with mounted(hdfs.cluster, tree, USER):
        assert_same(hdfs, local, *names)
    for name in names:
        assert_striped(hdfs, f"{tree}/{name}")

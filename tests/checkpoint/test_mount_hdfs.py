"""A checkpoint mount over real HDFS daemons, some of which die: every byte is compared."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bootseer_dev.cluster.spec import HEAD
from bootseer_dev.files.checkpoint_mount import MOUNTPOINT, mounted
from bootseer_dev.files.fsx_rounds import USER

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.hdfs, pytest.mark.faults]

OTHER = "/media"
MIB = 1 << 20
SIZE_MIB = 64

WRITE = """
import hashlib, os, sys
path, size_mib, pause = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "pause"
whole = hashlib.sha256()
with open(path, "wb", buffering=0) as file:
    for number in range(size_mib):
        piece = os.urandom(1 << 20)
        whole.update(piece)
        file.write(piece)
        if pause and number == size_mib // 2:
            print("half", flush=True)
            sys.stdin.readline()
print(whole.hexdigest())
"""
READ = """
import hashlib, sys
whole = hashlib.sha256()
with open(sys.argv[1], "rb", buffering=0) as file:
    for number, piece in enumerate(iter(lambda: file.read(1 << 20), b"")):
        whole.update(piece)
        if len(sys.argv) > 2 and number == 2:
            print("begun", flush=True)
            sys.stdin.readline()
print(whole.hexdigest())
"""

UNTIL_COMPLETE = """
import os, sys
while os.getxattr(sys.argv[1], "user.bootseer.state") != b"complete":
    pass
"""

BACKWARDS = """
import os, sys
with open(sys.argv[1], "wb", buffering=0) as file:
    for number in reversed(range(int(sys.argv[2]))):
        file.seek(number << 20)
        file.write(os.urandom(1 << 20))
"""


def write(hdfs, name, size_mib=SIZE_MIB):
    argv = [sys.executable, "-P", "-c", WRITE, f"{MOUNTPOINT}/{name}", str(size_mib), ""]
    return hdfs.cluster.run(argv, user=USER, timeout_s=120).stdout.strip()


def read(hdfs, name):
    argv = [sys.executable, "-P", "-c", READ, f"{MOUNTPOINT}/{name}"]
    return hdfs.cluster.run(argv, user=USER, timeout_s=120).stdout.strip()


def start(hdfs, script, *arguments):
    """Start a program that stops on the way, and wait until it has."""
    argv = [sys.executable, "-P", "-c", script, *arguments]
    process = hdfs.cluster.popen(argv, user=USER, stdin=subprocess.PIPE, stderr=None)
    assert process.stdout.readline().strip() in ("half", "begun")
    return process


def finish(process):
    output, _ = process.communicate("go on\n", timeout=120)
    return output.strip()


def part_of(hdfs, path):
    """Return the path of a part; on a busy machine, a part may get no units, and is then none."""
    listed = hdfs.fs("-ls", "-C", "-R", f"{path}/.bootseer-parts").stdout.split()
    return next(part for part in listed if re.search(r"/\d{4}$", part))


def bootseer(hdfs, *arguments):
    argv = [str(Path(sys.executable).with_name("bootseer")), "ckpt", *arguments]
    return hdfs.cluster.run(argv, user=USER, timeout_s=120).stdout


def drop_caches():
    Path("/proc/sys/vm/drop_caches").write_text("1")


def test_what_is_written_is_read_and_striped(hdfs, tree):
    with mounted(hdfs.cluster, tree, USER):
        digest = write(hdfs, "file")
    with mounted(hdfs.cluster, tree, USER):
        assert read(hdfs, "file") == digest
        script = "import os; print(os.getxattr('/mnt/file', 'user.bootseer.layout').decode())"
        layout = hdfs.cluster.run([sys.executable, "-P", "-c", script], user=USER).stdout
    assert layout.startswith("striped unit=4194304 parts=")


def test_two_readers_on_a_node_fetch_it_once(hdfs, tree):
    names = hdfs.cluster.spec.datanode_names
    with mounted(hdfs.cluster, tree, USER):
        digest = write(hdfs, "file")
    with mounted(hdfs.cluster, tree, USER):
        before = sum(hdfs.traffic(name).read_bytes for name in names)
        assert read(hdfs, "file") == read(hdfs, "file") == digest
        sent = sum(hdfs.traffic(name).read_bytes for name in names) - before
    # The kernel may have let go of some of it between the two.
    assert SIZE_MIB * MIB <= sent <= 1.5 * SIZE_MIB * MIB


def test_a_datanode_killed_in_the_middle_of_a_read_is_not_noticed(hdfs, tree):
    with mounted(hdfs.cluster, tree, USER, "--fetch", json.dumps({"memory_bytes": 8 * MIB})):
        digest = write(hdfs, "file")
        drop_caches()
        reader = start(hdfs, READ, f"{MOUNTPOINT}/file", "pause")
        hdfs.stop("d1")
        try:
            assert finish(reader) == digest
        finally:
            hdfs.start_datanodes("d1")


def test_a_datanode_killed_in_the_middle_of_a_write_is_not_noticed(hdfs, tree):
    with mounted(hdfs.cluster, tree, USER):
        writer = start(hdfs, WRITE, f"{MOUNTPOINT}/file", str(SIZE_MIB), "pause")
        hdfs.stop("d2")
        try:
            digest = finish(writer)
            drop_caches()
            assert read(hdfs, "file") == digest
        finally:
            hdfs.start_datanodes("d2")


def test_a_namenode_that_is_gone_is_an_error_and_no_hanging_process(hdfs, tree):
    with mounted(hdfs.cluster, tree, USER, "--deadline", "2"):
        digest = write(hdfs, "file", 8)
        hdfs.stop(HEAD)
        try:
            argv = [sys.executable, "-P", "-c", "import os; os.listdir('/mnt/other')"]
            failed = hdfs.cluster.run(argv, user=USER, check=False, timeout_s=60)
            assert failed.returncode == 1 and "Input/output error" in failed.stderr
        finally:
            hdfs.start_namenode()
    with mounted(hdfs.cluster, tree, USER):
        assert read(hdfs, "file") == digest


def test_a_damaged_replica_is_not_read(hdfs, tree):
    with mounted(hdfs.cluster, tree, USER):
        digest = write(hdfs, "file")
        path = tree.removeprefix(hdfs.url)
        hdfs.replicas(part_of(hdfs, path))[0].damage()
        drop_caches()
        assert read(hdfs, "file") == digest


def test_a_part_that_is_deleted_is_an_error_that_names_it(hdfs, tree):
    with mounted(hdfs.cluster, tree, USER):
        write(hdfs, "file")
        path = tree.removeprefix(hdfs.url)
        hdfs.fs("-rm", "-skipTrash", part_of(hdfs, path))
    with mounted(hdfs.cluster, tree, USER):
        argv = [sys.executable, "-P", "-c", READ, f"{MOUNTPOINT}/file"]
        failed = hdfs.cluster.run(argv, user=USER, check=False, timeout_s=60)
    assert failed.returncode == 1 and "Input/output error" in failed.stderr


def test_a_quota_that_is_used_up_is_an_error_of_the_write(hdfs, tree):
    hdfs.admin("-setSpaceQuota", "600m", tree.removeprefix(hdfs.url))
    with mounted(hdfs.cluster, tree, USER):
        argv = [sys.executable, "-P", "-c", WRITE, f"{MOUNTPOINT}/file", "600", ""]
        failed = hdfs.cluster.run(argv, user=USER, check=False, timeout_s=120)
        assert failed.returncode == 1 and "quota" in failed.stderr.lower()
    assert hdfs.fs("-ls", "-C", tree.removeprefix(hdfs.url)).stdout.split() in (
        [],
        [f"{tree.removeprefix(hdfs.url)}/.bootseer-parts"],
    )


def test_a_namenode_that_is_restarted_is_not_noticed(hdfs, tree):
    with mounted(hdfs.cluster, tree, USER, "--fetch", json.dumps({"memory_bytes": 8 * MIB})):
        first = write(hdfs, "first")
        drop_caches()
        reader = start(hdfs, READ, f"{MOUNTPOINT}/first", "pause")
        writer = start(hdfs, WRITE, f"{MOUNTPOINT}/second", str(SIZE_MIB), "pause")
        hdfs.stop(HEAD)
        hdfs.start_namenode()
        assert finish(reader) == first
        second = finish(writer)
    with mounted(hdfs.cluster, tree, USER):
        assert [read(hdfs, name) for name in ("first", "second")] == [first, second]


def test_of_two_writers_of_one_name_the_last_to_end_wins(hdfs, tree):
    local = hdfs.cluster.run(["mktemp"], user=USER).stdout.strip()
    with mounted(hdfs.cluster, tree, USER):
        argv = [sys.executable, "-P", "-c", WRITE, local, str(SIZE_MIB), ""]
        other = hdfs.cluster.run(argv, user=USER).stdout.strip()
        writer = start(hdfs, WRITE, f"{MOUNTPOINT}/file", str(SIZE_MIB), "pause")
        bootseer(hdfs, "import", "--quiet", local, f"{tree}/file")
        elsewhere = bootseer(hdfs, "show", "--json", f"{tree}/file")
        digest = finish(writer)
    with mounted(hdfs.cluster, tree, USER):
        assert read(hdfs, "file") == digest != other
    assert json.loads(elsewhere)["size_bytes"] == SIZE_MIB * MIB
    bootseer(hdfs, "verify", "--quiet", f"{tree}/file")
    assert bootseer(hdfs, "gc", "--dry-run", "--older-than", "0s", "--quiet", tree) == ""


def test_a_full_disk_for_what_is_written_out_of_order_is_an_error_of_the_write(hdfs, tree):
    small = hdfs.cluster.run(["mktemp", "-d"], user=USER).stdout.strip()
    hdfs.cluster.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=1777", "none", small])
    try:
        with mounted(hdfs.cluster, tree, USER, "--write", json.dumps({"spill_dir": small})):
            digest = write(hdfs, "whole", 8)
            argv = [sys.executable, "-P", "-c", BACKWARDS, f"{MOUNTPOINT}/file", str(SIZE_MIB)]
            failed = hdfs.cluster.run(argv, user=USER, check=False, timeout_s=120)
            assert failed.returncode == 1 and "No space left on device" in failed.stderr
            assert read(hdfs, "whole") == digest
            # In order, nothing is kept there.
            digest = write(hdfs, "file")
        with mounted(hdfs.cluster, tree, USER):
            assert read(hdfs, "file") == digest
    finally:
        hdfs.cluster.run(["umount", small])


@pytest.mark.parametrize("after_mib", [1, 20, SIZE_MIB // 2])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_server_that_is_killed_leaves_a_file_as_it_was(hdfs, tree, after_mib, is_there):
    digest = ""
    if is_there:
        with mounted(hdfs.cluster, tree, USER):
            digest = write(hdfs, "file", 8)
    with mounted(hdfs.cluster, tree, USER) as server:
        writer = start(hdfs, WRITE, f"{MOUNTPOINT}/file", str(2 * after_mib), "pause")
        hdfs.cluster.run(["kill", "-9", str(server)])
        output, _ = writer.communicate("go on\n", timeout=120)
        assert writer.returncode == 1 and not output
    with mounted(hdfs.cluster, tree, USER):
        assert hdfs.cluster.run(["ls", MOUNTPOINT], user=USER).stdout.split() == (
            ["file"] if is_there else []
        )
        assert not is_there or read(hdfs, "file") == digest
    bootseer(hdfs, "gc", "--older-than", "0s", "--quiet", tree)
    left = hdfs.fs("-ls", "-C", "-R", tree.removeprefix(hdfs.url)).stdout
    assert ".bootseer-parts/making-" not in left


# When what is written shows


CLOSE = """
import hashlib, os, sys
path, size_mib = sys.argv[1], int(sys.argv[2])
content = os.urandom(1 << 20) * size_mib
file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
os.write(file, content)
if "sync" in sys.argv:
    os.fsync(file)
print("half", flush=True)
if sys.stdin.readline().strip() == "die":
    os.kill(os.getpid(), 9)
try:
    os.close(file)
    print("closed", hashlib.sha256(content).hexdigest(), flush=True)
except OSError as error:
    print(error.strerror, hashlib.sha256(content).hexdigest(), flush=True)
sys.stdin.readline()
"""


def names(hdfs, tree):
    """List what HDFS itself shows in a tree."""
    found = hdfs.fs("-ls", "-C", tree.removeprefix(hdfs.url)).stdout.split()
    return {path.rpartition("/")[2] for path in found} - {".bootseer-parts"}


def test_another_mount_sees_a_file_as_soon_as_close_has_returned(hdfs, tree):
    with (
        mounted(hdfs.cluster, tree, USER),
        mounted(hdfs.cluster, tree, USER, mountpoint=OTHER),
    ):
        for number in range(5):
            writer = start(hdfs, CLOSE, f"{MOUNTPOINT}/{number}", "9")
            assert names(hdfs, tree) == {str(other) for other in range(number)}
            writer.stdin.write("\n")
            writer.stdin.flush()
            said, digest = writer.stdout.readline().split()
            assert said == "closed"
            # The writer is still there, and has not let go of anything else.
            argv = [sys.executable, "-P", "-c", READ, f"{OTHER}/{number}"]
            assert hdfs.cluster.run(argv, user=USER).stdout.strip() == digest
            finish(writer)


@pytest.mark.parametrize("size_mib", [1, 9, 40])
@pytest.mark.parametrize("synced", ["", "sync"])
def test_a_killed_writer_leaves_what_was_there_before(hdfs, tree, size_mib, synced):
    with mounted(hdfs.cluster, tree, USER):
        digest = write(hdfs, "old", 8)
        for name in ("old", "new"):
            writer = start(hdfs, CLOSE, f"{MOUNTPOINT}/{name}", str(size_mib), synced)
            writer.communicate("die\n", timeout=60)
            assert writer.returncode != 0
        assert read(hdfs, "old") == digest
        assert hdfs.cluster.run(["ls", MOUNTPOINT], user=USER).stdout.split() == ["old"]
    assert names(hdfs, tree) == {"old"}
    with mounted(hdfs.cluster, tree, USER):
        assert read(hdfs, "old") == digest


@pytest.mark.parametrize("synced", ["", "sync"])
def test_without_a_namenode_close_fails_and_the_file_is_there_after_it_is_back(hdfs, tree, synced):
    options = ("--deadline", "2", "--write", json.dumps({"stuck_s": 3, "recovery_s": 3}))
    with mounted(hdfs.cluster, tree, USER, *options):
        writer = start(hdfs, CLOSE, f"{MOUNTPOINT}/file", "40", synced)
        hdfs.stop(HEAD)
        try:
            writer.stdin.write("\n")
            writer.stdin.flush()
            said, _, digest = writer.stdout.readline().strip().rpartition(" ")
            assert said == "Input/output error"
        finally:
            hdfs.start_namenode()
        finish(writer)
        argv = [sys.executable, "-P", "-c", UNTIL_COMPLETE, f"{MOUNTPOINT}/file"]
        hdfs.cluster.run(argv, user=USER, timeout_s=180)
        assert names(hdfs, tree) == {"file"}
    with mounted(hdfs.cluster, tree, USER):
        assert read(hdfs, "file") == digest

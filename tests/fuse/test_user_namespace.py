"""Mounts whose superblock is a user's: what it says of rights holds for nobody outside."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bootseer.errors import Unavailable
from bootseer.fuse import root_mounts as attaching
from bootseer.fuse.root_mounts import MountOptions, attach, detach, overlay, show, uncover

pytestmark = [pytest.mark.root, pytest.mark.fuse]

USER, GROUP, OTHER = 20001, 20002, 20003
CAPABILITY = struct.pack("<5I", 0x02000001, 1, 0, 0, 0)
"""CAP_CHOWN, effective: version 2 of security.capability."""


@pytest.fixture
def ground(tmp_path: Path):
    """Folders that a user can reach, and an overlay over one of them, for USER."""
    base = Path("/var/tmp", f"bootseer-{tmp_path.name}-{os.getpid()}")
    for name in ("lower", "scratch/upper", "scratch/work", "over"):
        (base / name).mkdir(parents=True)
    (base / "scratch").chmod(0o700)
    for name in ("lower", "scratch/upper", "scratch/work"):
        os.chown(base / name, USER, GROUP)
    yield base
    shutil.rmtree(base)


@pytest.fixture
def over(ground: Path):
    overlay(ground / "over", ground / "lower", ground / "scratch", USER, GROUP, [GROUP, OTHER])
    yield ground / "over"
    uncover(ground / "over")


def as_user(*argv: str, uid: int = USER, gid: int = GROUP) -> subprocess.CompletedProcess[str]:
    ids = ["setpriv", f"--reuid={uid}", f"--regid={gid}", f"--groups={OTHER}"]
    return subprocess.run([*ids, *argv], capture_output=True, text=True, check=False)


def test_a_set_user_id_program_gives_no_rights(ground: Path, over: Path) -> None:
    program = ground / "scratch/upper/id"
    shutil.copy("/usr/bin/id", program)
    os.chown(program, USER, GROUP)
    os.chmod(program, 0o6755)
    (ground / "scratch").chmod(0o755)
    for uid in (OTHER, 0):
        assert as_user(str(program), "-u", uid=uid).stdout.strip() == str(USER)  # it would count
        assert as_user(str(over / "id"), "-u", uid=uid).stdout.strip() == str(uid)


def test_neither_capabilities_nor_devices_count_in_a_users_own_namespace(
    ground: Path, over: Path
) -> None:
    """Not even when its owner has taken nosuid and nodev off, and a root's process goes there."""
    upper = ground / "scratch/upper"
    shutil.copy("/usr/bin/grep", upper / "grep")
    os.chmod(upper / "grep", 0o755)
    os.setxattr(upper / "grep", "security.capability", CAPABILITY)
    os.mknod(upper / "null", stat.S_IFCHR, os.makedev(1, 3))
    os.chmod(upper / "null", 0o666)
    look = (
        "{0}/grep CapEff: /proc/self/status; (echo x > {0}/null) 2>/dev/null && echo opened; true"
    )
    (ground / "scratch").chmod(0o755)
    counting = as_user("sh", "-c", look.format(upper)).stdout.split()
    assert int(counting[1], 16) == 1 and counting[2] == "opened"  # outside of the overlay they do

    target = ground / "theirs"
    target.mkdir()
    ids = ["setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups"]
    script = f"echo in; read _; mount -o remount,bind,suid,dev,rw {target}; echo $?; read _"
    process = subprocess.Popen(
        [*ids, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "in\n"
        namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY)
        folder = os.open(f"/proc/{process.pid}/root{target}", os.O_PATH)
        show(over, namespace, folder)
        os.close(namespace)
        os.close(folder)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0\n"  # the flags are gone
        enter = ["nsenter", f"--target={process.pid}", "--mount", *ids]
        for inside in (enter, ["nsenter", f"--target={process.pid}", "--mount", "--user"]):
            argv = [*inside, "sh", "-c", look.format(target)]
            seen = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
            assert "opened" not in seen
            if inside is enter:
                assert int(seen[1], 16) == 0
        process.stdin.close()


def test_files_can_belong_to_the_users_groups(over: Path) -> None:
    script = "import os, sys; open('own', 'w').close(); os.chown('own', -1, int(sys.argv[1]))"
    run = f'cd {over} && exec {sys.executable} -c "{script}" {OTHER}'
    assert as_user("sh", "-c", run).returncode == 0
    status = os.stat(over / "own")
    assert (status.st_uid, status.st_gid) == (USER, OTHER)


@pytest.mark.parametrize("apart", [7, 1], ids=["apart", "in a row"])
@pytest.mark.parametrize("count", [200, 2000])
def test_users_in_many_groups_have_those_that_the_kernel_can_map(
    ground: Path, count: int, apart: int
) -> None:
    """It takes less than 4 KiB of a map: some 150 lines with numbers like these."""
    groups = [1_000_000_000 + number * apart for number in range(count)]
    over, lower, scratch = (ground / name for name in ("over", "lower", "scratch"))
    overlay(over, lower, scratch, USER, GROUP, [*groups, groups[0]])
    try:
        made = [
            as_user("touch", str(over / str(gid)), gid=gid).returncode == 0
            for gid in (GROUP, groups[0], groups[-1])
        ]
        assert made == [True, True, apart == 1]
    finally:
        uncover(over)


def test_the_overlay_has_mode_and_time_of_the_lower_folder(ground: Path) -> None:
    os.chmod(ground / "lower", 0o2751)
    os.utime(ground / "lower", ns=(10**18 + 7, 10**18 + 7))
    overlay(ground / "over", ground / "lower", ground / "scratch", USER, GROUP)
    try:
        status = os.stat(ground / "over")
        assert stat.S_IMODE(status.st_mode) == 0o751
        assert status.st_mtime_ns == 10**18 + 7
    finally:
        uncover(ground / "over")


def test_nothing_is_written_back_when_the_overlay_is_taken_away(ground: Path, over: Path) -> None:
    """All that is dirty on the disk would be, whoever's. Such folders are used once."""
    with open("/proc/self/mounts") as file:
        (options,) = (line.split()[3] for line in file if line.split()[1] == str(over))
    assert {"volatile", "fsync=volatile"} & set(options.split(","))  # as kernels have it
    uncover(over)
    with pytest.raises(OSError):
        overlay(over, ground / "lower", ground / "scratch", USER, GROUP)
    shutil.rmtree(ground / "scratch/work/work")
    overlay(over, ground / "lower", ground / "scratch", USER, GROUP)


def test_a_lower_folder_of_anothers_is_refused(ground: Path) -> None:
    os.chmod(ground / "lower", 0o700)
    os.chown(ground / "lower", OTHER, OTHER)
    (ground / "lower/below").mkdir()
    with pytest.raises(PermissionError):
        overlay(ground / "over", ground / "lower/below", ground / "scratch", USER, GROUP)
    (ground / "lower").chmod(0o755)
    shutil.rmtree(ground / "lower/below")
    (ground / "lower/below").symlink_to("/etc")
    with pytest.raises(NotADirectoryError):
        overlay(ground / "over", ground / "lower/below", ground / "scratch", USER, GROUP)


def test_nothing_is_left_open(ground: Path) -> None:
    before = os.listdir("/proc/self/fd")
    overlay(ground / "over", ground / "lower", ground / "scratch", USER, GROUP)
    uncover(ground / "over")
    connection = attach(ground / "over", USER, GROUP, MountOptions())
    os.close(connection)
    detach(ground / "over")
    with pytest.raises(OSError):
        overlay(ground / "over", ground / "missing", ground / "scratch", USER, GROUP)
    assert os.listdir("/proc/self/fd") == before


def test_where_there_are_no_namespaces(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary mount takes its place, but not of what is shown in a user's own namespaces."""

    library = SimpleNamespace(**{name: getattr(attaching.lib, name) for name in dir(attaching.lib)})
    library.bs_mount_fuse_for = lambda *_: -errno.ENOSPC  # as with user.max_user_namespaces=0
    monkeypatch.setattr(attaching, "lib", library)
    with pytest.raises(Unavailable, match="No space left"):
        attach(ground / "over", USER, GROUP, MountOptions(confined=True))
    connection = attach(ground / "over", USER, GROUP, MountOptions())
    os.close(connection)
    detach(ground / "over")

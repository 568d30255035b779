"""What programs expect of a directory, on the mount of a checkpoint tree."""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bootseer_dev.files import checkpoint_mount, posix_suite
from bootseer_dev.files.served import served

from bootseer.fuse.root_mounts import MountOptions

pytestmark = [pytest.mark.root, pytest.mark.fuse]

WHO = pwd.getpwnam("nobody")
DEVIATIONS = {
    # Others must see the new file at once, and HDFS has no second name for the old one.
    "a_file_renamed_over_stays_for_who_has_it_open": "Stale file handle",
    # A store's names have no control characters; see docs/reference/checkpoint-mount.md.
    "names_are_bytes": "Invalid argument",
}


RIGHTS = """
import errno, os, sys
os.chdir(sys.argv[1])
def fails(number, call, *arguments):
    try: call(*arguments)
    except OSError as error: assert error.errno == number, error
    else: raise AssertionError(f"{call} {arguments}")
assert os.access("others", os.W_OK) and os.access("closed", os.R_OK)
fails(errno.EACCES, os.listdir, "closed")
fails(errno.EACCES, os.mkdir, "others/new")
file = os.open("others/new", os.O_CREAT | os.O_WRONLY)
assert os.write(file, b"content") == 7
fails(errno.EACCES, os.close, file)
file = os.open("own", os.O_CREAT | os.O_RDWR)
fails(errno.ENOSPC, os.ftruncate, file, 1 << 40)
os.write(file, b"content")
os.close(file)
fails(errno.EPERM, os.chown, "own", 0, 0)
fails(errno.ENOTSUP, os.setxattr, "own", "user.own", b"")
assert os.getxattr("own", "user.bootseer.state") == b"complete"
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    number = tmp_path_factory.getbasetemp().name
    mountpoint, store = Path(f"/run/bootseer-{number}"), Path(f"/var/tmp/bootseer-{number}")
    mountpoint.mkdir()
    store.mkdir()
    os.chown(store, WHO.pw_uid, WHO.pw_gid)
    program = ["-m", checkpoint_mount.MODULE, "--url", store.as_uri()]
    try:
        with served(program, mountpoint, WHO.pw_name, MountOptions(checks_modes=False)):
            yield posix_suite.run(mountpoint, WHO.pw_uid, WHO.pw_gid)
        assert os.listdir(store) == [".bootseer-parts"] or os.listdir(store) == []
        parts = store / ".bootseer-parts"
        assert set(parts.rglob("*")) <= {parts / "sizes"}  # without a mark in it
    finally:
        shutil.rmtree(store)
        mountpoint.rmdir()


@pytest.mark.parametrize("name", posix_suite.EXPECTATIONS)
def test_an_expectation_is_met(findings, name):
    if name in DEVIATIONS:
        assert DEVIATIONS[name] in findings[name]
    else:
        assert findings[name] is None


def test_rights_are_the_store_s_and_show_when_something_is_done():
    name = f"bootseer-rights-{os.getpid()}"
    mountpoint, store = Path("/run") / name, Path("/var/tmp") / name
    for folder, mode in ((store, 0o755), (store / "others", 0o755), (store / "closed", 0o700)):
        folder.mkdir(mode=mode)
    mountpoint.mkdir()
    os.chown(store, WHO.pw_uid, WHO.pw_gid)
    program = ["-m", checkpoint_mount.MODULE, "--url", store.as_uri()]
    argv = [sys.executable, "-P", "-c", RIGHTS, str(mountpoint)]
    try:
        with served(program, mountpoint, WHO.pw_name, MountOptions(checks_modes=False)):
            subprocess.run(
                argv, user=WHO.pw_uid, group=WHO.pw_gid, extra_groups=[], cwd="/", check=True
            )
        assert os.listdir(store / "others") == []
        assert (store / "own").read_bytes() == b"content"
    finally:
        shutil.rmtree(store)
        mountpoint.rmdir()

"""What programs expect of a directory, on the mount of a checkpoint tree."""

import os
import pwd
import shutil
from pathlib import Path

import pytest

from bootseer.testing import checkpoint_mount, posix_suite
from bootseer.testing.served import served

pytestmark = [pytest.mark.root, pytest.mark.fuse]

WHO = pwd.getpwnam("nobody")
DEVIATIONS = {
    # Others must see the new file at once, and HDFS has no second name for the old one.
    "a_file_renamed_over_stays_for_who_has_it_open": "Stale file handle",
    # A store's names have no control characters; see docs/user.md.
    "names_are_bytes": "Invalid argument",
}


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    number = tmp_path_factory.getbasetemp().name
    mountpoint, store = Path(f"/run/bootseer-{number}"), Path(f"/var/tmp/bootseer-{number}")
    mountpoint.mkdir()
    store.mkdir()
    os.chown(store, WHO.pw_uid, WHO.pw_gid)
    program = ["-m", checkpoint_mount.MODULE, "--url", store.as_uri()]
    try:
        with served(program, mountpoint, WHO.pw_name):
            yield posix_suite.run(mountpoint, WHO.pw_uid, WHO.pw_gid)
        assert os.listdir(store) == [".bootseer-parts"] or os.listdir(store) == []
        assert list((store / ".bootseer-parts").glob("*")) == []
    finally:
        shutil.rmtree(store)
        mountpoint.rmdir()


@pytest.mark.parametrize("name", posix_suite.EXPECTATIONS)
def test_an_expectation_is_met(findings, name):
    if name in DEVIATIONS:
        assert DEVIATIONS[name] in findings[name]
    else:
        assert findings[name] is None

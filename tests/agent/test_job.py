"""Folders that root writes to: what users may have put in their place."""

import os
import shutil
from pathlib import Path

import pytest

from bootseer.agent.node import spool
from bootseer.agent.node.job import Job, JobFolder
from bootseer.errors import Denied

pytestmark = [pytest.mark.root]

USER = 65534
ACCOUNT = (1, 1)
"""In place of the service account: uid and gid."""
JOB = Job(7, "c", "n1", USER, USER, "nobody", "/", "k", False, "", 1.0, 1)


def _mine(path):
    path.mkdir()


def _users(path):
    path.mkdir()
    os.chown(path, USER, USER)


def _open_to(mode):
    def make(path):
        path.mkdir()
        path.chmod(mode)

    return make


def _link(path):
    target = path.parent / "elsewhere"
    target.mkdir()
    path.symlink_to(target)


def _file(path):
    path.touch()


WRONG = {
    "a user's": _users,
    "open to all": _open_to(0o777),
    "sticky": _open_to(0o1777),
    "open to its group": _open_to(0o775),
    "a link": _link,
    "a file": _file,
    "a FIFO": os.mkfifo,
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("level", ["run directory", "its jobs"])
def test_a_job_is_claimed_in_roots_folders_only(tmp_path, kind, level):
    run_dir = tmp_path / "run"
    if level == "its jobs":
        run_dir.mkdir()
    WRONG[kind](run_dir if level == "run directory" else run_dir / "jobs")
    with pytest.raises((Denied, OSError)):
        JobFolder.of(str(run_dir), 7).claim()
    assert not any(path.name == "7" for path in tmp_path.rglob("*"))


def test_a_job_is_claimed_once_and_closed_to_others(tmp_path):
    folder = JobFolder.of(f"{tmp_path}/run", 7)
    before = os.umask(0o002)
    try:
        assert folder.claim()
        assert not folder.claim()
        folder.write("job.json", JOB._asdict())
        folder.make_state(os.getuid(), os.getgid())
        folder.append_event("{}")
    finally:
        os.umask(before)
    assert folder.job() == JOB
    assert os.stat(folder.path).st_mode & 0o777 == 0o711
    assert os.stat(folder.state).st_mode & 0o777 == 0o700
    for path in (Path(folder.path, "job.json"), Path(folder.events)):
        assert path.stat().st_mode & 0o777 == 0o600
    for path in (tmp_path / "run", tmp_path / "run/jobs"):
        assert path.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("text", ["", "[]", "{", '{"job_id": 1}', '{"x": 1}', "\xff", "null"])
def test_a_folder_with_no_job_in_it_has_none(tmp_path, text):
    (tmp_path / "job.json").write_text(text, encoding="latin-1")
    assert JobFolder(str(tmp_path)).job() is None


def test_the_supervisor_has_a_folder_of_its_own(tmp_path):
    folder = JobFolder.of(f"{tmp_path}/run", 7)
    folder.claim()
    for _ in range(2):
        folder.make_state(*ACCOUNT)
    status = os.stat(folder.state)
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (*ACCOUNT, 0o700)
    for path in (folder.events, folder.rooted, folder.named, folder.shown(1)):
        assert os.path.dirname(path) == folder.state


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("../job.json", path)])
def test_what_it_puts_in_place_of_a_file_is_not_read(tmp_path, make):
    folder = JobFolder.of(f"{tmp_path}/run", 7)
    folder.claim()
    folder.write("job.json", JOB._asdict())
    folder.make_state(*ACCOUNT)
    make(f"{folder.state}/state.json")
    assert folder.read("state/state.json") is None


RUN = {"run": "c.7", "node": "n1", "started_ns": 1}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("level", ["cache", "unpublished", "user"])
def test_events_wait_in_folders_that_are_nobody_elses(tmp_path, kind, level):
    """The node's folder is root's, and those in it are whose process keeps the events."""
    cache = tmp_path / "cache"
    unpublished = cache / "unpublished"
    if level == "user":
        spool.make(str(cache), os.getuid(), os.getgid())
    folder = {"cache": cache, "unpublished": unpublished, "user": unpublished / str(USER)}[level]
    folder.parent.mkdir(parents=True, exist_ok=True)
    WRONG[kind](folder)
    with pytest.raises((Denied, OSError)):
        spool.make(str(cache), os.getuid(), os.getgid())
        assert level != "cache"
        spool.put(str(cache), USER, RUN)
    assert not list(tmp_path.rglob("*.json"))
    if kind not in ("a file", "a FIFO") and (unpublished / str(USER)).exists():
        with pytest.raises(Denied):
            spool.take(str(cache), USER)


def test_the_service_account_keeps_events_where_root_lets_it(tmp_path):
    for parent in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(parent, 0o755)
    cache = tmp_path / "cache"
    for _ in range(2):
        spool.make(str(cache), *ACCOUNT)
    os.setegid(ACCOUNT[1])
    os.seteuid(ACCOUNT[0])
    try:
        spool.put(str(cache), USER, RUN)
        assert [run for _, run in spool.take(str(cache), USER)] == [RUN]
        with pytest.raises(OSError, match="Permission denied"):
            (cache / "other").mkdir()
    finally:
        os.seteuid(0)
        os.setegid(0)
    for path in (cache / "unpublished", cache / "unpublished" / str(USER)):
        assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (ACCOUNT[0], 0)


def test_what_waits_fits_into_one_message(tmp_path):
    spool.make(str(tmp_path), os.getuid(), os.getgid())
    for number in range(40):
        run = {"run": f"c.{number:03d}", "node": "n1", "started_ns": 1, "x": "x" * 3_000_000}
        spool.put(str(tmp_path), USER, run)
    taken = spool.take(str(tmp_path), USER)
    assert [run["run"] for _, run in taken] == [f"c.{n:03d}" for n in range(8, 13)]
    for path, _ in taken:
        path.unlink()
    assert spool.take(str(tmp_path), USER)[0][1]["run"] == "c.013"
    shutil.rmtree(tmp_path / "unpublished")
    assert spool.take(str(tmp_path), USER) == []

"""Folders that root writes to: what users may have put in their place."""

import os
import shutil
from pathlib import Path

import pytest

from bootseer.agent.broker.folders import make_folders
from bootseer.agent.node import registry
from bootseer.agent.node.job import Job, JobFolder
from bootseer.agent.supervisor import spool
from bootseer.errors import Denied

pytestmark = [pytest.mark.root]

USER = 65534
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
        registry.claim(JobFolder.of(str(run_dir), 7))
    assert not any(path.name == "7" for path in tmp_path.rglob("*"))


def test_a_job_is_claimed_once_and_closed_to_others(tmp_path):
    folder = JobFolder.of(f"{tmp_path}/run", 7)
    before = os.umask(0o002)
    try:
        assert registry.claim(folder)
        assert not registry.claim(folder)
        folder.write("job.json", JOB._asdict())
        os.mkdir(folder.state, 0o700)
        spool.append_event(folder.events, "{}")
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
def test_job_returns_none_without_a_file(tmp_path, text):
    (tmp_path / "job.json").write_text(text, encoding="latin-1")
    assert JobFolder(str(tmp_path)).job() is None


def test_the_supervisor_writes_to_a_separate_folder():
    folder = JobFolder("/run/bootseer/jobs/7")
    for path in (folder.events, folder.rooted, folder.named, folder.shown(1)):
        assert os.path.dirname(path) == folder.state


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("../job.json", path)])
def test_other_file_types_are_not_read(tmp_path, make):
    folder = JobFolder.of(f"{tmp_path}/run", 7)
    registry.claim(folder)
    folder.write("job.json", JOB._asdict())
    os.mkdir(folder.state)
    make(f"{folder.state}/state.json")
    assert folder.read("state/state.json") is None


RUN = {"run": "c.7", "node": "n1", "started_ns": 1}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("level", ["unpublished", "user"])
def test_events_wait_in_private_folders(tmp_path, kind, level):
    unpublished = tmp_path / "unpublished"
    folder = {"unpublished": unpublished, "user": unpublished / str(USER)}[level]
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    WRONG[kind](folder)
    with pytest.raises((Denied, OSError)):
        spool.put(str(tmp_path), USER, RUN)
    assert not list(tmp_path.rglob("*.json"))
    if kind not in ("a file", "a FIFO") and (unpublished / str(USER)).exists():
        with pytest.raises(Denied):
            spool.read_waiting(str(tmp_path), USER)


@pytest.mark.parametrize("kind", WRONG)
def test_folders_are_made_where_only_root_makes_names(tmp_path, node_settings, kind):
    WRONG[kind](tmp_path / "cache")
    with pytest.raises((Denied, OSError)):
        make_folders(JobFolder(str(tmp_path)), node_settings)


def test_the_accounts_get_folders_where_root_lets_them(tmp_path, node_settings):
    tmp_path.chmod(0o755)
    cache, settings = tmp_path / "cache", node_settings
    cache.mkdir()
    (cache / "images.new").mkdir(0o700)  # power was lost
    for _ in range(2):
        make_folders(JobFolder(str(tmp_path)), settings)
    nobody = settings.account
    os.setegid(nobody.gid)
    os.seteuid(nobody.uid)
    try:
        spool.put(str(cache), USER, RUN)
        assert [run for _, run in spool.read_waiting(str(cache), USER)] == [RUN]
        with pytest.raises(OSError, match="Permission denied"):
            (cache / "other").mkdir()
    finally:
        os.seteuid(0)
        os.setegid(0)
    made = {path.name: path.stat() for path in cache.iterdir()}
    owners = {"unpublished": nobody.uid, "images": settings.cache_account.uid}
    assert {name: status.st_uid for name, status in made.items()} == owners
    assert {status.st_mode & 0o777 for status in made.values()} == {0o700}
    assert (tmp_path / "state").stat().st_uid == nobody.uid


def test_waiting_runs_fit_into_one_message(tmp_path):
    (tmp_path / "unpublished").mkdir(mode=0o700)
    for number in range(40):
        run = {"run": f"c.{number:03d}", "node": "n1", "started_ns": 1, "x": "x" * 3_000_000}
        spool.put(str(tmp_path), USER, run)
    taken = spool.read_waiting(str(tmp_path), USER)
    assert [run["run"] for _, run in taken] == [f"c.{n:03d}" for n in range(8, 13)]
    for path, _ in taken:
        path.unlink()
    assert spool.read_waiting(str(tmp_path), USER)[0][1]["run"] == "c.013"
    shutil.rmtree(tmp_path / "unpublished")
    assert spool.read_waiting(str(tmp_path), USER) == []

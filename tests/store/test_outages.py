"""Outages remembered where only their own account writes."""

import os
import time

import pytest

from bootseer.errors import Denied
from bootseer.store import outages
from bootseer.store.outages import LASTS_S, Outages


def test_an_outage_is_remembered_for_a_minute(tmp_path):
    seen = Outages(str(tmp_path))
    assert seen.recent("hdfs://a/") == ""
    seen.note("hdfs://a/", "refused\udcff" + "x" * 5000)
    assert seen.recent("hdfs://a/").startswith("refused") and len(seen.recent("hdfs://a/")) < 1100
    assert seen.recent("hdfs://b/") == ""
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    for age_s in (LASTS_S + 1, -5):  # the clock was set back
        os.utime(file, (time.time() - age_s,) * 2)
        assert seen.recent("hdfs://a/") == ""
    seen.note("hdfs://a/", "")
    assert seen.recent("hdfs://a/").startswith("no answer")
    seen.clear("hdfs://a/")
    assert seen.recent("hdfs://a/") == ""


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file_is_neither_followed_nor_waited_for(tmp_path, kind):
    folder, other = tmp_path / "own", tmp_path / "other"
    folder.mkdir()
    other.write_text("precious")
    seen = Outages(str(folder))
    path = seen._path("hdfs://a/")
    {"link": lambda: os.symlink(other, path), "fifo": lambda: os.mkfifo(path)}.get(
        kind, lambda: os.mkdir(path)
    )()
    assert seen.recent("hdfs://a/") == ""
    seen.note("hdfs://a/", "x")
    assert other.read_text() == "precious" and seen.recent("hdfs://a/") == ""


def test_a_folder_of_others_is_neither_believed_nor_used(tmp_path):
    seen = Outages(str(tmp_path))
    seen.note("hdfs://a/", "x")
    (file,) = tmp_path.iterdir()
    tmp_path.chmod(0o777)
    assert seen.recent("hdfs://a/") == ""
    seen.clear("hdfs://a/")
    seen.note("hdfs://b/", "x")
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_folder_costs_nothing(tmp_path):
    seen = Outages(str(tmp_path / "none"))
    seen.note("hdfs://a/", "x")
    assert seen.recent("hdfs://a/") == ""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Put both folders that a user may have below tmp_path."""
    monkeypatch.setattr(outages, "_SESSION", f"{tmp_path}/session-{{}}")
    monkeypatch.setattr(outages, "_OWN", f"{tmp_path}/own-{{}}")
    return tmp_path


def test_a_users_folder_is_the_users_alone(places):
    uid = os.getuid()
    own = places / f"own-{uid}"
    assert outages.user_folder(uid) == str(own) and own.stat().st_mode & 0o777 == 0o700
    session = places / f"session-{uid}"
    session.mkdir(0o777)
    session.chmod(0o777)
    assert outages.user_folder(uid) == str(own)
    session.chmod(0o700)
    assert outages.user_folder(uid) == str(session)


@pytest.mark.parametrize("attack", ["link", "writable", "another's"])
def test_a_folder_that_another_user_has_prepared_is_refused(places, attack):
    uid = os.getuid()
    own, victim = places / f"own-{uid}", places / "victim"
    victim.mkdir(0o700)
    if attack == "link":
        own.symlink_to(victim)
    else:
        own.mkdir()
        own.chmod(0o777 if attack == "writable" else 0o700)
        if attack == "another's":
            if uid:
                pytest.skip("only root can make another's folder")
            os.chown(own, 65534, 65534)
    with pytest.raises(Denied):
        outages.user_folder(uid)

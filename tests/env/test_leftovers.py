"""What a killed `env run` leaves of a target is removed by the next one, and nothing else is."""

import grp
import os
import pwd
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bootseer.env.leftovers import note_use, remove_leftovers, temporary_name


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def made(folder, name):
    """Make a folder that cannot be removed as it is, with a link out of it."""
    path = folder / name
    (path / "locked").mkdir(parents=True)
    (path / "locked/file").touch()
    (path / "out").symlink_to(folder / "target")
    (path / "locked").chmod(0o500)
    path.chmod(0o500)
    return path


@pytest.mark.parametrize("where", ["beside", "inside"])
def test_what_nobody_uses_is_removed(tmp_path, target, where):
    folder = tmp_path if where == "beside" else target
    (target / "kept").touch()
    made(folder, temporary_name("target"))
    remove_leftovers(str(target))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "target"]


def test_what_is_in_use_stays_until_it_is_closed(tmp_path, target):
    left = made(tmp_path, temporary_name("target"))
    fd = os.open(left, os.O_RDONLY)
    note_use(fd)
    remove_leftovers(str(target))
    assert (left / "locked/file").exists()
    os.close(fd)
    remove_leftovers(str(target))
    assert not left.exists()


@pytest.mark.parametrize(
    "name",
    [
        *(".target.bootseer-0123456789abcde", ".target.bootseer-0123456789abcdef0"),
        *(
            ".target.bootseer-0.lock",
            "target.bootseer-0123456789abcdef",
            ".bootseer-0123456789abcdef",
        ),
        ".other.bootseer-0123456789abcdef",
    ],
)
def test_others_names_stay(tmp_path, target, name):
    made(tmp_path, name)
    remove_leftovers(str(target))
    assert (tmp_path / name / "locked/file").exists()


@pytest.mark.root
def test_another_users_stays(tmp_path, target):
    left = made(tmp_path, temporary_name("target"))
    os.chown(left, 1234, 1234)
    remove_leftovers(str(target))
    assert (left / "locked/file").exists()


def test_a_link_is_not_followed(tmp_path, target):
    kept = made(tmp_path, "kept")
    (tmp_path / temporary_name("target")).symlink_to(kept)
    remove_leftovers(str(target))
    assert (kept / "locked/file").exists()


@pytest.mark.parametrize(
    ("mode", "members", "is_left"),
    [
        (0o777, [], True),
        (0o775, [], False),
        (0o775, ["self"], False),
        (0o775, ["self", "other"], True),
        (0o1777, [], False),
    ],
)
def test_where_others_may_rename_nothing_is_removed(monkeypatch, target, mode, members, is_left):
    """Where accounts have a group of their own, it may write: umask 002."""
    user, gid = pwd.getpwuid(os.geteuid()).pw_name, target.stat().st_gid
    names = [user if member == "self" else member for member in members]
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=user, pw_gid=gid))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=user, gr_mem=names))
    left = made(target, temporary_name("target"))
    target.chmod(mode)
    remove_leftovers(str(target))
    assert left.exists() == is_left


@pytest.mark.root
def test_what_cannot_be_written_to_is_removed(tmp_path, target):
    """Root's may: as another user."""
    code = "import os, sys; from bootseer.env.leftovers import remove_leftovers; os.setuid(1234); "
    code += "remove_leftovers(sys.argv[1])"
    left = made(target, temporary_name("target"))
    for path in (target, left, left / "locked", left / "locked/file"):
        os.chown(path, 1234, 1234)
    tmp_path.chmod(0o755)
    subprocess.run([sys.executable, "-P", "-c", code, target], check=True)
    assert not left.exists()

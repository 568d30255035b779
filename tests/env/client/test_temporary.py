"""What a killed `env run` leaves of a target is removed by the next one, and nothing else is."""

import grp
import os
import pwd
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from bootseer.env.client.temporary import (
    note_use,
    remove_leftovers,
    remove_temporary_folders,
    temporary_folder,
    temporary_name,
)


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
        (0o755, ["other"], False),
        (0o757, [], True),
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


def test_where_a_group_is_not_the_users_own_nothing_is_removed(monkeypatch, target):
    """Whoever is in it is not in its list if it is their first."""
    user, gid = pwd.getpwuid(os.geteuid()).pw_name, target.stat().st_gid
    left = made(target, temporary_name("target"))
    target.chmod(0o775)
    for group, first, is_left in (("staff", gid, True), (user, gid + 1, True), (user, gid, False)):
        account = SimpleNamespace(pw_name=user, pw_gid=first)
        found = SimpleNamespace(gr_name=group, gr_mem=[])
        monkeypatch.setattr(pwd, "getpwuid", lambda uid, account=account: account)
        monkeypatch.setattr(grp, "getgrgid", lambda gid, found=found: found)
        remove_leftovers(str(target))
        assert left.exists() == is_left, group


@pytest.mark.root
def test_where_a_group_has_no_name_nothing_is_removed(target):
    left = made(target, temporary_name("target"))
    os.chown(target, -1, 54321)
    target.chmod(0o775)
    remove_leftovers(str(target))
    assert left.exists()


def test_where_an_access_control_list_lets_others_write_nothing_is_removed(monkeypatch, target):
    """Its mask is what the mode has for the group."""
    user, gid = pwd.getpwuid(os.geteuid()).pw_name, target.stat().st_gid
    account = SimpleNamespace(pw_name=user, pw_gid=gid)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: account)
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=user, gr_mem=[]))
    left = made(target, temporary_name("target"))
    entries = [(0x01, 7, -1), (0x02, 7, 65000), (0x04, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
    packed = [struct.pack("<HHI", tag, rights, who % 2**32) for tag, rights, who in entries]
    try:
        acl = struct.pack("<I", 2) + b"".join(packed)
        os.setxattr(target, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"no access control lists in {target}: {error.strerror}")
    remove_leftovers(str(target))
    assert left.exists()
    os.removexattr(target, "system.posix_acl_access")
    remove_leftovers(str(target))
    assert not left.exists()


@pytest.mark.root
def test_in_another_users_folder_nothing_is_removed(target):
    """They may give anything of the user's that name."""
    left = made(target, temporary_name("target"))
    os.chown(target, 1234, -1)
    remove_leftovers(str(target))
    assert left.exists()


@pytest.mark.parametrize("length", [60, 61])
def test_long_names_of_targets_are_cut(length):
    """The name of a file has 255 bytes."""
    name = "n" * length
    begins = f".{name}.bootseer-" if length == 60 else f".{'n' * 40}-"
    assert temporary_name(name).startswith(begins)
    assert len(temporary_name(name)) < 100
    assert temporary_name(name) != temporary_name(name)


# Folders that are made in one of many users, as /tmp.


def test_a_temporary_folder_is_there_for_a_block(tmp_path):
    with temporary_folder(str(tmp_path), "begins-") as path:
        assert os.path.dirname(path) == str(tmp_path)
        os.mkdir(f"{path}/inside")
        os.utime(path, (0, 0))
        remove_temporary_folders(str(tmp_path), "begins-")  # another does
        assert os.listdir(path) == ["inside"]
    assert os.listdir(tmp_path) == []


def test_a_temporary_folder_may_have_gone_by_the_end_of_its_block(tmp_path):
    with temporary_folder(str(tmp_path), "begins-") as path:
        os.rmdir(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "age_s", "is_left"),
    [
        ("begins-abcd_123", 3600, False),
        ("begins-abcd_123", 30, True),  # it may not be locked yet
        ("begins-abcd_1234", 3600, True),
        ("begins-abcd-123", 3600, True),
        ("Xbegins-abcd_123", 3600, True),
    ],
)
def test_temporary_folders_of_the_killed_go_when_they_are_old(tmp_path, name, age_s, is_left):
    left = made(tmp_path, name)
    os.utime(left, (time.time() - age_s,) * 2)
    remove_temporary_folders(str(tmp_path), "begins-")
    assert left.exists() == is_left


@pytest.mark.root
@pytest.mark.parametrize("where", ["inside", "beside, in a folder of root's"])
def test_what_cannot_be_written_to_is_removed(place, where):
    """Root's may: as another user."""
    code = "import os, sys; from bootseer.env.client.temporary import remove_leftovers; "
    code += "os.setuid(1234); remove_leftovers(sys.argv[1])"
    target = place / "target"
    target.mkdir()
    inside = target if where == "inside" else place
    left = made(inside, temporary_name("target"))
    for path in (target, left, left / "locked", left / "locked/file"):
        os.chown(path, 1234, 1234)
    if where != "inside":
        place.chmod(0o1777)  # as /tmp
    subprocess.run([sys.executable, "-P", "-c", code, target], check=True)
    assert not left.exists()

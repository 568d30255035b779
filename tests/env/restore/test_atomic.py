"""Where a snapshot is made before it has its place, and what it needs there."""

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from bootseer.env.client.scan import TreeNode
from bootseer.env.client.temporary import remove_leftovers
from bootseer.env.restore import atomic as restore_module
from bootseer.env.restore.atomic import RestoreTarget, restore
from bootseer.errors import Conflict, NoSpace, Unavailable

FOLDER = TreeNode("folder", 0o755, 0, 0, mtime_ns=7)
DATA = b"d" * 5000


def file(data=DATA, **more):
    digest = hashlib.sha256(data).digest()
    return TreeNode("file", 0o644, 0, 0, size_bytes=len(data), digest=digest, **more)


@pytest.fixture
def snapshot(written):
    """Of two names of a file, and a folder."""
    tree = {
        **{b"": FOLDER, b"0": FOLDER, b"0/first": file(), b"0/lib": FOLDER},
        b"0/lib/second": file(same_as=b"0/first"),
    }
    return written(tree, {b"0/first": DATA})


def put(snapshot, *paths, stays=False, **options):
    """Restore to paths; nothing temporary is left beside them, or in them."""
    found, table = snapshot.opened()
    read = options.pop("read", snapshot.read)
    targets = [RestoreTarget(os.open(path.parent, os.O_PATH), path.name, stays) for path in paths]
    try:
        restore(found, table, read, targets, **options)
    finally:
        for target in targets:
            os.close(target.parent)
    for path in paths:
        assert not [*path.parent.glob(".*.bootseer-*"), *path.glob(".*.bootseer-*")]


@contextmanager
def another_user():
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_somebody_is_in_is_filled(snapshot, tmp_path):
    (tmp_path / "new").mkdir()
    before = (tmp_path / "new").stat()
    put(snapshot, tmp_path / "new", stays=True)
    assert os.path.samestat(before, (tmp_path / "new").stat())
    assert (tmp_path / "new/lib/second").read_bytes() == DATA


@pytest.mark.root
@pytest.mark.parametrize("name", ["", "kept"])
def test_root_restores_for_others(snapshot, tmp_path, name):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / name).mkdir(exist_ok=True)
    os.chown(tmp_path / "new", 65534, 65534)
    put(snapshot, tmp_path / "new")
    assert sorted(os.listdir(tmp_path / "new")) == sorted(filter(None, ["first", name, "lib"]))


@pytest.mark.root
def test_a_folder_in_one_that_others_own_is_filled(snapshot, place):
    """Nothing can be made beside it."""
    (place / "new").mkdir()
    os.chown(place / "new", 65534, 65534)
    before = (place / "new").stat()
    with another_user():
        put(snapshot, place / "new")
    assert os.path.samestat(before, (place / "new").stat())
    assert (place / "new/first").read_bytes() == DATA


def test_what_is_being_restored_is_no_leftover(snapshot, tmp_path):
    """To another `env run` that has no lock."""

    def read(chunk):
        remove_leftovers(str(tmp_path / "new"))
        assert len(list(tmp_path.glob(".new.bootseer-*"))) == 1
        return snapshot.read(chunk)

    put(snapshot, tmp_path / "new", read=read)
    assert (tmp_path / "new/first").read_bytes() == DATA


PLENTY = {"f_frsize": 4096, "f_bavail": 99, "f_files": 99, "f_favail": 99}


@pytest.mark.parametrize(
    ("left", "why"),
    [
        ({"f_bavail": 2}, None),
        ({"f_bavail": 1}, "takes 8.19 kB, and its file system has 4.1 kB left"),
        ({"f_bavail": 0}, "takes 8.19 kB, and its file system has 0 B left"),
        ({"f_favail": 3}, None),
        ({"f_favail": 2}, "takes 3 files, and its file system has 2 left"),
        ({"f_favail": 0, "f_files": 0}, None),  # where they are not counted
    ],
)
def test_what_there_is_room_for_is_told_before(snapshot, tmp_path, monkeypatch, left, why):
    found = SimpleNamespace(**{**PLENTY, **left})
    monkeypatch.setattr(restore_module.os, "fstatvfs", lambda fd: found)
    if why is None:
        put(snapshot, tmp_path / "new")
    else:
        with pytest.raises(NoSpace, match=why):
            put(snapshot, tmp_path / "new", read=pytest.fail)
    assert (tmp_path / "new").exists() == (why is None)


def test_a_folder_that_others_have_put_there_gets_no_name(snapshot, tmp_path):
    def read(chunk):
        [made] = tmp_path.glob(".new.bootseer-*")
        made.rename(tmp_path / "moved")
        made.mkdir()
        return snapshot.read(chunk)

    with pytest.raises(Conflict, match="meanwhile"):
        put(snapshot, tmp_path / "new", read=read)
    assert os.listdir(tmp_path) == ["moved"]


def fill(path):
    open(os.path.join(path, "x"), "w").close()


def give_away(path):
    if os.geteuid():
        pytest.skip("not root")
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize("change", [fill, give_away])
def test_a_folder_that_is_anothers_when_it_is_opened_is_not_used(
    snapshot, tmp_path, monkeypatch, change
):
    original = os.open

    def late(name, flags, mode=0o777, *, dir_fd=None):
        if ".bootseer-" in str(name):
            change(tmp_path / name)
        return original(name, flags, mode, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(restore_module.os, "open", late)
        with pytest.raises(Conflict, match="meanwhile"):
            put(snapshot, tmp_path / "new", read=pytest.fail)
    assert not (tmp_path / "new").exists()


def test_of_several_targets_each_has_its_own_deleted(written, tmp_path):
    tree = {b"": FOLDER, b"0": FOLDER, b"1": FOLDER, b"1/x": file()}
    snapshot = written(tree, {b"1/x": DATA}, deleted=[b"1/gone"])
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "gone").touch()
    put(snapshot, tmp_path / "a", tmp_path / "b")
    assert (os.listdir(tmp_path / "a"), os.listdir(tmp_path / "b")) == (["gone"], ["x"])


@pytest.mark.root
def test_folders_that_may_not_be_written_to_are_so_afterwards(written, place):
    tree = {b"": FOLDER, b"0": FOLDER._replace(mode=0o500)}
    snapshot = written(tree, {}, deleted=[b"0/lib/gone", b"0/lib/gone too"])
    lib = place / "old/lib"
    (lib / "gone").mkdir(parents=True)
    (lib / "gone too").touch()
    lib.chmod(0o500)
    for path in (lib, lib / "gone", lib / "gone too", place / "old"):
        os.chown(path, 65534, 65534)
    with another_user():
        put(snapshot, place / "old")
    assert list(lib.iterdir()) == []
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (lib, place / "old")]
    assert modes == [0o500, 0o500]


def test_a_folder_that_cannot_be_moved_is_told(snapshot, tmp_path, monkeypatch):
    (tmp_path / "old/kept").mkdir(parents=True)
    original = os.rename

    def rename(name, new, **options):
        if new == "lib":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        original(name, new, **options)

    with monkeypatch.context() as patched:
        patched.setattr(restore_module.os, "rename", rename)
        with pytest.raises(Unavailable, match="cannot restore '0/lib': Input/output error"):
            put(snapshot, tmp_path / "old")


class Cancelled(Exception):
    pass


def test_a_cancellation_is_heeded_between_folders(snapshot, tmp_path):
    (tmp_path / "old/lib").mkdir(parents=True)
    (tmp_path / "old/kept").touch()

    def check():
        if (tmp_path / "old/first").exists():
            raise Cancelled

    with pytest.raises(Cancelled):
        put(snapshot, tmp_path / "old", check_cancelled=check)
    assert sorted(os.listdir(tmp_path / "old")) == ["first", "kept", "lib"]
    assert os.listdir(tmp_path / "old/lib") == []

"""A file that has its name once it is whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from bootseer.errors import BootseerError, Conflict, NoSpace, NotFound, Transient
from bootseer.store.local.atomic_file import new_file, writing


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The path of a file that is there already."""
    path = tmp_path / "target"
    path.write_bytes(b"old")
    return path


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_when_it_is_whole(target: Path) -> None:
    with new_file(target) as (fd, path):
        os.write(fd, b"ne")
        assert path.parent == target.parent and path.read_bytes() == b"ne"
        os.write(fd, b"w")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert os.listdir(target.parent) == ["target"]


def test_all_of_it_is_on_the_disk_before_it_has_its_name(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def fsync(fd: int) -> None:
        synced.append((os.fstat(fd).st_ino, target.read_bytes()))

    with new_file(target) as (fd, _):
        os.write(fd, b"new")
        written = os.fstat(fd).st_ino
        monkeypatch.setattr(os, "fsync", fsync)
    assert synced == [(written, b"old"), (target.parent.stat().st_ino, b"new")]


@pytest.mark.parametrize(("mode", "found"), [(0o600, 0o600), (None, 0o640)])
def test_a_file_may_be_closed_to_others_from_its_beginning(
    target: Path, mode: int | None, found: int
) -> None:
    umask = os.umask(0o027)
    try:
        with new_file(target, mode) as (fd, _):
            assert stat.S_IMODE(os.fstat(fd).st_mode) == found
    finally:
        os.umask(umask)


@pytest.mark.parametrize("error", [KeyboardInterrupt, FileNotFoundError])
def test_what_fails_on_the_way_is_the_writers_and_nothing_stays(
    target: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error) as raised, new_file(target) as (fd, _):
        os.write(fd, b"new")
        raise error
    assert not isinstance(raised.value, BootseerError)
    assert target.read_bytes() == b"old"
    assert os.listdir(target.parent) == ["target"]


def test_a_disk_that_is_full_in_the_end_leaves_what_was(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoSpace, match="cannot write 'target' in "), new_file(target):
        monkeypatch.setattr(os, "fsync", no_space)
    assert target.read_bytes() == b"old"
    assert os.listdir(target.parent) == ["target"]


def test_a_file_that_somebody_removes_meanwhile_is_no_new_one(target: Path) -> None:
    removed = pytest.raises(Transient, match="was removed while it was being written")
    with removed, new_file(target) as (_, path):
        path.unlink()
    assert target.read_bytes() == b"old"


def test_what_cannot_be_begun_is_an_error_of_ours(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Conflict, match="is a folder"), new_file(target.parent):
        pass
    with pytest.raises(NotFound, match="there is no folder"), new_file(target / "below"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_space)
        with pytest.raises(NoSpace), new_file(target):
            pass
    with pytest.raises(NoSpace), writing(target):
        no_space()

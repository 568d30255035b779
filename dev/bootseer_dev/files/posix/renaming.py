"""Renaming and removing."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from bootseer_dev.files.posix.expectation import equal, expect, fails, open_fd

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


@expect
def a_renamed_file_keeps_its_content(folder: Path) -> None:
    (folder / "old").write_bytes(b"content")
    number = (folder / "old").stat().st_ino
    os.rename(folder / "old", folder / "new")
    with fails(errno.ENOENT):
        os.stat(folder / "old")
    equal((folder / "new").read_bytes(), b"content")
    equal((folder / "new").stat().st_ino, number)
    equal(os.listdir(folder), ["new"])


@expect
def a_rename_replaces_a_file(folder: Path) -> None:
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"new")
    os.rename(folder / "new", folder / "old")
    equal((folder / "old").read_bytes(), b"new")
    equal(os.listdir(folder), ["old"])


@expect
def a_rename_replaces_what_was_just_closed(folder: Path) -> None:
    for turn in range(20):
        (folder / "new").write_bytes(b"new %d" % turn)
        (folder / "old").write_bytes(b"old")
        os.rename(folder / "new", folder / "old")
        equal((folder / "old").read_bytes(), b"new %d" % turn)


@expect
def a_file_renamed_over_stays_for_who_has_it_open(folder: Path) -> None:
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"the new one")
    with open_fd(folder / "old", os.O_RDWR) as file:
        os.rename(folder / "new", folder / "old")
        equal(os.pread(file, 100, 0), b"old")
        os.pwrite(file, b"more", 3)
        equal(os.pread(file, 100, 0), b"oldmore")
        equal(os.fstat(file).st_nlink, 0)
    equal((folder / "old").read_bytes(), b"the new one")


@expect
def a_file_is_renamed_while_it_is_written(folder: Path) -> None:
    with open_fd(folder / "temporary", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"first ")
        os.rename(folder / "temporary", folder / "final")
        os.write(file, b"second")
    equal((folder / "final").read_bytes(), b"first second")


@expect
def written_synced_and_renamed_is_there(folder: Path) -> None:
    for turn in range(3):
        with open_fd(folder / "temporary", os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            os.write(file, b"turn %d" % turn)
            os.fsync(file)
        os.replace(folder / "temporary", folder / "final")
        equal((folder / "final").read_bytes(), b"turn %d" % turn)


@expect
def a_rename_goes_to_another_folder(folder: Path) -> None:
    (folder / "one" / "below").mkdir(parents=True)
    (folder / "other").mkdir()
    (folder / "one" / "below" / "file").write_bytes(b"content")
    os.rename(folder / "one" / "below", folder / "other" / "moved")
    equal((folder / "other" / "moved" / "file").read_bytes(), b"content")
    equal(os.listdir(folder / "one"), [])


@expect
def a_rename_replaces_an_empty_folder_only(folder: Path) -> None:
    for name in ("source", "empty", "full"):
        (folder / name).mkdir()
    (folder / "full" / "file").touch()
    with fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rename(folder / "source", folder / "full")
    os.rename(folder / "source", folder / "empty")
    equal(sorted(os.listdir(folder)), ["empty", "full"])


@expect
def files_and_folders_do_not_replace_each_other(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    with fails(errno.EISDIR):
        os.rename(folder / "file", folder / "folder")
    with fails(errno.ENOTDIR):
        os.rename(folder / "folder", folder / "file")


@expect
def a_folder_is_not_moved_into_itself(folder: Path) -> None:
    (folder / "one" / "below").mkdir(parents=True)
    with fails(errno.EINVAL):
        os.rename(folder / "one", folder / "one" / "below" / "new")


@expect
def a_rename_to_the_same_name_does_nothing(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    os.rename(folder / "file", folder / "file")
    equal((folder / "file").read_bytes(), b"content")


@expect
def a_rename_of_nothing_fails(folder: Path) -> None:
    (folder / "file").touch()
    with fails(errno.ENOENT):
        os.rename(folder / "none", folder / "file")
    with fails(errno.ENOENT):
        os.rename(folder / "file", folder / "none" / "file")


@expect
def a_rename_that_may_not_replace_does_not(folder: Path) -> None:
    (folder / "one").write_bytes(b"one")
    (folder / "other").write_bytes(b"other")
    with fails(errno.EEXIST):
        _rename(folder / "one", folder / "other", _RENAME_NOREPLACE)
    equal((folder / "other").read_bytes(), b"other")
    _rename(folder / "one", folder / "third", _RENAME_NOREPLACE)
    equal((folder / "third").read_bytes(), b"one")


@expect
def a_removed_file_is_gone(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    os.unlink(folder / "file")
    with fails(errno.ENOENT):
        os.stat(folder / "file")
    with fails(errno.ENOENT):
        os.unlink(folder / "file")
    equal(os.listdir(folder), [])


@expect
def a_removed_file_stays_for_who_has_it_open(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"before")
        os.unlink(folder / "file")
        os.write(file, b" after")
        equal(os.pread(file, 100, 0), b"before after")
        equal(os.fstat(file).st_nlink, 0)
        os.ftruncate(file, 3)
        equal(os.fstat(file).st_size, 3)
        os.fsync(file)


@expect
def a_removed_file_is_changed_by_who_has_it_open(folder: Path) -> None:
    (folder / "file").write_bytes(b"0123456789")
    with open_fd(folder / "file", os.O_RDONLY) as reader:
        with open_fd(folder / "file", os.O_RDWR) as writer:
            os.unlink(folder / "file")
            os.pwrite(writer, b"abc", 3)
        equal(os.pread(reader, 100, 0), b"012abc6789")


@expect
def a_name_is_used_again_while_its_file_is_open(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"the first")
        os.unlink(folder / "file")
        (folder / "file").write_bytes(b"the second")
        equal(os.pread(file, 100, 0), b"the first")
        assert os.fstat(file).st_ino != (folder / "file").stat().st_ino
    equal((folder / "file").read_bytes(), b"the second")


@expect
def removing_keeps_to_types(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    with fails(errno.EISDIR):
        os.unlink(folder / "folder")
    with fails(errno.ENOTDIR):
        os.rmdir(folder / "file")


@expect
def a_full_folder_is_not_removed(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "folder" / "file").touch()
    with fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rmdir(folder / "folder")
    os.unlink(folder / "folder" / "file")
    os.rmdir(folder / "folder")
    with fails(errno.ENOENT):
        os.stat(folder / "folder")


@expect
def nothing_is_made_in_a_removed_folder(folder: Path) -> None:
    (folder / "folder").mkdir()
    with open_fd(folder / "folder", os.O_RDONLY | os.O_DIRECTORY) as opened:
        os.rmdir(folder / "folder")
        with fails(errno.ENOENT):
            os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=opened)
        equal(os.listdir(opened), [])


def _rename(old: Path, new: Path, flags: int) -> None:
    paths = (os.fsencode(old), os.fsencode(new))
    if _LIBC.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

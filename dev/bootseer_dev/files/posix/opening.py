"""Opening and creating files."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from bootseer_dev.files.posix.expectation import equal, expect, fails, open_fd, pattern


@expect
def what_is_not_there_is_not_found(folder: Path) -> None:
    for path in (folder / "none", folder / "none" / "below"):
        with fails(errno.ENOENT):
            os.stat(path)
        with fails(errno.ENOENT):
            os.open(path, os.O_RDONLY)
    with fails(errno.ENOENT):
        os.open(folder / "none" / "new", os.O_WRONLY | os.O_CREAT)


@expect
def a_new_file_is_empty_and_has_the_mode_less_the_umask(folder: Path) -> None:
    before = os.umask(0o027)
    try:
        with open_fd(folder / "file", os.O_WRONLY | os.O_CREAT, 0o666) as file:
            found = os.fstat(file)
    finally:
        os.umask(before)
    equal(stat.S_IMODE(found.st_mode), 0o640)
    equal((found.st_size, found.st_nlink, found.st_uid), (0, 1, os.getuid()))
    assert stat.S_ISREG(found.st_mode)


@expect
def exclusive_creation_refuses_what_is_there(folder: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open_fd(folder / "file", flags):
        pass
    (folder / "folder").mkdir()
    for name in ("file", "folder"):
        with fails(errno.EEXIST):
            os.open(folder / name, flags)


@expect
def creation_opens_what_is_there_and_keeps_it(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        equal(os.read(file, 100), b"content")


@expect
def truncating_open_empties(folder: Path) -> None:
    (folder / "file").write_bytes(pattern(10_000))
    with open_fd(folder / "file", os.O_RDWR | os.O_TRUNC) as file:
        equal(os.fstat(file).st_size, 0)
        equal(os.read(file, 100), b"")
        os.write(file, b"new")
    equal((folder / "file").read_bytes(), b"new")


@expect
def truncating_open_empties_for_who_has_it_open(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    with open_fd(folder / "file", os.O_RDONLY) as file:
        with open_fd(folder / "file", os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
            pass
        equal(os.read(file, 100), b"")


@expect
def a_file_can_be_written_whatever_the_mode_it_is_created_with(folder: Path) -> None:
    with open_fd(folder / "file", os.O_WRONLY | os.O_CREAT, 0o400) as file:
        equal(os.write(file, b"content"), 7)
    equal((folder / "file").read_bytes(), b"content")


@expect
def a_mode_without_rights_refuses(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "file").chmod(0o400)
    with fails(errno.EACCES):
        os.open(folder / "file", os.O_WRONLY)


@expect
def a_folder_is_not_opened_for_writing(folder: Path) -> None:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT):
        with fails(errno.EISDIR):
            os.open(folder, flags)


@expect
def a_file_is_not_a_folder(folder: Path) -> None:
    (folder / "file").touch()
    with fails(errno.ENOTDIR):
        os.open(folder / "file", os.O_RDONLY | os.O_DIRECTORY)
    with fails(errno.ENOTDIR):
        os.stat(folder / "file" / "below")
    with fails(errno.ENOTDIR):
        os.listdir(folder / "file")
    with fails(errno.ENOTDIR):
        os.open(folder / "file" / "new", os.O_WRONLY | os.O_CREAT)

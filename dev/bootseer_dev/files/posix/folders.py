"""Making folders, listing them, names in them."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path

from bootseer_dev.files.posix.expectation import equal, expect, fails, open_fd

_MANY = 2000
_LIBC = ctypes.CDLL(None, use_errno=True)


@expect
def a_new_folder_is_an_empty_folder(folder: Path) -> None:
    before = os.umask(0o022)
    try:
        os.mkdir(folder / "folder", 0o777)
    finally:
        os.umask(before)
    found = os.stat(folder / "folder")
    assert stat.S_ISDIR(found.st_mode)
    equal(stat.S_IMODE(found.st_mode), 0o755)
    equal(os.listdir(folder / "folder"), [])


@expect
def a_folder_is_not_made_twice(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    for name in ("folder", "file"):
        with fails(errno.EEXIST):
            os.mkdir(folder / name)
    with fails(errno.ENOENT):
        os.mkdir(folder / "none" / "folder")
    with fails(errno.ENOTDIR):
        os.mkdir(folder / "file" / "folder")


@expect
def folders_lie_in_folders(folder: Path) -> None:
    deep = folder.joinpath(*["d"] * 20)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"deep")
    equal([len(files) for _, _, files in os.walk(folder)], [0] * 20 + [1])
    equal((deep / ".." / "d" / "file").read_bytes(), b"deep")


@expect
def a_listing_has_each_of_many_once(folder: Path) -> None:
    expected = {f"a rather long name of a file, number {n}" for n in range(_MANY)}
    for name in expected:
        os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT))
    found = os.listdir(folder)
    equal(len(found), _MANY)
    equal(set(found), expected)
    with os.scandir(folder) as entries:
        assert all(entry.is_file() and entry.stat().st_size == 0 for entry in entries)


@expect
def a_listing_says_types(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    with os.scandir(folder) as entries:
        found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    equal(found, {"folder": True, "file": False})


@expect
def a_listing_begun_again_is_a_new_one(folder: Path) -> None:
    (folder / "one").touch()
    with open_fd(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        equal(os.listdir(opened), ["one"])
        (folder / "two").touch()
        os.unlink(folder / "one")
        equal(os.listdir(opened), ["two"])  # Python rewinds


@expect
def a_folder_is_emptied_while_it_is_listed(folder: Path) -> None:
    for number in range(_MANY // 2):
        (folder / str(number)).touch()
    with os.scandir(folder) as entries:
        for entry in entries:
            os.unlink(entry.path)
    equal(os.listdir(folder), [])


@expect
def a_listing_read_on_brings_nothing_back(folder: Path) -> None:
    files = [folder / f"file{number}" for number in range(120)]
    for path in files:
        path.write_bytes(b"old")
    with open_fd(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        _read_listing(opened)
        removed, renamed, replaced, remade = (files[turn::4] for turn in range(4))
        for path in (*removed, *remade):
            os.unlink(path)
        for path in renamed:
            os.rename(path, path.with_suffix(".other"))
        for path in replaced:
            (folder / "new").write_bytes(b"new")
            os.rename(folder / "new", path)
        for path in remade:
            path.write_bytes(b"new")
        while _read_listing(opened):
            pass
    equal([path.name for path in (*removed, *renamed) if path.exists()], [])
    equal({path.read_bytes() for path in (*replaced, *remade)}, {b"new"})
    equal({path.with_suffix(".other").read_bytes() for path in renamed}, {b"old"})


@expect
def names_are_bytes(folder: Path) -> None:
    names = [
        b" ",
        b"-rf",
        b"*",
        b"new\nline",
        b"\xff\xfe",
        "ünï-☃".encode(),
        b"...",
        b"\\",
        b"x" * 255,
    ]
    for name in names:
        with open_fd(folder / os.fsdecode(name), os.O_WRONLY | os.O_CREAT) as file:
            os.write(file, name)
    equal(sorted(os.listdir(os.fsencode(folder))), sorted(names))
    for name in names:
        equal((folder / os.fsdecode(name)).read_bytes(), name)


@expect
def longer_names_are_too_long(folder: Path) -> None:
    path = folder / ("x" * 256)
    (folder / "file").touch()
    with fails(errno.ENAMETOOLONG):
        os.stat(path)
    with fails(errno.ENAMETOOLONG):
        os.open(path, os.O_WRONLY | os.O_CREAT)
    with fails(errno.ENAMETOOLONG):
        os.mkdir(path)
    with fails(errno.ENAMETOOLONG):
        os.rename(folder / "file", path)
    equal(os.pathconf(folder, "PC_NAME_MAX"), 255)


@expect
def names_keep_their_case(folder: Path) -> None:
    (folder / "name").write_bytes(b"small")
    (folder / "NAME").write_bytes(b"large")
    equal((folder / "name").read_bytes(), b"small")


def _read_listing(folder: int) -> int:
    """Read some entries of an open folder; returns how many bytes they take, 0 at the end."""
    found = _LIBC.getdents64(folder, ctypes.create_string_buffer(4096), 4096)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)

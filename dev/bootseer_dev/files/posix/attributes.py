"""Modes, times, owners, numbers and space."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from bootseer_dev.files.posix.expectation import equal, expect, fails, open_fd


@expect
def a_mode_is_changed(folder: Path) -> None:
    (folder / "file").touch()
    for path in (folder / "file", folder):
        path.chmod(0o750)
        equal(stat.S_IMODE(path.stat().st_mode), 0o750)


@expect
def times_are_set(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    for path in (folder / "file", folder):
        os.utime(path, ns=(1_000_000_000_123_456_789, 1_234_567_890_987_654_321))
        equal(path.stat().st_mtime_ns, 1_234_567_890_987_654_321)


@expect
def writing_moves_the_time_on(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        for change in (lambda: os.write(file, b"x"), lambda: os.ftruncate(file, 10)):
            os.utime(file, ns=(0, 0))
            change()
            assert os.fstat(file).st_mtime_ns > 0, "the time of the last change stood still"


@expect
def reading_leaves_the_time(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    os.utime(folder / "file", ns=(5, 5))
    (folder / "file").read_bytes()
    equal((folder / "file").stat().st_mtime_ns, 5)


@expect
def changes_in_a_folder_move_its_time_on(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "other").touch()
    changes: list[Callable[[], object]] = [
        lambda: (folder / "folder" / "file").touch(),
        lambda: (folder / "folder" / "below").mkdir(),
        lambda: os.rename(folder / "other", folder / "folder" / "other"),
        lambda: os.unlink(folder / "folder" / "file"),
        lambda: os.rmdir(folder / "folder" / "below"),
    ]
    for change in changes:
        os.utime(folder / "folder", ns=(0, 0))
        change()
        assert (folder / "folder").stat().st_mtime_ns > 0, "the folder's time stood still"


@expect
def only_root_gives_files_away(folder: Path) -> None:
    (folder / "file").touch()
    os.chown(folder / "file", os.getuid(), os.getgid())
    with fails(errno.EPERM):
        os.chown(folder / "file", os.getuid() + 1, -1)


@expect
def numbers_tell_files_apart(folder: Path) -> None:
    for number in range(100):
        (folder / str(number)).touch()
    numbers = {(folder / str(number)).stat().st_ino for number in range(100)}
    equal(len(numbers), 100)


@expect
def there_is_space(folder: Path) -> None:
    found = os.statvfs(folder)
    assert 0 < found.f_bavail <= found.f_blocks, f"{found}"
    equal(found.f_namemax, 255)


@expect
def an_extended_attribute_is_not_there(folder: Path) -> None:
    (folder / "file").touch()
    with fails(errno.ENODATA):
        os.getxattr(folder / "file", "user.none")
    own = "user.bootseer."  # what a file system of ours tells by itself
    names = [name for name in os.listxattr(folder / "file") if not name.startswith(own)]
    equal([name for name in names if name.startswith("user.")], [])

"""What programs expect of a directory: a table that any mounted file system can be held against.

Each expectation is a function with a folder of its own; it raises AssertionError or OSError where
the file system disappoints it. A tmpfs meets all of them. They run in a process of their own,
never in the one that serves the file system:

    python -m bootseer_dev.files.posix_suite FOLDER [EXPECTATION...]

prints a JSON object of each expectation's name and null, or what was wrong.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MODULE = "bootseer_dev.files.posix_suite"
EXPECTATIONS: dict[str, Callable[[Path], None]] = {}

_MANY = 2000
_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


def check(folder: Path, names: Sequence[str] = ()) -> dict[str, str | None]:
    """Hold a folder against expectations, by default all; each makes and removes a folder in it.

    Returns:
        For each name None, or what was wrong.
    """
    found: dict[str, str | None] = {}
    for name in names or EXPECTATIONS:
        place = folder / name
        place.mkdir()
        try:
            EXPECTATIONS[name](place)
        except (AssertionError, OSError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = None
        shutil.rmtree(place)
    return found


def run(folder: Path, uid: int, gid: int, names: Sequence[str] = ()) -> dict[str, str | None]:
    """Do `check` in a process of a user's, who must be able to read this package.

    Raises:
        subprocess.CalledProcessError: the suite could not run to its end.
    """
    command = [sys.executable, "-m", MODULE, str(folder), *names]
    done = subprocess.run(
        command, user=uid, group=gid, extra_groups=[], cwd="/", check=True, stdout=subprocess.PIPE
    )
    result: dict[str, str | None] = json.loads(done.stdout)
    return result


def _expect(function: Callable[[Path], None]) -> Callable[[Path], None]:
    EXPECTATIONS[function.__name__] = function
    return function


@contextmanager
def _fails(*numbers: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        names = [errno.errorcode[number] for number in numbers]
        assert error.errno in numbers, f"{error}, not {' or '.join(names)}"
    else:
        raise AssertionError(f"no error, not {errno.errorcode[numbers[0]]}")


@contextmanager
def _opened(path: Path, flags: int, mode: int = 0o666) -> Iterator[int]:
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _equal(found: object, expected: object) -> None:
    assert found == expected, f"{found!r:.200}, not {expected!r:.200}"


def _pattern(size_bytes: int) -> bytes:
    return bytes(range(251)) * (size_bytes // 251) + bytes(range(size_bytes % 251))


# Opening and creating


@_expect
def what_is_not_there_is_not_found(folder: Path) -> None:
    for path in (folder / "none", folder / "none" / "below"):
        with _fails(errno.ENOENT):
            os.stat(path)
        with _fails(errno.ENOENT):
            os.open(path, os.O_RDONLY)
    with _fails(errno.ENOENT):
        os.open(folder / "none" / "new", os.O_WRONLY | os.O_CREAT)


@_expect
def a_new_file_is_empty_and_has_the_mode_less_the_umask(folder: Path) -> None:
    before = os.umask(0o027)
    try:
        with _opened(folder / "file", os.O_WRONLY | os.O_CREAT, 0o666) as file:
            found = os.fstat(file)
    finally:
        os.umask(before)
    _equal(stat.S_IMODE(found.st_mode), 0o640)
    _equal((found.st_size, found.st_nlink, found.st_uid), (0, 1, os.getuid()))
    assert stat.S_ISREG(found.st_mode)


@_expect
def exclusive_creation_refuses_what_is_there(folder: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with _opened(folder / "file", flags):
        pass
    (folder / "folder").mkdir()
    for name in ("file", "folder"):
        with _fails(errno.EEXIST):
            os.open(folder / name, flags)


@_expect
def creation_opens_what_is_there_and_keeps_it(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        _equal(os.read(file, 100), b"content")


@_expect
def truncating_open_empties(folder: Path) -> None:
    (folder / "file").write_bytes(_pattern(10_000))
    with _opened(folder / "file", os.O_RDWR | os.O_TRUNC) as file:
        _equal(os.fstat(file).st_size, 0)
        _equal(os.read(file, 100), b"")
        os.write(file, b"new")
    _equal((folder / "file").read_bytes(), b"new")


@_expect
def truncating_open_empties_for_who_has_it_open(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    with _opened(folder / "file", os.O_RDONLY) as file:
        with _opened(folder / "file", os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
            pass
        _equal(os.read(file, 100), b"")


@_expect
def a_file_can_be_written_whatever_the_mode_it_is_created_with(folder: Path) -> None:
    with _opened(folder / "file", os.O_WRONLY | os.O_CREAT, 0o400) as file:
        _equal(os.write(file, b"content"), 7)
    _equal((folder / "file").read_bytes(), b"content")


@_expect
def a_mode_without_rights_refuses(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "file").chmod(0o400)
    with _fails(errno.EACCES):
        os.open(folder / "file", os.O_WRONLY)


@_expect
def a_folder_is_not_opened_for_writing(folder: Path) -> None:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT):
        with _fails(errno.EISDIR):
            os.open(folder, flags)


@_expect
def a_file_is_not_a_folder(folder: Path) -> None:
    (folder / "file").touch()
    with _fails(errno.ENOTDIR):
        os.open(folder / "file", os.O_RDONLY | os.O_DIRECTORY)
    with _fails(errno.ENOTDIR):
        os.stat(folder / "file" / "below")
    with _fails(errno.ENOTDIR):
        os.listdir(folder / "file")
    with _fails(errno.ENOTDIR):
        os.open(folder / "file" / "new", os.O_WRONLY | os.O_CREAT)


# Reading and writing


@_expect
def what_is_written_is_read(folder: Path) -> None:
    for size in (0, 1, 4095, 4096, 4097, 131_073, 3_000_001):
        path = folder / str(size)
        path.write_bytes(_pattern(size))
        _equal(path.stat().st_size, size)
        assert path.read_bytes() == _pattern(size), f"{size} bytes came back otherwise"


@_expect
def small_writes_follow_each_other(folder: Path) -> None:
    content = _pattern(50_000)
    with (folder / "file").open("wb", buffering=0) as file:
        for start in range(0, len(content), 977):
            file.write(content[start : start + 977])
    assert (folder / "file").read_bytes() == content


@_expect
def what_is_written_is_read_while_it_is_open(folder: Path) -> None:
    with (
        _opened(folder / "file", os.O_WRONLY | os.O_CREAT) as writer,
        _opened(folder / "file", os.O_RDONLY) as reader,
    ):
        for turn in range(20):
            os.write(writer, bytes([turn]) * 1000)
            _equal(os.fstat(reader).st_size, (turn + 1) * 1000)
            _equal(os.pread(reader, 1000, turn * 1000), bytes([turn]) * 1000)
            _equal(os.pread(reader, 1000, (turn + 1) * 1000), b"")


@_expect
def the_same_descriptor_writes_and_reads(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"0123456789")
        os.lseek(file, 3, os.SEEK_SET)
        _equal(os.read(file, 4), b"3456")


@_expect
def another_process_reads_what_was_written(folder: Path) -> None:
    (folder / "file").write_bytes(_pattern(100_000))
    found = subprocess.run(["cat", folder / "file"], check=True, capture_output=True).stdout
    assert found == _pattern(100_000)


@_expect
def writing_in_the_middle_changes_only_that(folder: Path) -> None:
    content = bytearray(_pattern(20_000))
    (folder / "file").write_bytes(content)
    with _opened(folder / "file", os.O_WRONLY) as file:
        for offset, data in ((5000, b"x" * 100), (0, b"first"), (12_287, b"yy"), (4096, b"z")):
            os.pwrite(file, data, offset)
            content[offset : offset + len(data)] = data
    assert (folder / "file").read_bytes() == content


@_expect
def a_gap_is_zeros(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"start")
        os.lseek(file, 100_000, os.SEEK_SET)
        os.write(file, b"end")
        _equal(os.fstat(file).st_size, 100_003)
        assert os.pread(file, 200_000, 0) == b"start" + bytes(99_995) + b"end"


@_expect
def seeking_beyond_the_end_does_not_grow(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        _equal(os.lseek(file, 1000, os.SEEK_SET), 1000)
        _equal(os.read(file, 10), b"")
        _equal(os.fstat(file).st_size, 0)


@_expect
def the_end_can_be_sought(folder: Path) -> None:
    (folder / "file").write_bytes(b"0123456789")
    with _opened(folder / "file", os.O_RDWR) as file:
        _equal(os.lseek(file, -3, os.SEEK_END), 7)
        os.write(file, b"abcdef")
        _equal(os.lseek(file, 0, os.SEEK_END), 13)


@_expect
def reads_end_at_the_end(folder: Path) -> None:
    (folder / "file").write_bytes(b"0123456789")
    with _opened(folder / "file", os.O_RDONLY) as file:
        _equal(os.pread(file, 100, 7), b"789")
        _equal(os.pread(file, 100, 10), b"")
        _equal(os.pread(file, 100, 1 << 40), b"")


@_expect
def appending_writes_at_the_end(folder: Path) -> None:
    (folder / "file").write_bytes(b"first ")
    with _opened(folder / "file", os.O_RDWR | os.O_APPEND) as file:
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, b"second ")
        os.write(file, b"third")
        _equal(os.lseek(file, 0, os.SEEK_CUR), 18)
    _equal((folder / "file").read_bytes(), b"first second third")


@_expect
def two_who_append_do_not_overwrite_each_other(folder: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with _opened(folder / "file", flags) as one, _opened(folder / "file", flags) as other:
        for _ in range(100):
            os.write(one, b"one\n")
            os.write(other, b"other\n")
    _equal((folder / "file").read_bytes(), b"one\nother\n" * 100)


@_expect
def who_appends_goes_on_at_the_end_while_the_folder_is_listed(folder: Path) -> None:
    with _opened(folder / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        os.write(file, b"first ")
        with os.scandir(folder) as entries:
            os.write(file, b"second ")
            _equal([entry.name for entry in entries], ["file"])
        os.write(file, b"third")
    _equal((folder / "file").read_bytes(), b"first second third")


@_expect
def rights_of_a_descriptor_are_kept_to(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    with _opened(folder / "file", os.O_RDONLY) as file, _fails(errno.EBADF):
        os.write(file, b"x")
    with _opened(folder / "file", os.O_WRONLY) as file, _fails(errno.EBADF):
        os.read(file, 1)


@_expect
def vectors_are_written_and_read(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        _equal(os.pwritev(file, [b"one", b"", b"two"], 5), 6)
        into = [bytearray(4), bytearray(10)]
        _equal(os.preadv(file, into, 4), 7)
        _equal((bytes(into[0]), bytes(into[1][:3])), (b"\0one", b"two"))


@_expect
def many_files_are_written_at_once(folder: Path) -> None:
    files = [(folder / str(number)).open("wb", buffering=0) for number in range(50)]
    for turn in range(5):
        for number, file in enumerate(files):
            file.write(bytes([turn, number]) * 5000)
    for number, file in enumerate(files):
        file.close()
        expected = b"".join(bytes([turn, number]) * 5000 for turn in range(5))
        assert (folder / str(number)).read_bytes() == expected


@_expect
def a_file_is_copied_into_another(folder: Path) -> None:
    (folder / "one").write_bytes(_pattern(300_000))
    shutil.copyfile(folder / "one", folder / "other")
    assert (folder / "other").read_bytes() == _pattern(300_000)


@_expect
def a_mapping_reads_the_file(folder: Path) -> None:
    (folder / "file").write_bytes(_pattern(50_000))
    with (
        _opened(folder / "file", os.O_RDONLY) as file,
        mmap.mmap(file, 0, prot=mmap.PROT_READ) as memory,
    ):
        assert memory[:] == _pattern(50_000)


@_expect
def a_mapping_writes_the_file(folder: Path) -> None:
    (folder / "file").write_bytes(bytes(10_000))
    with _opened(folder / "file", os.O_RDWR) as file, mmap.mmap(file, 0) as memory:
        memory[5000:5005] = b"hello"
        memory.flush()
    _equal((folder / "file").read_bytes()[4999:5006], b"\0hello\0")


# Truncating and syncing


@_expect
def truncating_cuts_and_grows(folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(_pattern(10_000))
    os.truncate(path, 5001)
    assert path.read_bytes() == _pattern(10_000)[:5001]
    os.truncate(path, 9000)
    assert path.read_bytes() == _pattern(10_000)[:5001] + bytes(3999)
    os.truncate(path, 0)
    _equal(path.read_bytes(), b"")


@_expect
def an_open_file_is_truncated(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"0123456789")
        os.ftruncate(file, 4)
        _equal(os.fstat(file).st_size, 4)
        os.write(file, b"x")  # where it was before
        _equal(os.pread(file, 100, 0), b"0123\0\0\0\0\0\0x")


@_expect
def what_is_not_writable_is_not_truncated(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    with _opened(folder / "file", os.O_RDONLY) as file, _fails(errno.EINVAL, errno.EBADF):
        os.ftruncate(file, 0)
    with _fails(errno.EISDIR):
        os.truncate(folder, 0)
    with _fails(errno.ENOENT):
        os.truncate(folder / "none", 0)
    with _fails(errno.EINVAL):
        os.truncate(folder / "file", -1)


@_expect
def files_and_folders_are_synced(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"content")
        os.fsync(file)
        os.write(file, b" and more")
        os.fdatasync(file)
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        os.fsync(opened)
    _equal((folder / "file").read_bytes(), b"content and more")


@_expect
def a_copy_of_a_descriptor_is_closed_first(folder: Path) -> None:
    with _opened(folder / "file", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"one ")
        os.close(os.dup(file))
        subprocess.run(["true"], check=True)  # closes the copies that a child gets
        os.write(file, b"two")
    _equal((folder / "file").read_bytes(), b"one two")


@_expect
def a_mapping_is_not_appended(folder: Path) -> None:
    (folder / "file").write_bytes(bytes(10_000))
    with _opened(folder / "file", os.O_RDWR | os.O_APPEND) as file:
        with mmap.mmap(file, 0) as memory:
            memory[5000:5005] = b"hello"
        _equal(os.fstat(file).st_size, 10_000)
    assert (folder / "file").read_bytes() == bytes(5000) + b"hello" + bytes(4995)


# Renaming


@_expect
def a_renamed_file_keeps_its_content(folder: Path) -> None:
    (folder / "old").write_bytes(b"content")
    number = (folder / "old").stat().st_ino
    os.rename(folder / "old", folder / "new")
    with _fails(errno.ENOENT):
        os.stat(folder / "old")
    _equal((folder / "new").read_bytes(), b"content")
    _equal((folder / "new").stat().st_ino, number)
    _equal(os.listdir(folder), ["new"])


@_expect
def a_rename_replaces_a_file(folder: Path) -> None:
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"new")
    os.rename(folder / "new", folder / "old")
    _equal((folder / "old").read_bytes(), b"new")
    _equal(os.listdir(folder), ["old"])


@_expect
def a_rename_replaces_what_was_just_closed(folder: Path) -> None:
    for turn in range(20):
        (folder / "new").write_bytes(b"new %d" % turn)
        (folder / "old").write_bytes(b"old")
        os.rename(folder / "new", folder / "old")
        _equal((folder / "old").read_bytes(), b"new %d" % turn)


@_expect
def a_file_renamed_over_stays_for_who_has_it_open(folder: Path) -> None:
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"the new one")
    with _opened(folder / "old", os.O_RDWR) as file:
        os.rename(folder / "new", folder / "old")
        _equal(os.pread(file, 100, 0), b"old")
        os.pwrite(file, b"more", 3)
        _equal(os.pread(file, 100, 0), b"oldmore")
        _equal(os.fstat(file).st_nlink, 0)
    _equal((folder / "old").read_bytes(), b"the new one")


@_expect
def a_file_is_renamed_while_it_is_written(folder: Path) -> None:
    with _opened(folder / "temporary", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"first ")
        os.rename(folder / "temporary", folder / "final")
        os.write(file, b"second")
    _equal((folder / "final").read_bytes(), b"first second")


@_expect
def written_synced_and_renamed_is_there(folder: Path) -> None:
    for turn in range(3):
        with _opened(folder / "temporary", os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            os.write(file, b"turn %d" % turn)
            os.fsync(file)
        os.replace(folder / "temporary", folder / "final")
        _equal((folder / "final").read_bytes(), b"turn %d" % turn)


@_expect
def a_rename_goes_to_another_folder(folder: Path) -> None:
    (folder / "one" / "below").mkdir(parents=True)
    (folder / "other").mkdir()
    (folder / "one" / "below" / "file").write_bytes(b"content")
    os.rename(folder / "one" / "below", folder / "other" / "moved")
    _equal((folder / "other" / "moved" / "file").read_bytes(), b"content")
    _equal(os.listdir(folder / "one"), [])


@_expect
def a_rename_replaces_an_empty_folder_only(folder: Path) -> None:
    for name in ("source", "empty", "full"):
        (folder / name).mkdir()
    (folder / "full" / "file").touch()
    with _fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rename(folder / "source", folder / "full")
    os.rename(folder / "source", folder / "empty")
    _equal(sorted(os.listdir(folder)), ["empty", "full"])


@_expect
def files_and_folders_do_not_replace_each_other(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    with _fails(errno.EISDIR):
        os.rename(folder / "file", folder / "folder")
    with _fails(errno.ENOTDIR):
        os.rename(folder / "folder", folder / "file")


@_expect
def a_folder_is_not_moved_into_itself(folder: Path) -> None:
    (folder / "one" / "below").mkdir(parents=True)
    with _fails(errno.EINVAL):
        os.rename(folder / "one", folder / "one" / "below" / "new")


@_expect
def a_rename_to_the_same_name_does_nothing(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    os.rename(folder / "file", folder / "file")
    _equal((folder / "file").read_bytes(), b"content")


@_expect
def a_rename_of_nothing_fails(folder: Path) -> None:
    (folder / "file").touch()
    with _fails(errno.ENOENT):
        os.rename(folder / "none", folder / "file")
    with _fails(errno.ENOENT):
        os.rename(folder / "file", folder / "none" / "file")


@_expect
def a_rename_that_may_not_replace_does_not(folder: Path) -> None:
    (folder / "one").write_bytes(b"one")
    (folder / "other").write_bytes(b"other")
    with _fails(errno.EEXIST):
        _rename(folder / "one", folder / "other", _RENAME_NOREPLACE)
    _equal((folder / "other").read_bytes(), b"other")
    _rename(folder / "one", folder / "third", _RENAME_NOREPLACE)
    _equal((folder / "third").read_bytes(), b"one")


# Removing


@_expect
def a_removed_file_is_gone(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    os.unlink(folder / "file")
    with _fails(errno.ENOENT):
        os.stat(folder / "file")
    with _fails(errno.ENOENT):
        os.unlink(folder / "file")
    _equal(os.listdir(folder), [])


@_expect
def a_removed_file_stays_for_who_has_it_open(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"before")
        os.unlink(folder / "file")
        os.write(file, b" after")
        _equal(os.pread(file, 100, 0), b"before after")
        _equal(os.fstat(file).st_nlink, 0)
        os.ftruncate(file, 3)
        _equal(os.fstat(file).st_size, 3)
        os.fsync(file)


@_expect
def a_removed_file_is_changed_by_who_has_it_open(folder: Path) -> None:
    (folder / "file").write_bytes(b"0123456789")
    with _opened(folder / "file", os.O_RDONLY) as reader:
        with _opened(folder / "file", os.O_RDWR) as writer:
            os.unlink(folder / "file")
            os.pwrite(writer, b"abc", 3)
        _equal(os.pread(reader, 100, 0), b"012abc6789")


@_expect
def a_name_is_used_again_while_its_file_is_open(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"the first")
        os.unlink(folder / "file")
        (folder / "file").write_bytes(b"the second")
        _equal(os.pread(file, 100, 0), b"the first")
        assert os.fstat(file).st_ino != (folder / "file").stat().st_ino
    _equal((folder / "file").read_bytes(), b"the second")


@_expect
def removing_keeps_to_types(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    with _fails(errno.EISDIR):
        os.unlink(folder / "folder")
    with _fails(errno.ENOTDIR):
        os.rmdir(folder / "file")


@_expect
def a_full_folder_is_not_removed(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "folder" / "file").touch()
    with _fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rmdir(folder / "folder")
    os.unlink(folder / "folder" / "file")
    os.rmdir(folder / "folder")
    with _fails(errno.ENOENT):
        os.stat(folder / "folder")


@_expect
def nothing_is_made_in_a_removed_folder(folder: Path) -> None:
    (folder / "folder").mkdir()
    with _opened(folder / "folder", os.O_RDONLY | os.O_DIRECTORY) as opened:
        os.rmdir(folder / "folder")
        with _fails(errno.ENOENT):
            os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=opened)
        _equal(os.listdir(opened), [])


# Folders


@_expect
def a_new_folder_is_an_empty_folder(folder: Path) -> None:
    before = os.umask(0o022)
    try:
        os.mkdir(folder / "folder", 0o777)
    finally:
        os.umask(before)
    found = os.stat(folder / "folder")
    assert stat.S_ISDIR(found.st_mode)
    _equal(stat.S_IMODE(found.st_mode), 0o755)
    _equal(os.listdir(folder / "folder"), [])


@_expect
def a_folder_is_not_made_twice(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    for name in ("folder", "file"):
        with _fails(errno.EEXIST):
            os.mkdir(folder / name)
    with _fails(errno.ENOENT):
        os.mkdir(folder / "none" / "folder")
    with _fails(errno.ENOTDIR):
        os.mkdir(folder / "file" / "folder")


@_expect
def folders_lie_in_folders(folder: Path) -> None:
    deep = folder.joinpath(*["d"] * 20)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"deep")
    _equal([len(files) for _, _, files in os.walk(folder)], [0] * 20 + [1])
    _equal((deep / ".." / "d" / "file").read_bytes(), b"deep")


@_expect
def a_listing_has_each_of_many_once(folder: Path) -> None:
    expected = {f"a rather long name of a file, number {n}" for n in range(_MANY)}
    for name in expected:
        os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT))
    found = os.listdir(folder)
    _equal(len(found), _MANY)
    _equal(set(found), expected)
    with os.scandir(folder) as entries:
        assert all(entry.is_file() and entry.stat().st_size == 0 for entry in entries)


@_expect
def a_listing_says_types(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    with os.scandir(folder) as entries:
        found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    _equal(found, {"folder": True, "file": False})


@_expect
def a_listing_begun_again_is_a_new_one(folder: Path) -> None:
    (folder / "one").touch()
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        _equal(os.listdir(opened), ["one"])
        (folder / "two").touch()
        os.unlink(folder / "one")
        _equal(os.listdir(opened), ["two"])  # Python rewinds


@_expect
def a_folder_is_emptied_while_it_is_listed(folder: Path) -> None:
    for number in range(_MANY // 2):
        (folder / str(number)).touch()
    with os.scandir(folder) as entries:
        for entry in entries:
            os.unlink(entry.path)
    _equal(os.listdir(folder), [])


@_expect
def a_listing_read_on_brings_nothing_back(folder: Path) -> None:
    files = [folder / f"file{number}" for number in range(120)]
    for path in files:
        path.write_bytes(b"old")
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
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
    _equal([path.name for path in (*removed, *renamed) if path.exists()], [])
    _equal({path.read_bytes() for path in (*replaced, *remade)}, {b"new"})
    _equal({path.with_suffix(".other").read_bytes() for path in renamed}, {b"old"})


def _read_listing(folder: int) -> int:
    """Read some entries of an open folder; returns how many bytes they take, 0 at the end."""
    found = _LIBC.getdents64(folder, ctypes.create_string_buffer(4096), 4096)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)


@_expect
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
        with _opened(folder / os.fsdecode(name), os.O_WRONLY | os.O_CREAT) as file:
            os.write(file, name)
    _equal(sorted(os.listdir(os.fsencode(folder))), sorted(names))
    for name in names:
        _equal((folder / os.fsdecode(name)).read_bytes(), name)


@_expect
def longer_names_are_too_long(folder: Path) -> None:
    path = folder / ("x" * 256)
    (folder / "file").touch()
    with _fails(errno.ENAMETOOLONG):
        os.stat(path)
    with _fails(errno.ENAMETOOLONG):
        os.open(path, os.O_WRONLY | os.O_CREAT)
    with _fails(errno.ENAMETOOLONG):
        os.mkdir(path)
    with _fails(errno.ENAMETOOLONG):
        os.rename(folder / "file", path)
    _equal(os.pathconf(folder, "PC_NAME_MAX"), 255)


@_expect
def names_keep_their_case(folder: Path) -> None:
    (folder / "name").write_bytes(b"small")
    (folder / "NAME").write_bytes(b"large")
    _equal((folder / "name").read_bytes(), b"small")


# Attributes


@_expect
def a_mode_is_changed(folder: Path) -> None:
    (folder / "file").touch()
    for path in (folder / "file", folder):
        path.chmod(0o750)
        _equal(stat.S_IMODE(path.stat().st_mode), 0o750)


@_expect
def times_are_set(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    for path in (folder / "file", folder):
        os.utime(path, ns=(1_000_000_000_123_456_789, 1_234_567_890_987_654_321))
        _equal(path.stat().st_mtime_ns, 1_234_567_890_987_654_321)


@_expect
def writing_moves_the_time_on(folder: Path) -> None:
    with _opened(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        for change in (lambda: os.write(file, b"x"), lambda: os.ftruncate(file, 10)):
            os.utime(file, ns=(0, 0))
            change()
            assert os.fstat(file).st_mtime_ns > 0, "the time of the last change stood still"


@_expect
def reading_leaves_the_time(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    os.utime(folder / "file", ns=(5, 5))
    (folder / "file").read_bytes()
    _equal((folder / "file").stat().st_mtime_ns, 5)


@_expect
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


@_expect
def only_root_gives_files_away(folder: Path) -> None:
    (folder / "file").touch()
    os.chown(folder / "file", os.getuid(), os.getgid())
    with _fails(errno.EPERM):
        os.chown(folder / "file", os.getuid() + 1, -1)


@_expect
def numbers_tell_files_apart(folder: Path) -> None:
    for number in range(100):
        (folder / str(number)).touch()
    numbers = {(folder / str(number)).stat().st_ino for number in range(100)}
    _equal(len(numbers), 100)


@_expect
def there_is_space(folder: Path) -> None:
    found = os.statvfs(folder)
    assert 0 < found.f_bavail <= found.f_blocks, f"{found}"
    _equal(found.f_namemax, 255)


@_expect
def an_extended_attribute_is_not_there(folder: Path) -> None:
    (folder / "file").touch()
    with _fails(errno.ENODATA):
        os.getxattr(folder / "file", "user.none")
    own = "user.bootseer."  # what a file system of ours tells by itself
    names = [name for name in os.listxattr(folder / "file") if not name.startswith(own)]
    _equal([name for name in names if name.startswith("user.")], [])


# Together


@_expect
def processes_create_one_file_once(folder: Path) -> None:
    script = (
        "import os, sys\n"
        "try: os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)\n"
        "except FileExistsError: sys.exit(3)\n"
    )
    command = [sys.executable, "-P", "-c", script, str(folder / "file")]
    processes = [subprocess.Popen(command) for _ in range(8)]
    _equal(sorted(process.wait() for process in processes), [0] + [3] * 7)


@_expect
def a_process_that_is_killed_leaves_what_it_wrote(folder: Path) -> None:
    script = "import os, sys; os.write(1, b'content'); os.kill(os.getpid(), 9)"
    with _opened(folder / "file", os.O_WRONLY | os.O_CREAT) as file:
        subprocess.run([sys.executable, "-P", "-c", script], stdout=file)
    _equal((folder / "file").read_bytes(), b"content")


@_expect
def the_shell_s_tools_work(folder: Path) -> None:
    script = """
        mkdir -p tree/a/b && echo one > tree/a/file && echo two >> tree/a/file
        cp -r tree copy && diff -r tree copy
        tar cf tree.tar tree && mkdir out && tar xf tree.tar -C out && diff -r tree out/tree
        dd if=/dev/zero of=zeros bs=64k count=20 status=none && test $(stat -c %s zeros) = 1310720
        mv tree/a moved && test ! -e tree/a && test "$(tail -n1 moved/file)" = two
        rm -r copy out moved tree
    """
    done = subprocess.run(["sh", "-ec", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _equal(sorted(os.listdir(folder)), ["tree.tar", "zeros"])


def _rename(old: Path, new: Path, flags: int) -> None:
    paths = (os.fsencode(old), os.fsencode(new))
    if _LIBC.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    print(json.dumps(check(Path(sys.argv[1]), sys.argv[2:]), indent=2))

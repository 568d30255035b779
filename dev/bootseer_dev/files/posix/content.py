"""Reading, writing, truncating and syncing."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
from pathlib import Path

from bootseer_dev.files.posix.expectation import equal, expect, fails, open_fd, pattern


@expect
def what_is_written_is_read(folder: Path) -> None:
    for size in (0, 1, 4095, 4096, 4097, 131_073, 3_000_001):
        path = folder / str(size)
        path.write_bytes(pattern(size))
        equal(path.stat().st_size, size)
        assert path.read_bytes() == pattern(size), f"{size} bytes came back otherwise"


@expect
def small_writes_follow_each_other(folder: Path) -> None:
    content = pattern(50_000)
    with (folder / "file").open("wb", buffering=0) as file:
        for start in range(0, len(content), 977):
            file.write(content[start : start + 977])
    assert (folder / "file").read_bytes() == content


@expect
def what_is_written_is_read_while_it_is_open(folder: Path) -> None:
    with (
        open_fd(folder / "file", os.O_WRONLY | os.O_CREAT) as writer,
        open_fd(folder / "file", os.O_RDONLY) as reader,
    ):
        for turn in range(20):
            os.write(writer, bytes([turn]) * 1000)
            equal(os.fstat(reader).st_size, (turn + 1) * 1000)
            equal(os.pread(reader, 1000, turn * 1000), bytes([turn]) * 1000)
            equal(os.pread(reader, 1000, (turn + 1) * 1000), b"")


@expect
def the_same_descriptor_writes_and_reads(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"0123456789")
        os.lseek(file, 3, os.SEEK_SET)
        equal(os.read(file, 4), b"3456")


@expect
def another_process_reads_what_was_written(folder: Path) -> None:
    (folder / "file").write_bytes(pattern(100_000))
    found = subprocess.run(["cat", folder / "file"], check=True, capture_output=True).stdout
    assert found == pattern(100_000)


@expect
def writing_in_the_middle_changes_only_that(folder: Path) -> None:
    content = bytearray(pattern(20_000))
    (folder / "file").write_bytes(content)
    with open_fd(folder / "file", os.O_WRONLY) as file:
        for offset, data in ((5000, b"x" * 100), (0, b"first"), (12_287, b"yy"), (4096, b"z")):
            os.pwrite(file, data, offset)
            content[offset : offset + len(data)] = data
    assert (folder / "file").read_bytes() == content


@expect
def a_gap_is_zeros(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"start")
        os.lseek(file, 100_000, os.SEEK_SET)
        os.write(file, b"end")
        equal(os.fstat(file).st_size, 100_003)
        assert os.pread(file, 200_000, 0) == b"start" + bytes(99_995) + b"end"


@expect
def seeking_beyond_the_end_does_not_grow(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        equal(os.lseek(file, 1000, os.SEEK_SET), 1000)
        equal(os.read(file, 10), b"")
        equal(os.fstat(file).st_size, 0)


@expect
def the_end_can_be_sought(folder: Path) -> None:
    (folder / "file").write_bytes(b"0123456789")
    with open_fd(folder / "file", os.O_RDWR) as file:
        equal(os.lseek(file, -3, os.SEEK_END), 7)
        os.write(file, b"abcdef")
        equal(os.lseek(file, 0, os.SEEK_END), 13)


@expect
def reads_end_at_the_end(folder: Path) -> None:
    (folder / "file").write_bytes(b"0123456789")
    with open_fd(folder / "file", os.O_RDONLY) as file:
        equal(os.pread(file, 100, 7), b"789")
        equal(os.pread(file, 100, 10), b"")
        equal(os.pread(file, 100, 1 << 40), b"")


@expect
def appending_writes_at_the_end(folder: Path) -> None:
    (folder / "file").write_bytes(b"first ")
    with open_fd(folder / "file", os.O_RDWR | os.O_APPEND) as file:
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, b"second ")
        os.write(file, b"third")
        equal(os.lseek(file, 0, os.SEEK_CUR), 18)
    equal((folder / "file").read_bytes(), b"first second third")


@expect
def two_who_append_do_not_overwrite_each_other(folder: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with open_fd(folder / "file", flags) as one, open_fd(folder / "file", flags) as other:
        for _ in range(100):
            os.write(one, b"one\n")
            os.write(other, b"other\n")
    equal((folder / "file").read_bytes(), b"one\nother\n" * 100)


@expect
def who_appends_goes_on_at_the_end_while_the_folder_is_listed(folder: Path) -> None:
    with open_fd(folder / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        os.write(file, b"first ")
        with os.scandir(folder) as entries:
            os.write(file, b"second ")
            equal([entry.name for entry in entries], ["file"])
        os.write(file, b"third")
    equal((folder / "file").read_bytes(), b"first second third")


@expect
def rights_of_a_descriptor_are_kept_to(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    with open_fd(folder / "file", os.O_RDONLY) as file, fails(errno.EBADF):
        os.write(file, b"x")
    with open_fd(folder / "file", os.O_WRONLY) as file, fails(errno.EBADF):
        os.read(file, 1)


@expect
def vectors_are_written_and_read(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        equal(os.pwritev(file, [b"one", b"", b"two"], 5), 6)
        into = [bytearray(4), bytearray(10)]
        equal(os.preadv(file, into, 4), 7)
        equal((bytes(into[0]), bytes(into[1][:3])), (b"\0one", b"two"))


@expect
def many_files_are_written_at_once(folder: Path) -> None:
    files = [(folder / str(number)).open("wb", buffering=0) for number in range(50)]
    for turn in range(5):
        for number, file in enumerate(files):
            file.write(bytes([turn, number]) * 5000)
    for number, file in enumerate(files):
        file.close()
        expected = b"".join(bytes([turn, number]) * 5000 for turn in range(5))
        assert (folder / str(number)).read_bytes() == expected


@expect
def a_file_is_copied_into_another(folder: Path) -> None:
    (folder / "one").write_bytes(pattern(300_000))
    shutil.copyfile(folder / "one", folder / "other")
    assert (folder / "other").read_bytes() == pattern(300_000)


@expect
def a_mapping_reads_the_file(folder: Path) -> None:
    (folder / "file").write_bytes(pattern(50_000))
    with (
        open_fd(folder / "file", os.O_RDONLY) as file,
        mmap.mmap(file, 0, prot=mmap.PROT_READ) as memory,
    ):
        assert memory[:] == pattern(50_000)


@expect
def a_mapping_writes_the_file(folder: Path) -> None:
    (folder / "file").write_bytes(bytes(10_000))
    with open_fd(folder / "file", os.O_RDWR) as file, mmap.mmap(file, 0) as memory:
        memory[5000:5005] = b"hello"
        memory.flush()
    equal((folder / "file").read_bytes()[4999:5006], b"\0hello\0")


@expect
def truncating_cuts_and_grows(folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(pattern(10_000))
    os.truncate(path, 5001)
    assert path.read_bytes() == pattern(10_000)[:5001]
    os.truncate(path, 9000)
    assert path.read_bytes() == pattern(10_000)[:5001] + bytes(3999)
    os.truncate(path, 0)
    equal(path.read_bytes(), b"")


@expect
def an_open_file_is_truncated(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"0123456789")
        os.ftruncate(file, 4)
        equal(os.fstat(file).st_size, 4)
        os.write(file, b"x")  # where it was before
        equal(os.pread(file, 100, 0), b"0123\0\0\0\0\0\0x")


@expect
def what_is_not_writable_is_not_truncated(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    with open_fd(folder / "file", os.O_RDONLY) as file, fails(errno.EINVAL, errno.EBADF):
        os.ftruncate(file, 0)
    with fails(errno.EISDIR):
        os.truncate(folder, 0)
    with fails(errno.ENOENT):
        os.truncate(folder / "none", 0)
    with fails(errno.EINVAL):
        os.truncate(folder / "file", -1)


@expect
def files_and_folders_are_synced(folder: Path) -> None:
    with open_fd(folder / "file", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"content")
        os.fsync(file)
        os.write(file, b" and more")
        os.fdatasync(file)
    with open_fd(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        os.fsync(opened)
    equal((folder / "file").read_bytes(), b"content and more")


@expect
def a_copy_of_a_descriptor_is_closed_first(folder: Path) -> None:
    with open_fd(folder / "file", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"one ")
        os.close(os.dup(file))
        subprocess.run(["true"], check=True)  # closes the copies that a child gets
        os.write(file, b"two")
    equal((folder / "file").read_bytes(), b"one two")


@expect
def a_mapping_is_not_appended(folder: Path) -> None:
    (folder / "file").write_bytes(bytes(10_000))
    with open_fd(folder / "file", os.O_RDWR | os.O_APPEND) as file:
        with mmap.mmap(file, 0) as memory:
            memory[5000:5005] = b"hello"
        equal(os.fstat(file).st_size, 10_000)
    assert (folder / "file").read_bytes() == bytes(5000) + b"hello" + bytes(4995)

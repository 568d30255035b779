"""What mksquashfs is told, what it reads, and how it is seen to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bootseer import tar
from bootseer.errors import NoSpace, OverQuota, Unavailable
from bootseer.squashfs.mksquashfs import Program
from bootseer.squashfs.writer import Packer, PackOptions, pack
from bootseer.units import KIB, MIB

needs_mksquashfs = pytest.mark.skipif(
    shutil.which("mksquashfs") is None, reason="needs squashfs-tools"
)


class Started:
    """Starts another program instead, and keeps what mksquashfs would have been told."""

    def __init__(self, *command: str) -> None:
        self.command = command
        self.arguments: list[list[str]] = []
        self.fds: list[Sequence[int]] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(
        self, arguments: Sequence[str], stdin: int, stderr: int, fds: Sequence[int]
    ) -> Program:
        self.arguments.append(list(arguments))
        self.fds.append(fds)
        process = subprocess.Popen(
            self.command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr
        )
        self.processes.append(process)
        return self.processes[-1]


def shell(script: str) -> Started:
    return Started("sh", "-c", script)


COMMON = ["-mkfs-time", "0", "-quiet", "-no-progress", "-exit-on-error"]


@pytest.mark.parametrize(
    ("packing", "options", "common"),
    [
        (
            PackOptions(),
            ["-b", "131072", "-comp", "zstd", "-no-fragments", "-Xcompression-level", "3"],
            ["-mem", "256M"],
        ),
        (
            PackOptions(4 * KIB, "lz4", 5, True, 2, 3 * MIB),
            ["-b", "4096", "-comp", "lz4", "-always-use-fragments"],
            ["-mem", "3M", "-processors", "2"],
        ),
        (
            PackOptions(level=7, processors=1, memory_bytes=KIB),
            ["-b", "131072", "-comp", "zstd", "-no-fragments", "-Xcompression-level", "7"],
            ["-mem", "1M", "-processors", "1"],
        ),
    ],
    ids=["usual", "lz4", "little memory"],
)
def test_mksquashfs_is_told_how_to_pack(
    tmp_path: Path, packing: PackOptions, options: list[str], common: list[str]
) -> None:
    start = Started("cat")
    with pack(tmp_path / "image", packing, None, [7, 8], start=start):
        pass
    to = ["-", str(tmp_path / "image")]
    assert start.arguments == [[*to, "-tar", "-noappend", *options, *COMMON, *common]]
    assert start.fds == [[7, 8]]


def test_a_second_run_sets_the_root_folder_right(tmp_path: Path) -> None:
    start = Started("cat")
    root = tar.Member("", tar.FOLDER, mode=0o2711, uid=1, gid=2, mtime_s=3)
    with pack(tmp_path / "image", PackOptions(), root, [7], start=start):
        assert len(start.arguments) == 1
    about = ["-root-mode", "2711", "-root-time", "3", "-root-uid", "1", "-root-gid", "2"]
    first, second = start.arguments
    assert first[-8:] == about
    common = [*COMMON, "-mem", "256M", *about]
    assert second == ["-", str(tmp_path / "image"), "-cpiostyle", "-no-recovery", *common]
    assert start.fds == [[7], [7]]


def test_mksquashfs_reads_the_written_bytes_and_an_end(tmp_path: Path) -> None:
    read = tmp_path / "read"
    data = os.urandom(3 * MIB + 5)
    with pack(tmp_path / "image", PackOptions(), None, start=shell(f"cat > {read}")) as packer:
        for at in range(0, len(data), 100_000):
            packer.write(memoryview(data)[at : at + 100_000])
    assert read.read_bytes() == data + bytes(1024)


def test_written_bytes_are_passed_on_by_the_megabyte() -> None:
    fd = os.memfd_create("stream")
    packer, sizes = Packer(fd), []
    for data in (bytes(MIB - 1), b"x", b"y"):
        packer.write(data)
        sizes.append(os.fstat(fd).st_size)
    packer.flush()
    assert [*sizes, os.fstat(fd).st_size] == [0, MIB, MIB, MIB + 1]
    os.close(fd)


def test_mksquashfs_is_killed_when_the_block_is_left(tmp_path: Path) -> None:
    start = Started("sleep", "5")
    with pytest.raises(KeyError), pack(tmp_path / "image", PackOptions(), None, start=start):
        raise KeyError
    assert start.processes[0].returncode == -signal.SIGKILL


LINES = "\\n".join(["one", "two", "", "three", "four", "five", "six"])


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("exit 1", Unavailable, r"ended with exit status 1; its output:$"),
        ("kill -TERM $$", Unavailable, r"ended by signal 15; its output:$"),
        (
            f"printf '{LINES}' >&2; exit 2",
            Unavailable,
            r"exit status 2; its output:\ntwo\nthree\nfour\nfive\nsix$",
        ),
        (r"printf 'a\033[b\377' >&2; exit 1", Unavailable, r"output:\na\\x1b\[b\\ufffd$"),
        ("echo 'it is: No space left on device' >&2; exit 1", NoSpace, "no space left on device"),
        ("echo 'Disk quota exceeded' >&2; exit 1", OverQuota, "disk quota exceeded"),
        ("echo 'invalid option' >&2; exit 1", Unavailable, "squashfs-tools 4.5 or newer"),
    ],
)
def test_the_failure_of_mksquashfs_is_reported(
    tmp_path: Path, script: str, error: type[Exception], message: str
) -> None:
    start = shell(f"cat > /dev/null; {script}")
    with (
        pytest.raises(error, match=message),
        pack(tmp_path / "image", PackOptions(), None, start=start),
    ):
        pass


@needs_mksquashfs
def test_a_pack_of_nothing_is_an_image(tmp_path: Path) -> None:
    root = tar.Member("", tar.FOLDER, mode=0o700, uid=5, gid=5, mtime_s=77)
    with pack(tmp_path / "image", PackOptions(), root):
        pass
    command = ["unsquashfs", "-lln", str(tmp_path / "image")]
    in_utc = {**os.environ, "TZ": "UTC"}
    listed = subprocess.run(command, check=True, capture_output=True, text=True, env=in_utc).stdout
    assert listed.split() == ["drwx------", "5/5", "3", "1970-01-01", "00:01", "squashfs-root"]

"""Have mksquashfs write a squashfs file from a tar stream.

mksquashfs and not sqfstar: the one of squashfs-tools 4.5, which Debian 12 has, takes no compression
level. And in two runs: that one gives the root folder the owner and the time of whoever runs it,
and only what is appended to a file sets them right. The second run adds nothing else, reads and
writes tables only, and takes 0.7 s for 200,000 files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bootseer.errors import BootseerError, NoSpace, OverQuota, Unavailable
from bootseer.image.tar import Member
from bootseer.posix import write_fully
from bootseer.units import KIB, MIB

_PIPE_BYTES = MIB
_ENVIRONMENT = {"LC_ALL": "C"}  # and no SOURCE_DATE_EPOCH, which would change the files' times
_FULL = {"No space left on device": NoSpace, "Disk quota exceeded": OverQuota}


@dataclass(frozen=True, slots=True)
class Packing:
    """How a squashfs is written.

    Attributes:
        block_bytes: the unit of compression, and the least that a read of a file fetches.
        compressor: zstd or lz4.
        level: zstd's.
        fragments: put ends of files together into blocks: smaller, but whoever reads one file
            then fetches parts of others.
        processors: to be used, 0 for all.
        memory_bytes: of mksquashfs' queues.
    """

    block_bytes: int = 128 * KIB
    compressor: str = "zstd"
    level: int = 3
    fragments: bool = False
    processors: int = 0
    memory_bytes: int = 256 * MIB


class Packer:
    """The tar stream that mksquashfs reads."""

    def __init__(self, fd: int) -> None:
        """Write to `fd`, which stays the caller's."""
        self._fd = fd
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        """Add to the stream."""
        self._waiting += data
        if len(self._waiting) >= _PIPE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand on what has been added."""
        try:
            with memoryview(self._waiting) as data:
                write_fully(self._fd, data)
        except BrokenPipeError as error:
            raise _Ended from error
        self._waiting.clear()


class _Ended(Exception):
    """mksquashfs has ended before its input."""


@contextmanager
def pack(
    path: Path, packing: Packing, root: Member | None, fds: Sequence[int] = ()
) -> Iterator[Packer]:
    """Write a squashfs file of what is written to the packer in the block.

    Args:
        path: of a file, which is overwritten.
        packing: how to write it.
        root: whose owner, mode and time the root folder is to have; None if they do not matter.
        fds: that mksquashfs inherits, so that it can open a path in /proc/self/fd.

    Raises:
        NoSpace: there is none left.
        Unavailable: mksquashfs is missing, too old, or failed.

    Cancellation: an exception from the block ends mksquashfs; the file may be gone then, or not.
    """
    common = [
        *("-mkfs-time", "0", "-quiet", "-no-progress", "-exit-on-error"),
        *("-mem", f"{max(1, packing.memory_bytes // MIB)}M"),
    ]
    if root is not None:
        common += ["-root-mode", f"{root.mode:o}", "-root-time", str(root.mtime_s)]
        common += ["-root-uid", str(root.uid), "-root-gid", str(root.gid)]
    if packing.processors:
        common += ["-processors", str(packing.processors)]
    options = [
        *("-tar", "-noappend", "-b", str(packing.block_bytes)),
        *("-comp", packing.compressor),
        "-always-use-fragments" if packing.fragments else "-no-fragments",
    ]
    if packing.compressor == "zstd":
        options += ["-Xcompression-level", str(packing.level)]
    with _mksquashfs(path, [*options, *common], subprocess.PIPE, fds) as process:
        assert process.stdin is not None
        packer = Packer(process.stdin.fileno())
        yield packer
        packer.write(bytes(1024))
        packer.flush()
        process.stdin.close()
    if root is not None:
        # Nothing is appended: the names of what to append come from stdin.
        with _mksquashfs(path, ["-cpiostyle", "-no-recovery", *common], subprocess.DEVNULL, fds):
            pass


@contextmanager
def _mksquashfs(
    path: Path, options: list[str], stdin: int, fds: Sequence[int]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run mksquashfs alongside a block, and see it end well behind it."""
    search = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    program = shutil.which("mksquashfs", path=search)
    if program is None:
        raise Unavailable("mksquashfs not found: install the package squashfs-tools")
    log = os.memfd_create("mksquashfs")  # no pipe: nobody reads it before the end
    try:
        process = _start([program, "-", str(path.absolute()), *options], stdin, log, fds)
        with process:
            try:
                with suppress(_Ended):
                    yield process
                if process.wait() != 0:
                    raise _failure(path, process.returncode, os.pread(log, 64 * KIB, 0))
            finally:
                process.kill()
    finally:
        os.close(log)


def _start(command: list[str], stdin: int, log: int, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=log,
            bufsize=0,
            pipesize=_PIPE_BYTES,
            pass_fds=fds,
            env=_ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be run: {error.strerror}") from error


def _failure(path: Path, status: int, log: bytes) -> BootseerError:
    said, folder = log.decode(errors="replace"), path.resolve().parent
    for sign, error in _FULL.items():
        if sign in said:
            return error(f"cannot write an image in {folder}: {sign.lower()}; free some")
    if "invalid option" in said:
        return Unavailable("mksquashfs is too old: install squashfs-tools 4.5 or newer, with zstd")
    lines = [ascii(line)[1:-1] for line in said.splitlines() if line.strip()]
    how = f"with exit status {status}" if status >= 0 else f"by signal {-status}"
    return Unavailable("\n".join([f"mksquashfs ended {how}; it said:", *lines[-5:]]))

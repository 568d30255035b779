"""Write a squashfs file from a tar stream, with mksquashfs.

sqfstar is not used, because that of squashfs-tools 4.5 (Debian 12) has no option for the
compression level. mksquashfs runs twice: the first run gives the root folder the owner and time
of its own process, and only appending sets them right. The second run reads and writes tables
only, which takes 0.7 s for 200,000 files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bootseer.errors import BootseerError, NoSpace, OverQuota, Unavailable
from bootseer.posix import write_fully
from bootseer.squashfs.mksquashfs import Start, start_plainly
from bootseer.tar import Member
from bootseer.units import KIB, MIB

_PIPE_BYTES = MIB
_FULL = {"No space left on device": NoSpace, "Disk quota exceeded": OverQuota}


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a squashfs is written.

    Attributes:
        block_bytes: the unit of compression, and of reads.
        compressor: zstd or lz4.
        level: zstd's.
        fragments: pack ends of files into shared blocks: smaller, but reading one file then fetches
            parts of others.
        processors: number of processors to use, 0 for all.
        memory_bytes: size of mksquashfs' queues.
        is_linear: store every block, in the order of the files: no holes, no shared blocks.
    """

    block_bytes: int = 128 * KIB
    compressor: str = "zstd"
    level: int = 3
    fragments: bool = False
    processors: int = 0
    memory_bytes: int = 256 * MIB
    is_linear: bool = False


class Packer:
    """The tar stream that mksquashfs reads."""

    def __init__(self, fd: int) -> None:
        """Write to `fd`, which stays the caller's."""
        self._fd = fd
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self._waiting += data
        if len(self._waiting) >= _PIPE_BYTES:
            self.flush()

    def flush(self) -> None:
        try:
            with memoryview(self._waiting) as data:
                write_fully(self._fd, data)
        except BrokenPipeError as error:
            raise _Ended from error
        self._waiting.clear()


class _Ended(Exception):
    """mksquashfs has ended before the end of its input."""


@contextmanager
def pack(
    path: Path,
    packing: PackOptions,
    root: Member | None,
    fds: Sequence[int] = (),
    start: Start = start_plainly,
) -> Iterator[Packer]:
    """Write a squashfs file from the tar stream written to the packer in the block.

    Args:
        path: path of the file, which is overwritten.
        packing: options of the file.
        root: gives owner, mode and time of the root folder; None if they do not matter.
        fds: descriptors that mksquashfs inherits, for paths in /proc/self/fd.
        start: starts mksquashfs.

    Raises:
        NoSpace: the disk is full.
        Unavailable: mksquashfs is missing, too old, or failed.

    Cancellation: an exception in the block ends mksquashfs; the file may be missing or incomplete.
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
    if packing.is_linear:
        options += ["-no-sparse", "-no-duplicates"]
    if packing.compressor == "zstd":
        options += ["-Xcompression-level", str(packing.level)]
    with _mksquashfs(path, [*options, *common], fds, start) as fd:
        packer = Packer(fd)
        yield packer
        packer.write(bytes(1024))
        packer.flush()
    if root is not None:
        # Nothing is appended: the names to append would come from stdin.
        with _mksquashfs(path, ["-cpiostyle", "-no-recovery", *common], fds, start):
            pass


@contextmanager
def _mksquashfs(path: Path, options: list[str], fds: Sequence[int], start: Start) -> Iterator[int]:
    """Run mksquashfs during a block that writes its input; raises if mksquashfs fails."""
    with ExitStack() as opened:
        log = os.memfd_create("mksquashfs")  # not a pipe: it is read only at the end
        opened.callback(os.close, log)
        with ExitStack() as reading, ExitStack() as writing:
            source, sink = os.pipe()
            writing.callback(os.close, sink)
            reading.callback(os.close, source)
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            process = start(["-", str(path.absolute()), *options], source, log, fds)
            reading.close()  # so that writes fail once mksquashfs has ended
            opened.callback(process.wait)
            opened.callback(process.kill)
            with suppress(_Ended):
                yield sink
        if process.wait() != 0:
            raise _failure(path, process.wait(), os.pread(log, 64 * KIB, 0))


def _failure(path: Path, status: int, log: bytes) -> BootseerError:
    output, folder = log.decode(errors="replace"), path.resolve().parent
    for sign, error in _FULL.items():
        if sign in output:
            return error(f"cannot write an image in {folder}: {sign.lower()}; free some")
    if "invalid option" in output:
        return Unavailable("mksquashfs is too old: install squashfs-tools 4.5 or newer, with zstd")
    lines = [ascii(line)[1:-1] for line in output.splitlines() if line.strip()]
    how = f"with exit status {status}" if status >= 0 else f"by signal {-status}"
    return Unavailable("\n".join([f"mksquashfs ended {how}; its output:", *lines[-5:]]))

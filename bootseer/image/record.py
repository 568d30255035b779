"""Record which ranges of an image enter the page cache during a start-up.

Runs as root: the kernel tells residency to the owner of a file and to root only. The descriptor
comes from the job's user, who has opened the image; the mapping is touched only by `settle`, which
the caller can leave behind, so nothing the user does to the file can stop or crash the recorder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from bootseer._io import ffi, lib
from bootseer.core.ranges import ByteRange, subtract, total_bytes
from bootseer.core.trace import MAX_TOUCHES, Touch
from bootseer.errors import Unavailable

_SAMPLE_RANGES = 16_384

MAX_IMAGE_BYTES = 1 << 40
"""Larger files are no images: looking at one of 10 TB, sparse or not, takes half a second."""

MAX_MINCORE_BYTES = 32 << 30
"""The same where the kernel has no cachestat: mincore looks at every page, resident or not."""

MIN_USED_SHARE = 0.25
"""With fewer pages than this in active use, the kernel's lists say nothing about this start."""

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")

COMPLETE_SHARE = 0.02
"""Up to this share of the image may be resident beforehand for the recording to count as whole."""


class Recorder:
    """Samples the residency of one image; not safe from several threads at once."""

    def __init__(self, fd: int, leading: Iterable[ByteRange] = ()) -> None:
        """Take over ``fd`` (closed by `close`) and take the sample that later ones differ from.

        Args:
            fd: of the image.
            leading: superblock and tables, which are read at every start and not recorded.

        Raises:
            Unavailable: the descriptor is not of a regular file, or cannot be mapped.
        """
        self._fd = fd
        self._leading = list(leading)
        self._handle = ffi.NULL
        self._out = ffi.new("bs_range[]", _SAMPLE_RANGES)
        self._stop = False
        self.touches: list[Touch] = []
        try:
            info = _status(fd)
            if not stat.S_ISREG(info.st_mode):
                raise Unavailable("what was handed over as an image is not a regular file")
            if info.st_size > MAX_IMAGE_BYTES:
                raise Unavailable(f"{info.st_size} bytes are more than an image has")
            if info.st_size > MAX_MINCORE_BYTES and not lib.bs_has_cachestat(fd):
                raise Unavailable(
                    f"{info.st_size} bytes are more than this kernel can watch: it has no cachestat"
                )
            self.size_bytes = info.st_size
            handle = ffi.new("bs_residency **")
            _check(lib.bs_residency_open(fd, self.size_bytes, handle), "watch the image")
            self._handle = handle[0]
            self.resident_before = subtract(self._newly_resident(), self._leading)
        except BaseException:
            self.close()
            raise

    @property
    def found_cold(self) -> bool:
        """The image was practically absent from the page cache when recording began."""
        return total_bytes(self.resident_before) <= COMPLETE_SHARE * self.size_bytes

    def sample(self, now_ms: int) -> int:
        """Note what has become resident since the last sample; returns how many bytes.

        Args:
            now_ms: milliseconds since recording began, the time noted for these ranges.
        """
        fresh = subtract(self._newly_resident(), self._leading)
        room = MAX_TOUCHES - len(self.touches)
        self.touches += [Touch(start, stop, now_ms) for start, stop in fresh[:room]]
        return total_bytes(fresh)

    def settle(self) -> None:
        """Forget what was only read ahead, at the end of the recording.

        The kernel's read-ahead makes a trace a third larger than what a start needs, and the time
        to prefetch it. Should a forgotten page be needed after all, the start that misses it
        records it. Where the kernel does not say which pages are in use, or calls hardly any so,
        nothing is forgotten.

        It can block in reading the image: call it in a thread of its own, which `stop_settling`
        ends at the next touch.
        """
        used: list[Touch] = []
        for touch in self.touches:
            if self._stop:
                return
            pages = ffi.new("uint8_t[]", (touch.stop - touch.start) // _PAGE_BYTES + 2)
            if lib.bs_residency_active(self._handle, touch.start, touch.stop, pages) < 0:
                return
            runs = _runs(touch, pages)
            used += [Touch(start, stop, touch.first_ms) for start, stop, active in runs if active]
        if not self._stop and _bytes_of(used) >= MIN_USED_SHARE * _bytes_of(self.touches):
            self.touches = used

    def stop_settling(self) -> None:
        """Have a `settle` that is under way in another thread forget nothing more, and end."""
        self._stop = True

    def close(self) -> None:
        """Stop watching; what was recorded stays readable."""
        if self._handle != ffi.NULL:
            lib.bs_residency_close(self._handle)
            self._handle = ffi.NULL
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _newly_resident(self) -> list[ByteRange]:
        ranges: list[ByteRange] = []
        while True:
            count = lib.bs_residency_sample(self._handle, self._out, _SAMPLE_RANGES)
            _check(count, "sample the image's residency")
            ranges += [ByteRange(r.start, r.stop) for r in self._out[0:count]]
            if count < _SAMPLE_RANGES or len(ranges) >= MAX_TOUCHES:
                return ranges


def _runs(touch: Touch, pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut a touched range where its pages' state changes."""
    first = touch.start // _PAGE_BYTES
    at, state = touch.start, pages[0]
    for page in range(first + 1, -(-touch.stop // _PAGE_BYTES)):
        if pages[page - first] != state:
            yield at, page * _PAGE_BYTES, state
            at, state = page * _PAGE_BYTES, pages[page - first]
    yield at, touch.stop, state


def _bytes_of(touches: Iterable[Touch]) -> int:
    return sum(t.stop - t.start for t in touches)


def _status(fd: int) -> os.stat_result:
    try:
        return os.fstat(fd)
    except OSError as error:
        raise Unavailable(f"cannot look at the image: {error.strerror}") from error


def _check(result: int, what: str) -> None:
    if result < 0:
        raise Unavailable(f"cannot {what}: {os.strerror(-result)} ({errno.errorcode[-result]})")

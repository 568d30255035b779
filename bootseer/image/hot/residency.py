"""Which pages of a file are in the page cache; the kernel tells only root and the file's owner.

The descriptor comes from the job's user, who has opened the image. Only `KernelResidency.active`
touches the mapping, by a call that fails if the file has become shorter: nothing that the user does
to the file can crash this process.

Standard library and our own extension only.
"""

from __future__ import annotations

import errno
import os
import stat

from bootseer._io import ffi, lib
from bootseer.errors import Unavailable

MAX_FILE_BYTES = 1 << 40
"""Larger files are no images: a sample of 10 TB, sparse or not, takes half a second."""
MAX_MINCORE_BYTES = 32 << 30
"""The same where cachestat does not count: mincore looks at every page, resident or not."""
PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class KernelResidency:
    """The `bootseer.image.hot.recorder.ResidentPages` of a file, for root."""

    def __init__(self, fd: int) -> None:
        """Take over ``fd``.

        Raises:
            Unavailable: it is not of a regular file, or cannot be mapped.
        """
        self._fd = fd
        self._handle = ffi.NULL
        try:
            info = _status(fd)
            if not stat.S_ISREG(info.st_mode):
                raise Unavailable("what was handed over as an image is not a regular file")
            if info.st_size > MAX_FILE_BYTES:
                raise Unavailable(f"{info.st_size} bytes are more than an image has")
            if info.st_size > MAX_MINCORE_BYTES and not lib.bs_has_cachestat(fd):
                raise Unavailable(
                    f"{info.st_size} bytes are more than can be watched here: there is no cachestat"
                )
            self.size_bytes = info.st_size
            handle = ffi.new("bs_residency **")
            _check(lib.bs_residency_open(fd, self.size_bytes, handle), "watch the image")
            self._handle = handle[0]
        except BaseException:
            self.close()
            raise

    def newly_resident(self, most: int) -> list[tuple[int, int]]:
        out = ffi.new("bs_range[]", most)
        count = lib.bs_residency_sample(self._handle, out, most)
        _check(count, "sample the image's residency")
        return [(r.start, r.stop) for r in out[0:count]]

    def active(self, start: int, stop: int) -> bytes | None:
        pages = -(-stop // PAGE_BYTES) - start // PAGE_BYTES
        out = ffi.new("uint8_t[]", max(1, pages))
        if lib.bs_residency_active(self._handle, start, stop, out) < 0:
            return None
        return bytes(ffi.buffer(out, pages))

    def close(self) -> None:
        if self._handle != ffi.NULL:
            lib.bs_residency_close(self._handle)
            self._handle = ffi.NULL
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _status(fd: int) -> os.stat_result:
    try:
        return os.fstat(fd)
    except OSError as error:
        raise Unavailable(f"cannot look at the image: {error.strerror}") from error


def _check(result: int, what: str) -> None:
    if result < 0:
        raise Unavailable(f"cannot {what}: {os.strerror(-result)} ({errno.errorcode[-result]})")

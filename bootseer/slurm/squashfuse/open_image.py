"""Open an image for bootseer's C extension."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bootseer.posix import check_result


@contextmanager
def open_image(path: str, offset: int = 0) -> Iterator[Any]:
    """Open an image for the length of a block; yields C's ``sq_image *``.

    Args:
        path: of the file.
        offset: where the image begins in it, in bytes.

    Raises:
        OSError: it cannot be opened, or not be read here.
    """
    from bootseer._squashfs import ffi, lib

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        opened = ffi.new("sq_image **")
        check_result(lib.sq_open(fd, offset, opened))
        try:
            yield opened[0]
        finally:
            lib.sq_close(opened[0])
    finally:
        os.close(fd)

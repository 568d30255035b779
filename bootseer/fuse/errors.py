"""Convert errors to numbers that the kernel accepts in answers."""

from __future__ import annotations

import errno

_CODES = range(1, 512)
"""The kernel refuses greater numbers, and the requesting process would wait forever."""


def errno_of(error: OSError) -> int:
    """Return an error's number, or EIO if the kernel would not accept it."""
    return errno.EIO if error.errno is None or error.errno not in _CODES else error.errno

"""The number of an error with which the kernel can be answered."""

from __future__ import annotations

import errno

_CODES = range(1, 512)
"""The kernel refuses others, and who asked would wait for ever."""


def errno_of(error: OSError) -> int:
    """Return an error's number, or EIO where it has none that can be told."""
    return errno.EIO if error.errno is None or error.errno not in _CODES else error.errno

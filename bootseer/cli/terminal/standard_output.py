"""Standard output that ends the program when it cannot be written, as other Unix programs end."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_EXIT_CODE = 1


def guard() -> None:
    """Replace ``sys.stdout``: a failed write ends the program, at whatever layer it is noticed.

    If the reader has gone (``| head -1``), SIGPIPE ends it, silently. SIGPIPE is not restored for
    all of the program: it would also end writes to sockets. Other errors, such as a full disk, are
    printed on standard error, and the exit code is 1.
    """
    given = sys.stdout
    if given is None:  # it was closed from the start; any write to this descriptor fails
        raw = _StandardOutput(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), "w")
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "surrogateescape")
        return
    given.flush()
    raw = _StandardOutput(given.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), given.encoding, given.errors, line_buffering=given.isatty()
    )


class _StandardOutput(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _end(error)


def _end(error: OSError) -> NoReturn:
    if error.errno == errno.EPIPE:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)
    text = f"bootseer: cannot write to standard output: {error.strerror}\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(_EXIT_CODE)

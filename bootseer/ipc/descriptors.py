"""Send and receive descriptors with messages on a socket (SCM_RIGHTS).

Imports the standard library only.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from bootseer.errors import Corrupt


def received(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that `socket.recvmsg` has received."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def receive(end: socket.socket, max_bytes: int, max_fds: int) -> tuple[bytes, list[int]]:
    """Receive a message (b"" at the end) and its descriptors, as close-on-exec.

    Raises:
        OSError: the other end has closed without reading everything.
    """
    space = socket.CMSG_SPACE(max_fds * array.array("i").itemsize)
    message, ancillary, _, _ = end.recvmsg(max_bytes, space, socket.MSG_CMSG_CLOEXEC)
    return message, received(ancillary)


def exactly(fds: list[int], count: int) -> list[int]:
    """Return a message's descriptors, whose number must be ``count``.

    Raises:
        Corrupt: the number differs.
    """
    if len(fds) != count:
        raise Corrupt(f"a message has {len(fds)} descriptors, not {count}")
    return fds


def close_all(fds: Sequence[int]) -> None:
    """Close a message's descriptors."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)

"""Create the agent's sockets, to which only root and one user can connect.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import socket

MAX_WAITING = 64
"""Connections waiting to be accepted."""


def listen(path: str, uid: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Create a listening socket for root and one user.

    Clients can connect once the path exists; requests wait until they are accepted.

    Args:
        path: path of the socket.
        uid: the user's id; 0 for root alone.  kind: type of the socket.
    """
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    previous = os.umask(0o177)
    try:
        listener.bind(f"{path}.new")
    finally:
        os.umask(previous)
    os.chown(f"{path}.new", uid, -1)
    listener.listen(MAX_WAITING)
    os.rename(f"{path}.new", path)
    return listener

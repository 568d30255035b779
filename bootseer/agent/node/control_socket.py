"""Make the sockets of a job's agent, which only root and one user can connect to.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import os
import socket

MAX_WAITING = 64
"""Connections that the agent has not taken yet."""


def listen(path: str, uid: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Create the control socket, or another of the job's, for root and one user only.

    Once the path exists requests can be made; they wait for whoever gets the socket to take them.

    Args:
        path: where it is to be.
        uid: of the user; 0 for root alone.
        kind: of the socket.
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

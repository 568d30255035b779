"""Hand a job's mounts to slurmstepd, for tasks whose mount namespace does not have them.

The socket is in a folder where only root can make names, and only root may connect. A request is
two numbers, a kind of mount and its number. The answer is an errno; with 0 comes a descriptor of a
copy of the mount that is attached nowhere. spank/mounts.c is the other end.

Standard library and our own extension only.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress

from bootseer.agent.broker.mounts import Mounts
from bootseer.agent.messages.broker import MountKind
from bootseer.errors import NotFound
from bootseer.fuse.root_mounts import copy_mount

REQUEST = struct.Struct("=II")
REPLY = struct.Struct("=i")
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid
_REQUEST_S = 0.2
"""For root's request to arrive, which is sent before we look."""


def answer(connection: socket.socket, mounts: Mounts) -> None:
    """Answer the one request of a connection; whatever it is, nothing is raised.

    Args:
        connection: closed at the end.
        mounts: of the job.
    """
    with connection:
        try:
            connection.settimeout(_REQUEST_S)
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(peer)[1] != 0:
                return
            mount = _copy(connection.recv(REQUEST.size + 1), mounts)
            try:
                socket.send_fds(connection, [REPLY.pack(0)], [mount])
            finally:
                os.close(mount)
        except OSError as error:
            with suppress(OSError):  # nobody is there any more
                connection.send(REPLY.pack(error.errno or errno.EIO))


def _copy(request: bytes, mounts: Mounts) -> int:
    try:
        kind, number = REQUEST.unpack(request)
        return copy_mount(mounts.path(MountKind(kind), number))
    except (struct.error, ValueError, NotFound) as error:
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO)) from error

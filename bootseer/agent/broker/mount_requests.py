"""Hand a job's mounts to slurmstepd, for tasks whose mount namespace lacks them.

The socket is in a folder that only root can write to, and only root may connect. A request holds a
kind of mount and its number. The answer is an errno; with 0 comes a descriptor of a detached copy
of the mount. spank/mounts.c is the client.

Imports the standard library and bootseer's C extension only.
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
"""Timeout for root's request, which is sent on connecting."""


def answer(connection: socket.socket, mounts: Mounts) -> None:
    """Answer the one request of a connection; never raises.

    Args:
        connection: from slurmstepd; closed at the end.
        mounts: the job's mounts.
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
            with suppress(OSError):  # the client has gone
                connection.send(REPLY.pack(error.errno or errno.EIO))


def _copy(request: bytes, mounts: Mounts) -> int:
    try:
        kind, number = REQUEST.unpack(request)
        return copy_mount(mounts.path(MountKind(kind), number))
    except (struct.error, ValueError, NotFound) as error:
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO)) from error

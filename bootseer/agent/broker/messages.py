"""What a supervisor asks the broker for, and what it is told: fixed-size binary messages.

A request is its number, its verb and the fields of that verb; a reply has the number of its
request. Descriptors come with them as SCM_RIGHTS, and the socket keeps messages apart
(SOCK_SEQPACKET). All numbers are in the machine's own order, for both ends are on it.

Standard library only.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import ClassVar

from bootseer import errors

MAX_DESCRIPTORS = 8
"""With one message."""
_WHY_BYTES = 512
_HEAD = struct.Struct("=QI")
_REPLY = struct.Struct(f"=QIqq{_WHY_BYTES}s")
MAX_BYTES = max(256, _REPLY.size)
TOKEN_BYTES = 32


class Role(IntEnum):
    """Which worker of the user's is started; its module in `bootseer.agent.workers`."""

    PREFETCH = 0
    RUN_ENVIRONMENT = 1
    PUBLISH = 2
    UPLOAD_IMPORT = 3

    @property
    def module(self) -> str:
        """Name of its module."""
        return self.name.lower()


class Mount(IntEnum):
    """What may be mounted for a job. spank/mounts.c has the same numbers."""

    CHECKPOINT = 0
    IMAGE = 1
    ROOT = 2
    ENVIRONMENT = 3


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker. Reply: its handle, and a descriptor of its channel."""

    role: int


@dataclass(frozen=True, slots=True)
class ServeImage:
    """Mount an image, and start the worker that serves it. Reply: as for `Start`.

    Attributes:
        number: of the mount, not in use in this job.
        is_tree: it is an environment, and shown in namespaces that its user may own.
    """

    number: int
    is_tree: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a worker, and wait for its end, a second at most."""

    handle: int


@dataclass(frozen=True, slots=True)
class Unmount:
    """Take a mount away, whoever uses it; a `Mount` and its number."""

    mount: int
    number: int


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Set how far the kernel reads ahead of a mount's readers; a `Mount`, its number, KiB."""

    mount: int
    number: int
    kib: int


@dataclass(frozen=True, slots=True)
class Overlay:
    """Lay writable file systems over the folders 0, 1, … of a served tree.

    Reply: the number of the first.

    Attributes:
        image: number of the tree's mount.
        count: of folders.
        read_only: they take no changes.
    """

    image: int
    count: int
    read_only: int


@dataclass(frozen=True, slots=True)
class LookAt:
    """Say where a process of the job's user is.

    Reply: whether it sees another root folder than the broker; with a descriptor of its mount
    namespace, unless that is the node's own.
    """

    pid: int


@dataclass(frozen=True, slots=True)
class Show:
    """Show an overlay in another mount namespace; with descriptors of a folder there and of it."""

    number: int


@dataclass(frozen=True, slots=True)
class Lend:
    """Open an image's entry in the block cache, found by its token.

    Reply: descriptors of manifest, data and map for readers, of data, map and claims for the
    keeper, and a socket on which the keeper asks for room, see `bootseer.cache.reservation`. The
    entry is in use until that is closed. The number is the entry's, for `MountRoot`.
    """

    token: bytes


@dataclass(frozen=True, slots=True)
class LendNew:
    """Open an image's entry, given its manifest: with a descriptor of that in sealed memory.

    Attributes:
        manifest_bytes, image_bytes, blocks: see `bootseer.cache.size`.
    """

    manifest_bytes: int
    image_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class MountRoot:
    """Have the kernel mount the image of an entry, if the administrator lists it."""

    entry: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch which pages of a file are in memory, with its descriptor.

    Reply: a socket for `bootseer.agent.broker.residency`, and the file's length.
    """


@dataclass(frozen=True, slots=True)
class Clear:
    """Take the overlays away, and what was written over them."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The job has ended: nothing is left to be done."""


Request = (
    Start
    | ServeImage
    | Kill
    | Unmount
    | ReadAhead
    | Overlay
    | LookAt
    | Show
    | Lend
    | LendNew
    | MountRoot
    | Watch
    | Clear
    | Finish
)
_VERBS: tuple[type[Request], ...] = (
    *(Start, ServeImage, Kill, Unmount, ReadAhead, Overlay, LookAt, Show),
    *(Lend, LendNew, MountRoot, Watch, Clear, Finish),
)


def _layout(verb: type[Request]) -> struct.Struct:
    return struct.Struct("=" + "".join("32s" if f.type == "bytes" else "q" for f in fields(verb)))


_LAYOUTS = [_layout(verb) for verb in _VERBS]


def receive(end: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message, b"" at the end, and the descriptors that came with it, for no child.

    Raises:
        OSError: the other end has gone, and has not read all that was sent.
    """
    message, fds, _, _ = socket.recv_fds(end, MAX_BYTES + 1, MAX_DESCRIPTORS)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds


def close_all(fds: list[int]) -> None:
    """Close descriptors that came with a message, or went with one."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def encode(number: int, request: Request) -> bytes:
    """Encode a request.

    Args:
        number: that its reply has.
        request: with integers of 64 bits, and tokens of 32 bytes.
    """
    verb = _VERBS.index(type(request))
    values = [getattr(request, f.name) for f in fields(request)]
    return _HEAD.pack(number, verb) + _LAYOUTS[verb].pack(*values)


def decode(message: bytes) -> tuple[int, Request]:
    """Decode a request; returns its number as well.

    Raises:
        Corrupt: it is none.
    """
    try:
        number, verb = _HEAD.unpack_from(message)
        return number, _VERBS[verb](*_LAYOUTS[verb].unpack(message[_HEAD.size :]))
    except (struct.error, IndexError) as error:
        raise errors.Corrupt(f"{len(message)} bytes are no request to the broker") from error


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request.

    Attributes:
        number: of the request.
        error: None if it was carried out; `Unavailable` stands for all that has no class of ours.
        value, second: what there is to say.
    """

    number: int
    error: errors.BootseerError | None = None
    value: int = 0
    second: int = 0

    _ERRORS: ClassVar[tuple[type[errors.BootseerError], ...]] = (
        *(errors.Unavailable, errors.NotFound, errors.NoSpace, errors.Denied, errors.Corrupt),
    )

    def encode(self) -> bytes:
        """Encode it."""
        kind, why = 0, b""
        if self.error is not None:
            kind = (
                1 + self._ERRORS.index(type(self.error)) if type(self.error) in self._ERRORS else 1
            )
            why = str(self.error).encode(errors="backslashreplace")[:_WHY_BYTES]
        return _REPLY.pack(self.number, kind, self.value, self.second, why)

    @classmethod
    def decode(cls, message: bytes) -> Reply:
        """Decode one.

        Raises:
            Corrupt: it is none.
        """
        try:
            number, kind, value, second, why = _REPLY.unpack(message)
            error = (
                cls._ERRORS[kind - 1](why.rstrip(b"\0").decode(errors="replace")) if kind else None
            )
        except (struct.error, IndexError) as problem:
            raise errors.Corrupt(f"{len(message)} bytes are no reply of the broker") from problem
        return cls(number, error, value, second)

"""Fixed-size binary messages between processes of a job's agent that do not trust each other.

A request is its number, its verb and the fields of that verb; a reply has the number of its
request. Descriptors come with them as SCM_RIGHTS, and the socket keeps messages apart
(SOCK_SEQPACKET). All numbers are in the machine's own order, for both ends are on it.

The ends that ask have the rest, see `bootseer.agent.messages.client`.

Standard library only.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from bootseer import errors

MAX_DESCRIPTORS = 8
"""With one message."""
WHY_BYTES = 512
HEAD = struct.Struct("=QI")
REPLY = struct.Struct(f"=QIq{WHY_BYTES}s")
MAX_BYTES = max(256, REPLY.size)


class Verbs:
    """The requests that a process takes, each a dataclass of integers and of tokens.

    Attributes:
        all: in the order of their numbers.
        layouts: of their fields.
    """

    def __init__(self, *verbs: type[Any]) -> None:
        """Number them in this order.

        Args:
            verbs: with fields of `int` (64 bits) and `bytes` (32 of them).
        """
        self.all = verbs
        self.layouts = [_layout(verb) for verb in verbs]

    def decode(self, message: bytes) -> tuple[int, Any]:
        """Decode a request; returns its number as well.

        Raises:
            Corrupt: it is none.
        """
        try:
            number, verb = HEAD.unpack_from(message)
            values = self.layouts[verb].unpack(message[HEAD.size :])
            return number, self.all[verb](*values)
        except (struct.error, IndexError) as error:
            raise errors.Corrupt(f"{len(message)} bytes are no request") from error


def _layout(verb: type[Any]) -> struct.Struct:
    return struct.Struct("=" + "".join("32s" if f.type == "bytes" else "q" for f in fields(verb)))


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request.

    Attributes:
        number: of the request.
        error: None if it was carried out; `Unavailable` stands for all that has no class of ours.
        value: what there is to say.
    """

    number: int
    error: errors.BootseerError | None = None
    value: int = 0

    ERRORS: ClassVar[tuple[type[errors.BootseerError], ...]] = (
        *(errors.Unavailable, errors.NotFound, errors.NoSpace, errors.Denied, errors.Corrupt),
    )

    def encode(self) -> bytes:
        """Encode it."""
        kind, why = 0, b""
        if self.error is not None:
            known = type(self.error) in self.ERRORS
            kind = 1 + self.ERRORS.index(type(self.error)) if known else 1
            why = str(self.error).encode(errors="backslashreplace")[:WHY_BYTES]
        return REPLY.pack(self.number, kind, self.value, why)


def receive(end: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message, b"" at the end, and the descriptors that came with it, for no child.

    Raises:
        OSError: the other end has gone, and has not read all that was sent.
    """
    message, fds, _, _ = socket.recv_fds(end, MAX_BYTES + 1, MAX_DESCRIPTORS)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds


def exactly(fds: list[int], count: int) -> list[int]:
    """Return the descriptors that came with a message, so many.

    Raises:
        Corrupt: there are more, or fewer.
    """
    if len(fds) != count:
        raise errors.Corrupt(f"{len(fds)} descriptors, and not {count}, came with a message")
    return fds


def close_all(fds: list[int]) -> None:
    """Close descriptors that came with a message, or went with one."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)

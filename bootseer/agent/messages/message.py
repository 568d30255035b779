"""Fixed-size binary messages between processes of a job's agent that do not trust each other.

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
from typing import Any, ClassVar

from bootseer import errors

MAX_DESCRIPTORS = 8
"""With one message."""
_WHY_BYTES = 512
_HEAD = struct.Struct("=QI")
_REPLY = struct.Struct(f"=QIq{_WHY_BYTES}s")
MAX_BYTES = max(256, _REPLY.size)


class Verbs:
    """The requests that a process takes, each a dataclass of integers and of tokens."""

    def __init__(self, *verbs: type[Any]) -> None:
        """Number them in this order.

        Args:
            verbs: with fields of `int` (64 bits) and `bytes` (32 of them).
        """
        self.all = verbs
        self._layouts = [_layout(verb) for verb in verbs]

    def encode(self, number: int, request: Any) -> bytes:
        """Encode a request.

        Args:
            number: that its reply has.
            request: one of the verbs.
        """
        verb = self.all.index(type(request))
        values = [getattr(request, f.name) for f in fields(request)]
        return _HEAD.pack(number, verb) + self._layouts[verb].pack(*values)

    def decode(self, message: bytes) -> tuple[int, Any]:
        """Decode a request; returns its number as well.

        Raises:
            Corrupt: it is none.
        """
        try:
            number, verb = _HEAD.unpack_from(message)
            values = self._layouts[verb].unpack(message[_HEAD.size :])
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

    _ERRORS: ClassVar[tuple[type[errors.BootseerError], ...]] = (
        *(errors.Unavailable, errors.NotFound, errors.NoSpace, errors.Denied, errors.Corrupt),
    )

    def encode(self) -> bytes:
        """Encode it."""
        kind, why = 0, b""
        if self.error is not None:
            known = type(self.error) in self._ERRORS
            kind = 1 + self._ERRORS.index(type(self.error)) if known else 1
            why = str(self.error).encode(errors="backslashreplace")[:_WHY_BYTES]
        return _REPLY.pack(self.number, kind, self.value, why)

    @classmethod
    def decode(cls, message: bytes) -> Reply:
        """Decode one.

        Raises:
            Corrupt: it is none.
        """
        try:
            number, kind, value, why = _REPLY.unpack(message)
            text = why.rstrip(b"\0").decode(errors="replace")
            return cls(number, cls._ERRORS[kind - 1](text) if kind else None, value)
        except (struct.error, IndexError) as problem:
            raise errors.Corrupt(f"{len(message)} bytes are no reply") from problem


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

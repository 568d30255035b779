"""Fixed-size binary messages between processes of one node that do not trust each other.

A request is its number, its verb and the fields of that verb; a reply has the number of its
request. Descriptors come with them as SCM_RIGHTS, and the socket keeps messages apart
(SOCK_SEQPACKET). All numbers are in the machine's own order, for both ends are on it.

The ends that ask have the rest, see `bootseer.ipc.request_client`.

Standard library only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from bootseer import errors

MAX_DESCRIPTORS = 8
"""With one message."""
WHY_BYTES = 512
HEAD = struct.Struct("=QI")
REPLY = struct.Struct(f"=QIq{WHY_BYTES}s")
MAX_BYTES = 1 + max(256, REPLY.size)
"""Received at once: what is longer than a message can be is seen to be."""


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

"""Fixed-size binary messages between processes of one node that do not trust each other.

A request has a number, a verb and the verb's fields; a reply has the number of its request.
Descriptors are sent as SCM_RIGHTS. The socket preserves message boundaries (SOCK_SEQPACKET). All
numbers are in native byte order.

The client's side is in `bootseer.ipc.request_client`. Imports the standard library only.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, get_type_hints

from bootseer import errors

MAX_DESCRIPTORS = 8
"""Limit of descriptors with one message."""
WHY_BYTES = 512
HEAD = struct.Struct("=QI")
REPLY = struct.Struct(f"=QIq{WHY_BYTES}s")
MAX_BYTES = 1 + max(256, REPLY.size)
"""Size of the receive buffer: longer than any message, so that overlong ones are noticed."""


class Verbs:
    """The requests that a process accepts, each a NamedTuple of integers and tokens.

    Attributes:
        all: the verbs, in the order of their numbers.
        layouts: layouts of the verbs' fields.
    """

    def __init__(self, *verbs: type[Any]) -> None:
        """Number them in this order.

        Args:
            verbs: NamedTuples with fields of `int` (64 bits) and `bytes` (32 bytes).
        """
        self.all = verbs
        self.layouts = [_layout(verb) for verb in verbs]

    def decode(self, message: bytes) -> tuple[int, Any]:
        """Decode a request; returns its number and the request.

        Raises:
            Corrupt: it is invalid.
        """
        try:
            number, verb = HEAD.unpack_from(message)
            values = self.layouts[verb].unpack(message[HEAD.size :])
            return number, self.all[verb](*values)
        except (struct.error, IndexError) as error:
            raise errors.Corrupt(f"invalid request of {len(message)} bytes") from error


def _layout(verb: type[Any]) -> struct.Struct:
    kinds = get_type_hints(verb).values()
    return struct.Struct("=" + "".join("32s" if kind is bytes else "q" for kind in kinds))


ERRORS: tuple[type[errors.BootseerError], ...] = (
    *(errors.Unavailable, errors.NotFound, errors.NoSpace, errors.Denied, errors.Corrupt),
)
"""That a reply can have, in the order of their numbers from 1."""


class Reply(NamedTuple):
    """The reply to a request.

    Attributes:
        number: number of the request.
        error: None for success; `Unavailable` for errors that are no `BootseerError`.
        value: the result.
    """

    number: int
    error: errors.BootseerError | None = None
    value: int = 0

    def encode(self) -> bytes:
        kind, why = 0, b""
        if self.error is not None:
            known = type(self.error) in ERRORS
            kind = 1 + ERRORS.index(type(self.error)) if known else 1
            why = str(self.error).encode(errors="backslashreplace")[:WHY_BYTES]
        return REPLY.pack(self.number, kind, self.value, why)

"""Open and identify the job's image as its user, while the agent is still starting.

The supervisor's imports take longer than identifying an image, so a process of the user's does that
in parallel. The broker forks it first. This module imports only the standard library and bootseer's
own modules, which takes 10 ms.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import NamedTuple

from bootseer.agent.workers.redirect_output import direct_output
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, Denied, NotFound, Unavailable
from bootseer.image.identity import Identity, OpenImage, identify, open_image
from bootseer.ipc import descriptors
from bootseer.ipc.typed_json import Messages

_MAX_ANSWER_BYTES = 64 * 1024
_MAX_ERROR_CHARS = 8000
"""Characters of six bytes each when escaped."""
_KINDS: dict[str, type[BootseerError]] = {each.__name__: each for each in (NotFound, Denied)}
"""What `receive` raises as it was; all other errors are Unavailable."""


@dataclass(frozen=True, slots=True)
class IdentifiedImage:
    """An image that has been opened and identified, and when that began."""

    image: OpenImage
    identity: Identity
    start_ns: int


class _Identified(NamedTuple):
    """The opener's answer, with the image's descriptor."""

    size_bytes: int
    mtime_ns: int
    digest: str
    leading: list[ByteRange]
    start_ns: int


class _NotIdentified(NamedTuple):
    """The opener's answer where it failed.

    Attributes:
        error: a line for people.
        kind: name of the error's class.
    """

    error: str
    kind: str


_ANSWERS: Messages[_Identified | _NotIdentified] = Messages.by_union(
    "answer of the image's opener", _Identified | _NotIdentified
)


def open_and_identify(path: str) -> IdentifiedImage:
    """Open and identify an image with the rights of this process.

    Raises:
        NotFound, Denied, Unavailable, Corrupt: the message says what to do.
    """
    start_ns = time.time_ns()
    image = open_image(path)
    return IdentifiedImage(image, identify(image), start_ns)


def receive(answer: socket.socket, path: str) -> IdentifiedImage:
    """Wait for the opener's answer; returns the identified image.

    Args:
        answer: the opener's socket.
        path: path of the image.

    Raises:
        NotFound, Denied: the user cannot open it.
        BootseerError: it cannot be identified for another reason.
    """
    body, fds = descriptors.receive(answer, _MAX_ANSWER_BYTES, 1)
    if not body:
        raise Unavailable(f"image {path}: the process that opens it has died")
    found = _ANSWERS.decode(body)
    if isinstance(found, _NotIdentified):
        raise _KINDS.get(found.kind, Unavailable)(found.error)
    (fd,) = descriptors.exactly(fds, 1)
    image = OpenImage(path, fd, found.size_bytes, found.mtime_ns)
    return IdentifiedImage(image, Identity(found.digest, tuple(found.leading)), found.start_ns)


def serve(answer: socket.socket, path: str) -> None:
    """Open and identify an image, and send the result to `receive`."""
    direct_output(None)
    try:
        opened = open_and_identify(path)
    except Exception as error:  # noqa: BLE001 (the receiver reports it: this output is not read)
        why = str(error) if isinstance(error, BootseerError) else f"internal error: {error!r}"
        kind = type(error).__name__
        answer.send(_ANSWERS.encode(_NotIdentified(why[:_MAX_ERROR_CHARS], kind)))
        return
    image, identity = opened.image, opened.identity
    found = _Identified(
        image.size_bytes, image.mtime_ns, identity.digest, list(identity.leading), opened.start_ns
    )
    socket.send_fds(answer, [_ANSWERS.encode(found)], [image.fd])

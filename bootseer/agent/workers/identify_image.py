"""Have the image opened and identified, as the job's user, while the agent is still starting.

The agent's imports take longer than all that an image needs to be found out about, so a process of
the user's does that meanwhile. It is forked first thing, before anything slow is imported: until
then this module and what it imports need the standard library and our own extension only.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass

from bootseer.agent.node.job import Job
from bootseer.agent.node.privileges import confine
from bootseer.agent.node.process import fork, take_time
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, Unavailable
from bootseer.image.identity import Identity, OpenImage, identify, open_image

_MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Opened:
    """An image that has been opened and identified, and since when that was under way."""

    image: OpenImage
    identity: Identity
    start_ns: int


def open_and_identify(path: str) -> Opened:
    """Open an image with the rights of this process, and find out what it is.

    Raises:
        NotFound, Denied, Unavailable, Corrupt: with what to do about it.
    """
    start_ns = time.time_ns()
    image = open_image(path)
    return Opened(image, identify(image), start_ns)


def fork_opener(job: Job) -> tuple[int, socket.socket]:
    """Start the process that opens the image; only while this process has one thread.

    Returns:
        Its process id, and the socket on which it answers: see `receive`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.getpid()

    def work() -> None:
        take_time()
        confine(job.user, job.uid, job.gid, agent, keep=[theirs.fileno()])
        _answer(theirs, job.image)

    pid = fork(work)
    theirs.close()
    return pid, ours


def receive(answer: socket.socket, path: str) -> Opened:
    """Wait for the opener's answer.

    Args:
        answer: its socket.
        path: of the image.

    Raises:
        BootseerError: what kept the image from being opened or identified.
    """
    body, fds, _, _ = socket.recv_fds(answer, _MAX_ANSWER_BYTES, 1)
    if not body:
        raise Unavailable(f"image {path}: the process that was to open it has died")
    said = json.loads(body)
    if "error" in said:
        raise Unavailable(said["error"])
    leading = tuple(ByteRange(*r) for r in said["leading"])
    image = OpenImage(path, fds[0], said["size_bytes"], said["mtime_ns"])
    return Opened(image, Identity(said["digest"], leading), said["start_ns"])


def _answer(answer: socket.socket, path: str) -> None:
    """Tell what `receive` waits for."""
    try:
        opened = open_and_identify(path)
    except BootseerError as error:
        answer.send(json.dumps({"error": str(error)}).encode())
        return
    said = {
        "size_bytes": opened.image.size_bytes,
        "mtime_ns": opened.image.mtime_ns,
        "digest": opened.identity.digest,
        "leading": opened.identity.leading,
        "start_ns": opened.start_ns,
    }
    socket.send_fds(answer, [json.dumps(said).encode()], [opened.image.fd])

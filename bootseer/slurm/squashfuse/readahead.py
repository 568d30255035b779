"""Read the hot files of a job's image ahead of the container, in a process of its own.

A warm start has the image's hot blocks in memory, compressed. Reading the files that they belong to
through the mount has them decompressed before the container's programs need them, by processors
that are idle. It is not done by the server, which must not touch its own mount.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from bootseer.posix import check_result
from bootseer.slurm.squashfuse.open_image import open_image
from bootseer.units import GIB

_AGENT_S = 20.0
"""How long it may take until the agent knows what is hot."""
_MOUNT_S = 20.0
_POLL_S = 0.01
_MOST_BYTES = 2 * GIB
"""Of content: a hot set has a few hundred MB."""


def start(image: str, mountpoint: str, above: str) -> None:
    """Begin to read the hot files of an image, if a job's agent prefetches it.

    Returns at once. Nothing waits for the process, and nothing fails if it does.

    Args:
        image: path of the file.
        mountpoint: where this process is about to mount it.
        above: path of the image's root in that mount.
    """
    agent = os.environ.get("BOOTSEER_SOCKET", "")
    if not agent:
        return
    with suppress(OSError):
        before = os.stat(mountpoint).st_dev
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            if not os.fork():  # is nobody's child, so that nobody has to wait for its end
                _detach()
                _read(agent, os.path.abspath(image), mountpoint, above, before)
        finally:
            os._exit(0)


def _detach() -> None:
    """Let go of what the runtime may wait for."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)


def _read(agent: str, image: str, mountpoint: str, above: str, before: int) -> None:
    """Wait for the mount, leave the container, and read the hot files through the mount.

    Args:
        agent: path of the agent's socket.
        image: path of the image.
        mountpoint: where it is mounted soon.
        above: path of the image's root in the mount.
        before: device number of what is there until then.
    """
    from bootseer._squashfs import lib

    with suppress(OSError):
        root = _open_mount(mountpoint, above, before)
        # Else `enroot list` would take this process for the container's.
        lib.sq_leave_namespace(os.fsencode(os.path.abspath(mountpoint)))
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            _read_hot_files(agent, image, root)
        finally:
            os.close(root)


def _read_hot_files(agent: str, image: str, root: int) -> None:
    """Read what the agent says is hot, and tell it; arguments as for `_read` and `read_files`."""
    from bootseer.agent.messages.control import GetHotRanges, HotRanges, TellEvent
    from bootseer.agent.node import control_client
    from bootseer.errors import BootseerError

    with suppress(BootseerError, OSError):
        named = os.environ.get("BOOTSEER_IMAGE", "")
        if named and os.path.samefile(image, named):
            image = named  # as the agent knows it
        request = GetHotRanges(image, _AGENT_S)
        bounds = control_client.ask(agent, request, HotRanges, _AGENT_S + 1).bounds
        if bounds:
            began_ns = time.time_ns()
            size_bytes = read_files(image, root, bounds)
            event = TellEvent("image.decompress", began_ns, time.time_ns(), bytes=size_bytes)
            control_client.tell(agent, event)


def _open_mount(mountpoint: str, above: str, before: int) -> int:
    """Wait for a mount; returns a descriptor of the image's root folder.

    Raises:
        TimeoutError: nothing is mounted there.
        OSError: it cannot be opened.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    until = time.monotonic() + _MOUNT_S
    while time.monotonic() < until:
        mounted = os.open(mountpoint, flags)
        try:
            if os.fstat(mounted).st_dev != before:
                return os.open(above or ".", flags, dir_fd=mounted)
        finally:
            os.close(mounted)
        time.sleep(_POLL_S)
    raise TimeoutError(f"nothing is mounted at {mountpoint}")


def read_files(image: str, root: int, bounds: list[int]) -> int:
    """Read the files that ranges of an image belong to; returns the number of bytes.

    Args:
        image: path of the file.
        root: descriptor of the root folder of its mount.
        bounds: start and end of each range in turn, in the order to read them.

    Raises:
        OSError: the image cannot be read.
    """
    from bootseer._squashfs import ffi, lib

    ranges = ffi.new("sq_range[]", list(zip(bounds[::2], bounds[1::2], strict=False)))
    with open_image(image) as opened:
        return check_result(lib.sq_read_ahead(opened, root, ranges, len(ranges), _MOST_BYTES))

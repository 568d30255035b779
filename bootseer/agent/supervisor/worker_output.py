"""Copy workers' output to agent.log, escaped and limited in size."""

from __future__ import annotations

import sys
from contextlib import suppress

import trio

MAX_BYTES = 64 * 1024
"""Limit for all workers of a job: agent.log is in memory, and users can start workers."""
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127) if code != ord("\n")}

_copied_bytes = 0


async def copy_output(pipe: int) -> None:
    """Copy a pipe's data until its other end is closed; drop data beyond the limit.

    Args:
        pipe: descriptor, closed here.
    """
    async with trio.lowlevel.FdStream(pipe) as stream:
        with suppress(OSError, trio.BrokenResourceError):
            async for part in stream:
                _copy(bytes(part))


def _copy(part: bytes) -> None:
    global _copied_bytes
    shown = part.decode("ascii", "backslashreplace").translate(_ESCAPES)
    room = MAX_BYTES - _copied_bytes
    _copied_bytes += len(shown)
    with suppress(OSError):  # /run is full
        print(shown[: max(0, room)], end="", file=sys.stderr, flush=True)

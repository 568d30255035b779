"""What workers print: copied to agent.log with escapes, and no more of it than an error takes."""

from __future__ import annotations

import sys
from contextlib import suppress

import trio

MAX_BYTES = 64 * 1024
"""Of all workers of a job: agent.log is in memory, and a user can have workers started."""
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127) if code != ord("\n")}

_copied_bytes = 0


async def copy_output(pipe: int) -> None:
    """Copy what arrives in a pipe, until its other end is closed; beyond the limit it is dropped.

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

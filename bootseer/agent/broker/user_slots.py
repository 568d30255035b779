"""Limit the processes that all of a user's jobs on this node have together.

Each process has a lock on a byte of the user's file. The kernel releases the lock when the broker
ends, so nothing has to be counted or cleaned up.

Imports the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress

from bootseer.errors import Unavailable

MAX_OF_USER = 512
_LOCK = struct.Struct("@hhqqi4x")  # struct flock of a 64-bit Linux


class UserSlots:
    """The slots of one user that a broker holds.

    Concurrency: one thread at a time.
    """

    def __init__(self, folder: str, uid: int) -> None:
        """Open the user's file.

        Args:
            folder: root's folder for all users' files; does not outlive a boot.
            uid: the user's id.

        Raises:
            OSError: the file cannot be opened.
        """
        os.makedirs(folder, 0o700, exist_ok=True)
        self._fd = os.open(f"{folder}/{uid}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._taken: set[int] = set()

    def take(self) -> int:
        """Acquire a slot; returns its number.

        Raises:
            Unavailable: the user has no free slot on this node.
        """
        for slot in set(range(MAX_OF_USER)) - self._taken:
            with suppress(BlockingIOError, PermissionError):  # another broker has it
                self._set(slot, fcntl.F_WRLCK)
                self._taken.add(slot)
                return slot
        raise Unavailable(f"a user may have only {MAX_OF_USER} workers on this node")

    def give(self, slot: int) -> None:
        self._taken.discard(slot)
        self._set(slot, fcntl.F_UNLCK)

    def _set(self, slot: int, kind: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, slot, 1, 0))

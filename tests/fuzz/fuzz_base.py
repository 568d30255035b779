"""What a decoder is to a fuzzer."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from bootseer.errors import BootseerError, Corrupt

DIGEST = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Decoder:
    """A decoder.

    Attributes:
        name: of it.
        seeds: returns good inputs.
        run: seals an input, decodes it, and uses what comes out.
        allowed: what it may raise.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], object]
    allowed: tuple[type[BootseerError], ...] = (Corrupt,)

    def try_one(self, data: bytes) -> bool:
        """Run it with an input; returns whether that was accepted.

        Raises:
            Exception: one that is not allowed.
        """
        try:
            self.run(data)
        except self.allowed:
            return False
        return True


def in_memory(data):
    """Return a context with the path of a file that holds this."""
    return _InMemory(data)


class _InMemory:
    def __init__(self, data):
        self._data = data

    def __enter__(self):
        self._fd = os.memfd_create("input", os.MFD_CLOEXEC)
        os.write(self._fd, self._data)
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *error):
        os.close(self._fd)


@cache
def shared_memory():
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

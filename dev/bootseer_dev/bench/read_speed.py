"""How fast a file is read, by one reader, from its beginning or at random.

python -m bootseer_dev.bench.read_speed sequential|random FILE

prints MB/s.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time

from bootseer.units import KIB, MIB

MODULE = "bootseer_dev.bench.read_speed"
_READS = 3000
_RANDOM_BYTES = 64 * KIB
_BUFFER_BYTES = 4 * MIB


def sequential(fd: int) -> float:
    """Read all of a file, 4 MiB at once; returns bytes per second."""
    buffer = mmap.mmap(-1, _BUFFER_BYTES)
    done = 0
    began = time.perf_counter()
    while got := os.preadv(fd, [buffer], done):
        done += got
    return done / (time.perf_counter() - began)


def at_random(fd: int) -> float:
    """Read 64 KiB here and there, at multiples of that; returns bytes per second."""
    buffer = mmap.mmap(-1, _RANDOM_BYTES)
    blocks = os.fstat(fd).st_size // _RANDOM_BYTES
    places = random.Random(7).sample(range(blocks), min(_READS, blocks))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    began = time.perf_counter()
    for place in places:
        os.preadv(fd, [buffer], place * _RANDOM_BYTES)
    return len(places) * _RANDOM_BYTES / (time.perf_counter() - began)


def main() -> None:
    """Measure as the command line says."""
    how, path = sys.argv[1:]
    fd = os.open(path, os.O_RDONLY)
    rate = sequential(fd) if how == "sequential" else at_random(fd)
    print(f"{rate / 1e6:.1f}")


if __name__ == "__main__":
    main()

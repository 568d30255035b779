"""Read a checkpoint's shard from HDFS with as many streams as it has blocks, as one would by hand.

    python -m bootseer_dev.race.fetch_shard URL FILE

Each stream reads a block of its own, so that all DataNodes with a part of the file send at once:
`make bench-ckpt` has no faster read of an ordinary file without BootSeer. The file gets its name
when it is whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from hdfs_native import Client

MODULE = "bootseer_dev.race.fetch_shard"
_MOST_STREAMS = 8


def main() -> None:
    """Do what the command line says."""
    url, path = sys.argv[1:]
    authority, _, source = url.removeprefix("hdfs://").partition("/")
    client = Client(f"hdfs://{authority}", {})
    status = client.get_file_info(f"/{source}")
    part = f"{path}.part"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def read(segment: tuple[int, int]) -> None:
        offset, length = segment
        for data in client.read(f"/{source}").read_range_stream(offset, length):
            os.pwrite(file, data, offset)
            offset += len(data)

    with ThreadPoolExecutor(_MOST_STREAMS) as pool:
        list(pool.map(read, segments(status.length, status.blocksize or status.length)))
    os.close(file)
    os.rename(part, path)


def segments(size_bytes: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each block of a file."""
    for offset in range(0, size_bytes, block_bytes):
        yield offset, min(block_bytes, size_bytes - offset)


if __name__ == "__main__":
    main()

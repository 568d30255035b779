"""One measured transfer of a checkpoint, in a fresh process on a machine that reaches the HDFS.

    python -m bootseer_dev.bench.checkpoint_client ACTION PATH [SIZE_BYTES]

prints seconds, seconds of processor time, and how many bytes it was. Buffers are made before the
clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Callable

import trio
from hdfs_native import Client, WriteOptions

from bootseer.agent.node.spawn import leave
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher
from bootseer.core.ranges import ByteRange
from bootseer.large_buffers import keep_large_buffers
from bootseer.store.from_url import open_store
from bootseer.store.wrappers.limit import LimitStore
from bootseer.store.wrappers.retry import RetryStore
from bootseer.units import MIB

MODULE = "bootseer_dev.bench.checkpoint_client"
_PIECE_BYTES = 4 * MIB
_SEGMENTS = 4
"""Streams of the best parallel read by hand that was found, each of a quarter of the file."""
_THREADS = 4


def native_read(url: str, size_bytes: int) -> int:
    """Read with one stream of hdfs-native, its fastest way."""
    client, path = _native(url)
    reader = client.read(path)
    return sum(len(piece) for piece in reader.read_range_stream(0, len(reader)))


def native_segments(url: str, size_bytes: int) -> int:
    """Read as many contiguous segments at once, each as a stream."""
    client, path = _native(url)
    segment = -(-size_bytes // _SEGMENTS)
    done = [0] * _SEGMENTS

    def read(number: int) -> None:
        reader = client.read(path)
        length = min(segment, len(reader) - number * segment)
        done[number] = sum(len(p) for p in reader.read_range_stream(number * segment, length))

    _at_once(read, _SEGMENTS)
    return sum(done)


def native_ranges(url: str, size_bytes: int) -> int:
    """Read ranges of 4 MiB in the order of the file, with threads."""
    client, path = _native(url)
    reader = client.read(path)
    offsets = iter(range(0, size_bytes, _PIECE_BYTES))
    done = [0] * _THREADS
    lock = threading.Lock()

    def read(number: int) -> None:
        while True:
            with lock:
                offset = next(offsets, None)
            if offset is None:
                return
            length = min(_PIECE_BYTES, len(reader) - offset)
            done[number] += len(reader.read_range(offset, length))

    _at_once(read, _THREADS)
    return sum(done)


def native_write(url: str, size_bytes: int) -> int:
    """Write one file with one pipeline of hdfs-native."""
    client, path = _native(url)
    data = os.urandom(_PIECE_BYTES)
    file = client.create(path, WriteOptions(overwrite=True, create_parent=True))
    for _ in range(size_bytes // _PIECE_BYTES):
        file.write(data)
    file.close()
    return size_bytes


def reader(url: str, size_bytes: int) -> int:
    """Read with BootSeer's reader, without a mount."""
    return trio.run(_reader, url)


async def _reader(url: str) -> int:
    above, _, name = url.rpartition("/")
    limit = trio.CapacityLimiter(64)
    tree = CheckpointTree(
        RetryStore(LimitStore(open_store(above), deadline_s=20, operations=limit))
    )
    total = 0

    async def sink(offset: int, data: bytes) -> None:
        nonlocal total
        total += len(data)

    async with trio.open_nursery() as nursery:
        fetch = Fetcher(nursery).open(tree.source(await tree.stat(name)), sink)
        await fetch.source.plan()
        fetch.read_ahead(ByteRange(0, fetch.source.size_bytes))
        await fetch.drained()
        await fetch.close()
    return total


def read(path: str, size_bytes: int) -> int:
    """Read a file as programs do, in pieces of 4 MiB."""
    buffer, total = bytearray(_PIECE_BYTES), 0
    file = os.open(path, os.O_RDONLY)
    while done := os.readv(file, [buffer]):
        total += done
    os.close(file)
    return total


def receive(path: str, size_bytes: int) -> int:
    """Receive what several machines send, at once; `path` is HOST:PORT for each, with commas."""
    received = [0] * len(senders := path.split(","))

    def work(number: int) -> None:
        host, _, port = senders[number].rpartition(":")
        buffer = bytearray(_PIECE_BYTES)
        with socket.create_connection((host, int(port)), timeout=30) as sender:
            while done := sender.recv_into(buffer):
                received[number] += done

    _at_once(work, len(senders))
    return sum(received)


def write(path: str, size_bytes: int) -> int:
    """Write a file as programs do, in pieces of 4 MiB, and close it."""
    data = os.urandom(_PIECE_BYTES)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for _ in range(size_bytes // _PIECE_BYTES):
        os.write(file, data)
    os.close(file)
    return size_bytes


def first_bytes(path: str, size_bytes: int) -> int:
    """List a folder, open each of its files and read one byte."""
    with os.scandir(path) as entries:
        names = [entry.path for entry in entries]
    for name in names:
        with open(name, "rb", buffering=0) as file:
            file.read(1)
    return len(names)


def native_files(url: str, count: int) -> int:
    """Write many small files."""
    client, path = _native(url)
    options = WriteOptions(overwrite=True, create_parent=True)
    numbers = iter(range(count))
    lock = threading.Lock()

    def write(_: int) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            file = client.create(f"{path}/{number:05d}", options)
            file.write(b"small " * 1000)
            file.close()

    _at_once(write, 32)
    return count


ACTIONS: dict[str, Callable[[str, int], int]] = {
    action.__name__: action
    for action in (
        native_read,
        native_segments,
        native_ranges,
        native_write,
        native_files,
        receive,
        reader,
        read,
        write,
        first_bytes,
    )
}


def _native(url: str) -> tuple[Client, str]:
    authority, _, path = url.removeprefix("hdfs://").partition("/")
    conf_dir = os.environ.get("HADOOP_CONF_DIR") or None
    return Client(f"hdfs://{authority}", {}, config_dir=conf_dir), f"/{path}"


def _at_once(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("path", help="or URL, for those that use no mount")
    parser.add_argument("size_bytes", type=int, nargs="?", default=0)
    given = parser.parse_args()
    keep_large_buffers()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    done = ACTIONS[given.action](given.path, given.size_bytes)
    took_s, took_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    print(json.dumps({"seconds": took_s, "cpu_seconds": took_cpu_s, "bytes": done}))
    leave(0)


if __name__ == "__main__":
    main()

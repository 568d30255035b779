"""Tell whether a local file and one in a store are the same."""

from __future__ import annotations

import os

import trio
import xxhash

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.stripe_manifest import StripeManifest
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher
from bootseer.core.ranges import ByteRange
from bootseer.posix import read_fully
from bootseer.store.local.errors import translated
from bootseer.units import NS_PER_MS

THIS_MACHINE = "this machine"
"""Name of this side in errors of local files."""


def open_local(path: str) -> int:
    """Return a descriptor to read a local file; links are refused, and pipes do not block."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


async def has_content(fd: int, layout: StripeManifest) -> bool:
    """Tell whether an open local file has the content of a layout's checksums."""
    for index, unit in enumerate(layout.units):
        start, stop = layout.unit_range(index)
        data = await trio.to_thread.run_sync(read_fully, fd, start, stop - start)
        if xxhash.xxh3_128_intdigest(data) != unit.checksum:
            return False
    return True


async def same_content(fetcher: Fetcher, tree: CheckpointTree, entry: FileEntry, fd: int) -> bool:
    """Tell whether an open local file has the content of a file in a store."""
    is_same = True

    async def compare(offset: int, data: bytes) -> None:
        nonlocal is_same
        with translated("read", entry.name, THIS_MACHINE):
            here = await trio.to_thread.run_sync(read_fully, fd, offset, len(data))
        if here != data:
            is_same = False
            fetch.forget_ahead()

    fetch = fetcher.open(tree.source(entry), compare)
    try:
        fetch.read_ahead(ByteRange(0, entry.size_bytes))
        await fetch.drained()
    finally:
        await fetch.close()
    return is_same


def is_same_time(one_ns: int, other_ns: int) -> bool:
    """Compare times as exactly as HDFS keeps them: to a millisecond."""
    return one_ns // NS_PER_MS == other_ns // NS_PER_MS

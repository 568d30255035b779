"""Measure how fast a store is written and read: plain and striped, by one stream and many."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

from bootseer.checkpoint.admin.progress import BatchProgress
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.namespace import Namespace
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher, FetchLimits
from bootseer.checkpoint.write.draft import Drafts
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.core.ranges import ByteRange
from bootseer.errors import BootseerError, NotFound
from bootseer.parallel import background

PREFIX = "bootseer-bench-"
_REMOVE_S = 30.0
_READS = {"read, one stream": 1, "read, many": FetchLimits().streams}


@dataclass(slots=True)
class Row:
    """One way to write or read, and its rates in bytes a second."""

    form: str
    what: str
    rates: list[float] = field(default_factory=list)


async def bench(
    tree: CheckpointTree,
    folder: str,
    size_bytes: int,
    rounds: int,
    write: WriteOptions,
    progress: BatchProgress,
) -> Sequence[Row]:
    """Write and read a file in each way, in turn; the files are removed at the end.

    Args:
        tree: where to.
        folder: where a temporary folder is made; "" is the root.
        size_bytes: of the file.
        rounds: how often all is measured.
        write: options of the striped file.
        progress: counts the bytes.

    Cancellation: the files are removed all the same.
    """
    forms = ("plain", "striped") if tree.store.capabilities.append else ("plain",)
    rows = {(form, what): Row(form, what) for form in forms for what in ("written", *_READS)}
    progress.total_bytes = size_bytes * rounds * len(rows)
    async with _own_folder(tree, folder) as own:
        for _ in range(rounds):
            for form in forms:
                began = trio.current_time()
                entry = await _write(tree, f"{own}/{form}", size_bytes, write, form, progress)
                rows[form, "written"].rates.append(size_bytes / (trio.current_time() - began))
                for what, streams in _READS.items():
                    began = trio.current_time()
                    await _read(tree, entry, FetchLimits(streams=streams), progress)
                    rows[form, what].rates.append(size_bytes / (trio.current_time() - began))
    return list(rows.values())


@asynccontextmanager
async def _own_folder(tree: CheckpointTree, folder: str) -> AsyncIterator[str]:
    """Make a folder for the length of a block."""
    own = f"{folder}/{PREFIX}{secrets.token_hex(4)}".lstrip("/")
    try:
        await Namespace(tree).mkdir(own)
        yield own
    finally:
        with trio.move_on_after(_REMOVE_S, shield=True), suppress(NotFound):
            await tree.store.delete_tree(own)


async def _write(
    tree: CheckpointTree,
    name: str,
    size_bytes: int,
    write: WriteOptions,
    form: str,
    progress: BatchProgress,
) -> FileEntry:
    # Random bytes, and no two units alike: they cannot be compressed or deduplicated.
    unit = bytearray(os.urandom(write.unit_bytes))

    def units() -> Iterator[tuple[int, memoryview]]:
        for offset in range(0, size_bytes, len(unit)):
            unit[:8] = offset.to_bytes(8, "little")
            piece = memoryview(unit)[: size_bytes - offset]
            yield offset, piece
            progress.move(len(piece))

    if form == "plain":
        async with tree.store.create(
            name, replication=write.replication, block_bytes=write.block_bytes
        ) as writer:
            for _, piece in units():
                await writer.write(piece)
            await writer.commit()
        return await tree.stat(name)
    async with background() as nursery:
        draft = Drafts(tree, nursery, write).begin(name, None)
        try:
            for offset, piece in units():
                await draft.write(offset, piece)
            return await draft.publish()
        except BootseerError:
            await draft.discard()
            raise


async def _read(
    tree: CheckpointTree, entry: FileEntry, limits: FetchLimits, progress: BatchProgress
) -> None:
    async def count(_: int, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        progress.move(len(data))

    async with background() as nursery:
        source = tree.source(entry)
        file = Fetcher(nursery, limits).open(source, count)
        try:
            await source.plan()
            file.read_ahead(ByteRange(0, entry.size_bytes))
            await file.drained()
        finally:
            await file.close()

"""What tests do with checkpoint trees and their stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bootseer.checkpoint.batch import Tally
from bootseer.checkpoint.pipelines import WriteOptions
from bootseer.checkpoint.transfer import ImportOptions, export_files, import_files
from bootseer.checkpoint.tree import CheckpointTree
from bootseer.store.base import ObjectInfo, Reader, Store
from bootseer.store.wrap import WrappedStore

UNIT_BYTES = 4096
SMALL_UNITS = WriteOptions(unit_bytes=UNIT_BYTES, width=3, streams=6, memory_bytes=24 * UNIT_BYTES)
"""So that small files have several parts."""


async def import_folder(
    store: Store,
    source: Path,
    name: str = "run",
    write: WriteOptions = SMALL_UNITS,
    **options: Any,
) -> Tally:
    """Bring a file or folder into a store, with `ImportOptions`; returns what came of it."""
    tally = Tally()
    tree = CheckpointTree(store)
    await import_files(str(source), tree, name, write, ImportOptions(**options), tally)
    return tally


async def export_folder(store: Store, target: Path, name: str = "run", **options: Any) -> Tally:
    """Bring a file or folder out of a store; returns what came of it."""
    tally = Tally()
    await export_files(CheckpointTree(store), name, str(target), tally, **options)
    return tally


async def read_file(tree: CheckpointTree, name: str) -> bytes | None:
    """Return all of a file; None if there is none."""
    entry = await tree.find(name)
    if entry is None:
        return None
    source = tree.source(entry)
    try:
        return b"".join([await source.fetch(piece) for piece in range(source.pieces)])
    finally:
        await source.close()


class OpenCountingStore(WrappedStore):
    """Counts its readers that are open.

    Attributes:
        opened: how many there are now.
    """

    def __init__(self, inner: Store) -> None:
        """Count the readers of `inner`."""
        super().__init__(inner)
        self.opened = 0

    @asynccontextmanager
    async def open(
        self, name: str, *, known: ObjectInfo | None = None, version: ObjectInfo | None = None
    ) -> AsyncIterator[Reader]:
        """See `Store.open`."""
        async with super().open(name, known=known, version=version) as reader:
            self.opened += 1
            try:
                yield reader
            finally:
                self.opened -= 1

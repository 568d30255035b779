"""What tests do with checkpoint trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bootseer.checkpoint.admin.file_export import export_files
from bootseer.checkpoint.admin.file_import import ImportOptions, import_files
from bootseer.checkpoint.admin.progress import BatchProgress
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.store.api.base import Store

UNIT_BYTES = 4096
SMALL_UNITS = WriteOptions(unit_bytes=UNIT_BYTES, width=3, streams=6, memory_bytes=24 * UNIT_BYTES)
"""So that small files have several parts."""


async def import_folder(
    store: Store,
    source: Path,
    name: str = "run",
    write: WriteOptions = SMALL_UNITS,
    **options: Any,
) -> BatchProgress:
    """Bring a file or folder into a store, with `ImportOptions`; returns what came of it."""
    tally = BatchProgress()
    tree = CheckpointTree(store)
    await import_files(str(source), tree, name, write, ImportOptions(**options), tally)
    return tally


async def export_folder(
    store: Store, target: Path, name: str = "run", **options: Any
) -> BatchProgress:
    """Bring a file or folder out of a store; returns what came of it."""
    tally = BatchProgress()
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

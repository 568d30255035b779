"""Find and remove parts that belong to no file: of abandoned writes, and of lost manifests."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bootseer.checkpoint.admin.progress import BatchProgress, for_each, walk
from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.leftovers import ABANDONED_S, Leftovers
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import Corrupt, NotFound
from bootseer.store.api.base import ObjectInfo
from bootseer.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Orphans:
    """Objects that may be removed.

    Attributes:
        abandoned: folders of parts of abandoned writes, and links and marks of abandoned moves.
        unused: folders of parts that no manifest names.
        problem: why the unused ones are unknown.
        stale_marks: those of the lengths of files that were replaced or removed.
    """

    abandoned: Sequence[ObjectInfo]
    unused: Sequence[ObjectInfo]
    problem: Corrupt | None = None
    stale_marks: Sequence[ObjectInfo] = ()


async def find_orphans(
    tree: CheckpointTree,
    name: str,
    older_than_s: float = ABANDONED_S,
    ignored: Collection[str] = (),
) -> Orphans:
    """Return the orphans below a folder; nothing is changed.

    Args:
        tree: where it is.
        name: of the folder; all manifests that name parts below it must be below it, too.
        older_than_s: seconds since the last change; younger ones may be in use.
        ignored: see `Leftovers.unused`.
    """
    leftovers = Leftovers(tree)
    before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
    abandoned: list[ObjectInfo] = []
    stale_marks: list[ObjectInfo] = []
    entries = await walk(tree, name)
    for entry in entries:
        if entry.is_folder:
            abandoned += await leftovers.abandoned(entry.name, older_than_s)
            stale_marks += await leftovers.stale_marks(entry.name, older_than_s)
    try:
        unused = await leftovers.unused(name, ignored)
        if unused:
            await _check_truncated(tree, entries, ignored)
    except Corrupt as error:
        return Orphans(abandoned, (), error, stale_marks)
    old = [info for info in unused if info.mtime_ns <= before_ns]
    return Orphans(abandoned, old, stale_marks=stale_marks)


async def _check_truncated(
    tree: CheckpointTree, entries: Sequence[FileEntry], ignored: Collection[str]
) -> None:
    """Refuse to go on if a manifest lost its end: its length does not show that it is one.

    Raises:
        Corrupt: there is one; the unused parts may be its own.
    """
    found: list[str] = []
    for entry in entries:
        if entry.problem is not None and entry.name not in ignored:
            raise Corrupt(f"{entry.problem}; what its parts are cannot be told")

    async def look(entry: FileEntry) -> None:
        async with tree.store.open(entry.name, known=entry.info) as reader:
            if stripe_manifest.is_manifest(await reader.pread(0, len(stripe_manifest.MAGIC))):
                found.append(entry.name)

    suspects = [
        entry
        for entry in entries
        if not entry.is_folder
        and entry.layout is None
        and len(stripe_manifest.MAGIC) <= entry.size_bytes <= stripe_manifest.MAX_BYTES
        and entry.name not in ignored
    ]
    progress = BatchProgress()
    await for_each(suspects, look, lambda entry: entry.name, progress)
    for failure in progress.failures:
        if not isinstance(failure.error, NotFound):
            raise Corrupt(f"{failure.error}; whether it is a manifest cannot be told")
    if found:
        raise Corrupt(f"{found[0]!r} is a damaged manifest; what its parts are cannot be told")


async def remove_orphans(
    tree: CheckpointTree, name: str, orphans: Orphans, ignored: Collection[str] = ()
) -> int:
    """Remove the orphans that were found; returns how many are gone.

    The unused ones are looked up again: a file that was being published or moved before has its
    manifest by now.

    Raises:
        Corrupt: a manifest cannot be read; no parts that may be in use were removed.
    """
    leftovers = Leftovers(tree)
    again: set[str] = set()
    if orphans.unused:
        again = {info.name for info in await leftovers.unused(name, ignored)}
    unused = [info for info in orphans.unused if info.name in again]
    return await leftovers.remove([*orphans.abandoned, *unused, *orphans.stale_marks])

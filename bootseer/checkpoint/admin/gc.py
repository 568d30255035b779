"""Find and remove parts that belong to no file: of writes given up, and of lost names."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bootseer.checkpoint.admin.progress import Progress, each, walk
from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.leftovers import ABANDONED_S, Leftovers
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import Corrupt, NotFound
from bootseer.store.api.base import ObjectInfo
from bootseer.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Orphans:
    """What may go.

    Attributes:
        abandoned: folders of parts of writes, and what is left of moves, that were never completed.
        unused: folders of parts that no manifest names.
        problem: why the unused ones cannot be told.
    """

    abandoned: Sequence[ObjectInfo]
    unused: Sequence[ObjectInfo]
    problem: Corrupt | None = None


async def find_litter(
    tree: CheckpointTree,
    name: str,
    older_than_s: float = ABANDONED_S,
    despite: Collection[str] = (),
) -> Orphans:
    """List what may go below a folder; nothing is changed.

    Args:
        tree: where it is.
        name: of the folder: all manifests that may name parts below it are below it, too.
        older_than_s: seconds since something was put into it; what is younger may be in use.
        despite: see `Leftovers.unused`.
    """
    leftovers = Leftovers(tree)
    before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
    abandoned: list[ObjectInfo] = []
    entries = await walk(tree, name)
    for entry in entries:
        if entry.is_folder:
            abandoned += await leftovers.abandoned(entry.name, older_than_s)
    try:
        unused = await leftovers.unused(name, despite)
        if unused:
            await _check_heads(tree, entries, despite)
    except Corrupt as error:
        return Orphans(abandoned, (), error)
    return Orphans(abandoned, [info for info in unused if info.mtime_ns <= before_ns])


async def _check_heads(
    tree: CheckpointTree, entries: Sequence[FileEntry], despite: Collection[str]
) -> None:
    """Look for manifests that have lost their end, which their length does not tell any more.

    Raises:
        Corrupt: there is one; what lies around may be its parts.
    """
    found: list[str] = []
    for entry in entries:
        if entry.problem is not None and entry.name not in despite:
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
        and entry.name not in despite
    ]
    progress = Progress()
    await each(suspects, look, lambda entry: entry.name, progress)
    for failure in progress.failures:
        if not isinstance(failure.error, NotFound):
            raise Corrupt(f"{failure.error}; whether it is a manifest cannot be told")
    if found:
        raise Corrupt(f"{found[0]!r} is a damaged manifest; what its parts are cannot be told")


async def sweep(
    tree: CheckpointTree, name: str, litter: Orphans, despite: Collection[str] = ()
) -> int:
    """Remove what was found; returns how many folders of parts went.

    The unused ones are looked for once more: a file that was just being published or moved when
    its manifest was looked for has its name by now.

    Raises:
        Corrupt: a manifest cannot be read; nothing that may be in use has gone.
    """
    leftovers = Leftovers(tree)
    again: set[str] = set()
    if litter.unused:
        again = {info.name for info in await leftovers.unused(name, despite)}
    unused = [info for info in litter.unused if info.name in again]
    return await leftovers.remove([*litter.abandoned, *unused])

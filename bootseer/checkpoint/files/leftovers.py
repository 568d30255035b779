"""Find and remove parts that belong to no file, and what interrupted moves have left."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from contextlib import suppress

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.parts import MAKING, above, is_link, is_of_move, parts_of
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.files.truncation_probe import may_be_truncated
from bootseer.errors import Conflict, Corrupt, NotFound
from bootseer.store.api.base import ObjectInfo, Unlisted
from bootseer.units import NS_PER_S

ABANDONED_S = 2 * 86400
"""A write that has made no new part for so long has been given up."""


class Leftovers:
    """Finds and removes what writes, moves and removals have left in a tree."""

    def __init__(self, tree: CheckpointTree) -> None:
        self._tree = tree

    async def remove_abandoned(self, folder: str, older_than_s: float = ABANDONED_S) -> int:
        """Remove what abandoned writes and moves have left; returns how many objects are gone."""
        return await self.remove(await self.abandoned(folder, older_than_s))

    async def abandoned(self, folder: str, older_than_s: float) -> Sequence[ObjectInfo]:
        """List what abandoned writes to a folder, and moves into it, have left.

        Args:
            folder: its name.
            older_than_s: seconds without a change after which a write or move is abandoned.
        """
        before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
        return [
            info
            for info in await self._tree.store.list(parts_of(folder))
            if info.mtime_ns <= before_ns
            and (info.name.rpartition("/")[2].startswith(MAKING) or is_of_move(info))
        ]

    async def stale_marks(self, folder: str, older_than_s: float) -> Sequence[ObjectInfo]:
        """List the marks of lengths in a folder that are of no file in it; see `abandoned`."""
        before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
        marks = await self._tree.marks.stale(folder)
        return [info for info in marks if info.mtime_ns <= before_ns]

    async def remove(self, found: Sequence[ObjectInfo]) -> int:
        """Remove what the other methods have found, after completing its moves.

        Returns:
            How many of them are gone.
        """
        # A file may need several links, which are removed only when all moves are complete.
        kept: set[str] = set()
        for folder in {above(above(info.name)) for info in found if is_link(info)}:
            for entry in await self._tree.list(folder):
                try:
                    await self._tree.parts.complete_move(entry.name, entry.layout)
                except Corrupt:
                    continue
                except Conflict:  # another process is moving them
                    kept.add(parts_of(folder))
        gone = [info for info in found if not is_link(info) or above(info.name) not in kept]
        for info in gone:
            with suppress(NotFound):
                await self._tree.store.delete_tree(info.name)
        return len(gone)

    async def unused(self, folder: str, ignored: Container[str] = ()) -> Sequence[ObjectInfo]:
        """List the folders of parts below a folder that no manifest below it names.

        Those of a file that is being published are among them until its manifest is there.

        Args:
            folder: its name.
            ignored: names of damaged files that have no parts, or whose parts may go.

        Raises:
            Corrupt: a manifest is damaged, or has an invalid name; its parts are unknown.
        """
        named: set[str] = set()
        found: list[ObjectInfo] = []

        async def walk(name: str) -> None:
            # The parts first: a version published after this has its manifest in the listing below.
            found.extend(await self._tree.store.list(parts_of(name)))
            unlisted: list[Unlisted] = []
            for entry in await self._tree.list(name, unlisted):
                if entry.is_folder:
                    await walk(entry.name)
                elif entry.problem is not None and not (
                    may_be_truncated(entry.info) or entry.name in ignored
                ):
                    raise Corrupt(f"{entry.problem}; what its parts are cannot be told")
                elif entry.layout is not None:
                    named.add(entry.layout.parts_id)
            for one in unlisted:
                if one.problem:
                    raise Corrupt(f"{one.problem}; rename it: whether it has parts cannot be told")

        await walk(folder)
        return [
            info
            for info in found
            if info.is_folder
            and stripe_manifest.check_id(info.name.rpartition("/")[2])
            and info.name.rpartition("/")[2] not in named
        ]

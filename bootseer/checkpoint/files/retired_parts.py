"""Remove the content of files that lose their names, or keep it while it is open."""

from __future__ import annotations

import logging
from dataclasses import replace

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.parts import MAKING, above, new_parts, parts_folder
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import BootseerError, NotFound

_log = logging.getLogger(__name__)

_STAYS = "parts of %s are of no use any more and stay for now: %s"


class RetiredParts:
    """Removes or keeps the content of files that lose their names.

    What cannot be removed is no error: it stays until `Leftovers` removes it.
    """

    def __init__(self, tree: CheckpointTree) -> None:
        self._tree = tree

    async def remove(self, entry: FileEntry) -> None:
        """Remove the parts of a file that has lost its name."""
        self._tree.manifests.forget(entry.name)
        if entry.layout is None:
            return
        try:
            folder = await self._tree.parts.find_own(entry.name, entry.layout)
            if folder is not None and not await self._tree.has_version(entry.name, entry.layout):
                await self.remove_folder(folder)
        except BootseerError as error:
            _log.warning(_STAYS, entry.name, error)

    async def remove_folder(self, folder: str) -> None:
        """Remove a folder of parts that no file needs."""
        try:
            await self._tree.store.delete_tree(folder)
        except NotFound:
            return
        except BootseerError as error:
            _log.warning(_STAYS, folder, error)

    async def set_aside(self, entry: FileEntry) -> FileEntry | None:
        """Remove a file's name, and keep its content at the root of the tree until `remove_kept`.

        The folder of the file can be removed then.

        Returns:
            An entry to read it by; None if another node is moving the file.
        """
        if entry.layout is not None:
            with self._tree.probe.ignoring(entry.layout):
                await self._tree.marks.remove(entry)
                await self._tree.store.delete(entry.name)
                return await self.keep(entry)
        target = f"{new_parts('')[1]}/{stripe_manifest.part_name(0)}"
        await self._tree.store.rename(entry.name, target)
        return replace(entry, info=replace(entry.info, name=target))

    async def keep(self, entry: FileEntry) -> FileEntry | None:
        """Keep the parts of a striped file that has lost its name already; see `set_aside`."""
        assert entry.layout is not None
        self._tree.manifests.forget(entry.name)
        _, folder = new_parts("")
        try:
            kept = parts_folder(folder, entry.layout.parts_id)
            await self._tree.parts.move_away(entry.name, entry.layout, kept)
        except NotFound:
            return None
        target = f"{folder}/{stripe_manifest.part_name(0)}"
        return replace(entry, info=replace(entry.info, name=target))

    async def remove_kept(self, entry: FileEntry) -> None:
        """Remove the content that `set_aside` or `keep` has kept."""
        folder = above(entry.name)
        if not folder.startswith(f"{PARTS_FOLDER}/{MAKING}"):
            raise ValueError(f"{entry.name!r} was not set aside")
        await self._tree.store.delete_tree(folder)

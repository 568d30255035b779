"""Make, rename and remove files and folders of a checkpoint tree, and their parts with them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.leftovers import Leftovers
from bootseer.checkpoint.files.parts import above, is_of_move, parts_of, was_named
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.size_marks import sizes_of
from bootseer.checkpoint.files.stripe_manifest import StripeManifest
from bootseer.checkpoint.files.tree import CheckpointTree, check_shown, is_shown
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound

_MOVED_S = 3600
"""A move whose link is older than this has ended or was given up."""


class Namespace:
    """Changes the names in a tree.

    Errors are the store's. Changes of one file are atomic to its readers, wherever they are.
    """

    def __init__(self, tree: CheckpointTree) -> None:
        self._tree = tree
        self._store = tree.store
        self._parts = tree.parts
        self._retired = RetiredParts(tree)
        self._leftovers = Leftovers(tree)
        # By the new name of a file, the folder in which its parts may still be.
        self._unfinished: dict[str, str] = {}

    async def mkdir(self, name: str, mode: int | None = None) -> None:
        check_shown(name)
        await self._store.mkdir(name, mode=mode)

    async def set_mode(self, entry: FileEntry, mode: int) -> None:
        """Set the mode of a file or a folder; that of a file's parts is set first."""
        if entry.layout is not None:
            folder, parts = await self._parts.find(entry.name, entry.layout)
            await self._store.set_mode(folder, mode | (mode & 0o444) >> 2 | 0o700)
            for part in parts:
                if not part.is_folder:
                    await self._store.set_mode(part.name, mode)
        await self._store.set_mode(entry.name, mode)

    async def set_mtime(self, entry: FileEntry, mtime_ns: int) -> FileEntry:
        """Set the time of a file or a folder; returns its new entry."""
        await self._store.set_mtime(entry.name, mtime_ns)
        found = await self._tree.stat(entry.name)
        if found.has_parts_of(entry.layout):
            await self._tree.marks.move(entry, found.info)
        return found

    async def remove(self, entry: FileEntry) -> None:
        """Remove a file: first the name, then the parts."""
        with self._tree.probe.ignoring(entry.layout):
            await self._tree.marks.remove(entry)
            await self._store.delete(entry.name)
            await self._retired.remove(entry)

    async def remove_folder(self, name: str) -> None:
        """Remove a folder that has no files or folders.

        Raises:
            Conflict: it is not empty, or a file may just be moving into it.
        """
        await self._finish_moves(name)
        found = await self._store.list(name)
        if [i for i in found if is_shown(i.name)]:
            raise Conflict(f"{name!r} is not empty")
        if found:
            await self._leftovers.remove_abandoned(name)
            for info in await self._leftovers.abandoned(name, _MOVED_S):
                if is_of_move(info):  # of files that are not here, and will not come
                    await self._store.delete_tree(info.name)
            with suppress(NotFound):  # marks of files that others have removed or renamed
                await self._store.delete_tree(sizes_of(name))
            await self._store.delete(parts_of(name))
        await self._store.delete(name)

    async def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with all below it.

        Raises:
            Conflict: parts below may be those of a file that was moved out.
        """
        entry = await self._tree.stat(name)
        if entry.is_folder:
            await self._check_moved_out(name)
            await self._store.delete_tree(name)
        else:
            await self.remove(entry)

    async def _check_moved_out(self, folder: str) -> None:
        """Refuse a folder that may have the parts of a file that was moved out of it."""
        with suppress(Corrupt):  # then it is unknown whose they are
            for info in await self._leftovers.unused(folder):
                if was_named(await self._store.list(info.name)):
                    raise Conflict(
                        f"{folder!r} has parts that no file in it names, in {info.name!r}: perhaps "
                        "those of a file that was moved out of it. In the tree in which that is, "
                        "`bootseer ckpt verify -R --repair` brings them; if there is none, "
                        "`bootseer ckpt gc` removes them"
                    )

    async def rename(
        self, entry: FileEntry, target: str, *, over: FileEntry | None = None
    ) -> FileEntry:
        """Rename a file or a folder; returns its new entry.

        Args:
            entry: as it is now.
            target: its new name.
            over: the file to replace; None if there must be none.

        Raises:
            Conflict: another file or folder has the new name.
        """
        check_shown(target)
        if entry.is_folder:
            await self._finish_moves(entry.name)
        with self._tree.probe.ignoring(entry.layout, over.layout if over else None):
            await self._tree.marks.remove(over)
            if entry.is_folder:
                await self._store.rename(entry.name, target)
            else:
                async with self._parts.leaving(entry.name):
                    await self._move(entry, target, overwrite=over is not None)
            self._tree.manifests.forget(entry.name)
            if over is not None and not over.has_parts_of(entry.layout):
                await self._retired.remove(over)
        return replace(entry, info=replace(entry.info, name=target))

    async def _move(self, entry: FileEntry, target: str, *, overwrite: bool) -> None:
        """Rename a file, or the version that was published under its name meanwhile."""
        if entry.layout is not None:
            await self._move_striped(entry, entry.layout, target, overwrite=overwrite)
        else:
            await self._store.rename(entry.name, target, overwrite=overwrite)
        try:
            info = await self._store.stat(target)
            moved = entry
            if info.is_version(entry.info):
                await self._tree.marks.move(entry, info)
            else:
                moved = await self._tree.manifests.entry(info)
        except NotFound:
            return  # another process has renamed or removed it
        except BootseerError:
            if above(entry.name) != above(target):
                await self._parts.link(entry.name, target)
            raise
        if moved.layout is None or moved.has_parts_of(entry.layout):
            return
        await self._parts.mark(entry.name, moved.layout, target)
        if above(entry.name) != above(target):
            # Its publisher may still be moving the parts there: the link is left to gc.
            await self._parts.link(entry.name, target)
            with suppress(Corrupt):
                await self._parts.complete_move(moved.name, moved.layout)

    async def _move_striped(
        self, entry: FileEntry, layout: StripeManifest, target: str, *, overwrite: bool
    ) -> None:
        """Rename a striped file; after each step it can be read under the name that it has."""
        await self._parts.complete_move(entry.name, layout)
        async with self._parts.renamed(entry.name, target, layout):
            found = await self._tree.stat(entry.name)
            if not found.has_parts_of(layout):
                raise Conflict(f"{entry.name!r} was replaced; look at it, and move it again")
            if above(entry.name) == above(target):
                await self._store.rename(entry.name, target, overwrite=overwrite)
                return
            self._unfinished[target] = above(entry.name)
            link = await self._parts.link(entry.name, target)
            await self._store.rename(entry.name, target, overwrite=overwrite)
            found = await self._tree.stat(target)
            if found.has_parts_of(layout):
                await self._parts.complete_move(found.name, found.layout)
                await self._parts.unlink(link)
            self._unfinished.pop(target, None)

    async def _finish_moves(self, folder: str) -> None:
        """Complete interrupted moves of files into a folder, or out of it.

        Else their parts, or the links to these, would move or go with the folder.
        """
        for name, source in list(self._unfinished.items()):
            if any(f"{place}/".startswith(f"{folder}/") for place in (name, source)):
                found = await self._tree.find(name)
                if found is not None:
                    await self._parts.complete_move(found.name, found.layout)
                self._unfinished.pop(name, None)

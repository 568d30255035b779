"""Rename and remove files and folders of a mount, while files are open or being written."""

from __future__ import annotations

import errno
from contextlib import suppress

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.namespace import Namespace
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.mount.file_reader import FileReader
from bootseer.checkpoint.mount.inodes import CheckpointInode, InodeTable
from bootseer.checkpoint.mount.publisher import Publisher
from bootseer.errors import BootseerError, Conflict
from bootseer.posix import os_error


class NameChanges:
    """Renames and removes files and folders, in the store and in the inode table.

    Concurrency: the tasks of one trio run; the caller uses the folders (`FolderLocks.using`) and
    holds the locks of the files.
    """

    def __init__(
        self,
        inodes: InodeTable,
        tree: CheckpointTree,
        namespace: Namespace,
        reader: FileReader,
        publisher: Publisher,
    ) -> None:
        self._inodes = inodes
        self._namespace = namespace
        self._retired = RetiredParts(tree)
        self._marks = tree.marks
        self._reader = reader
        self._publisher = publisher

    async def remove(self, node: CheckpointInode) -> None:
        """Remove a published file; a version that is open is kept until it is closed."""
        entry = await self._reader.load(node)
        if not node.opened.handles:
            await self._namespace.remove(entry)
            return
        node.put_aside(await self._retired.set_aside(entry))

    async def remove_folder(self, node: CheckpointInode) -> None:
        """Remove an empty folder.

        Raises:
            OSError: ENOTEMPTY.
        """
        if self._inodes.pending_files(node.inode):
            raise os_error(errno.ENOTEMPTY)
        await self._publisher.empty_folder(node)
        try:
            await self._namespace.remove_folder(self._inodes.path(node))
        except Conflict as error:
            raise os_error(errno.ENOTEMPTY) from error

    async def rename_folder(
        self, node: CheckpointInode, parent: int, name: str, over: CheckpointInode | None
    ) -> None:
        """Rename a folder, replacing an empty one; waits until nothing below is in use."""
        async with self._inodes.locks.moving(node.inode):
            await self._publisher.drain_below(node)
            if over is not None:
                await self.remove_folder(over)
                self._inodes.remove_name(parent, name)
            await self.rename(node, parent, name, None)

    async def rename(
        self, node: CheckpointInode, parent: int, name: str, over: CheckpointInode | None
    ) -> None:
        """Rename a published file or a folder, replacing a file."""
        replaced = kept = None
        if over is not None and over.entry is not None:
            replaced = await self._reader.load(over)
            if over.opened.handles and replaced.layout is not None:
                await self._marks.remove(replaced)
                kept, replaced = replaced, FileEntry(replaced.info)
        entry = await self._reader.load(node)
        path = self._inodes.path_in(parent, name)
        self._inodes.update(node, await self._namespace.rename(entry, path, over=replaced))
        if over is not None:
            if kept is not None:
                # If this fails, its readers may lose it; but the name is another file's already.
                aside = None
                with suppress(BootseerError):
                    aside = await self._retired.keep(kept)
                over.put_aside(aside)
            if not over.opened.handles:
                await self._publisher.abandon(over)
        self._inodes.move(node, parent, name)
        node.move_versions(self._inodes.path(node))
        if node.is_folder:
            for other in self._inodes.by_inode.values():
                if self._inodes.is_below(other.inode, node.inode):
                    other.move_versions(self._inodes.path(other))

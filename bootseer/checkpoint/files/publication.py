"""Publish a new version of a file: give it the name, when all of it is in the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import xxhash

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.parts import above, parts_beside, was_named
from bootseer.checkpoint.files.retired_parts import RetiredParts
from bootseer.checkpoint.files.size_marks import mark_name
from bootseer.checkpoint.files.stripe_manifest import StripeManifest
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.errors import BootseerError, Conflict, NotFound
from bootseer.store.api.base import ObjectInfo, publish


class PlainContent(NamedTuple):
    """Name, length and XXH3-128 checksum of an object that becomes an ordinary file."""

    name: str
    size_bytes: int
    checksum: int


class Publication:
    """Publishes one version of a file; an attempt that has failed may be repeated.

    The change is atomic to all readers. Between attempts the object remembers which version had the
    name at first, and whether this one has had it: what others have replaced is not written again.
    """

    def __init__(self, tree: CheckpointTree) -> None:
        self._tree = tree
        self._store = tree.store
        self._retired = RetiredParts(tree)
        self._has_begun = False
        self._replaces: FileEntry | None = None
        self._is_done = False

    async def publish_striped(
        self, name: str, layout: StripeManifest, mode: int | None, making: str
    ) -> FileEntry:
        """Publish a striped file whose parts are complete.

        Args:
            name: of the file.
            layout: content of the manifest.
            mode: permission bits; the store's default if None.
            making: the folder that the parts were written to.

        Raises:
            Conflict: parts are missing, because another process has moved or removed their
                folder; or it has replaced this version, or the one that this replaces.
        """
        over = await self._tree.find(name)
        if not self._has_begun:
            self._has_begun, self._replaces = True, over
        first = self._replaces
        published: FileEntry | None = None
        with self._tree.probe.ignoring(layout, over.layout if over else None):
            if over is not None and over.has_parts_of(layout) and not self._is_done:
                # An earlier attempt may have failed when its parts had just gone.
                await self._check_published(name, layout, await self._folder_of(over, layout))
                self._is_done = True
            if not self._is_done:
                is_replaced = not _are_same(first, over)
                await self._tree.marks.remove(over)
                published = await self._write_manifest(
                    name, layout, mode, making, is_replaced=is_replaced
                )
                self._is_done = True
            if first is not None and not first.has_parts_of(layout):
                await self._retired.remove(first)
        return published or await self.current(_made(name, layout, mode))

    async def publish_plain(
        self, name: str, content: PlainContent | None, mode: int | None, making: str
    ) -> FileEntry:
        """Publish an ordinary file: `content`, made in the folder `making`, or an empty one.

        Args:
            name: of the file.
            content: of the file, with its mode and time; None for an empty file.
            mode: of an empty file; the store's default if None.
            making: the folder that parts were written to.

        Raises:
            NotFound: the content is gone; another process has moved or removed its folder.
        """
        over = await self._tree.find(name)
        made = ObjectInfo(name, 0, time.time_ns(), mode=mode)
        with self._tree.probe.ignoring(over.layout if over else None):
            await self._tree.marks.remove(over)
            if content is None:
                await publish(self._store, name, b"", mode=mode)
            else:
                try:
                    made = replace(await self._store.stat(content.name), name=name)
                    await self._store.rename(content.name, name, overwrite=True)
                except NotFound:
                    if not await self._has_content(name, content):  # from an attempt before
                        raise
                    made = replace(made, size_bytes=content.size_bytes)
            await self._retired.remove_folder(making)
            if over is not None:
                await self._retired.remove(over)
        return await self.current(FileEntry(made), content)

    async def current(self, made: FileEntry, content: PlainContent | None = None) -> FileEntry:
        """Return the entry that the store has of a file that was just published.

        Returns:
            `made` if another process has replaced or renamed it since.
        """
        found = await self._tree.find(made.name)
        if found is None or found.is_folder:
            return made
        if made.layout is not None:
            return found if found.has_parts_of(made.layout) else made
        if found.layout is not None or found.size_bytes != made.size_bytes:
            return made
        if content is None or found.info.is_version(made.info):
            return found
        # Some stores make a copy, which is another version.
        return found if await self._has_content(made.name, content) else made

    async def _write_manifest(
        self, name: str, layout: StripeManifest, mode: int | None, making: str, *, is_replaced: bool
    ) -> FileEntry | None:
        """Move the parts beside the manifest, write that, and mark the length of the file.

        Args:
            name: see `publish_striped`.
            layout: see there.
            mode: see there.
            making: see there.
            is_replaced: another version has the name than at the first attempt.

        Returns:
            The entry that the store has of it, if that is known.
        """
        target = parts_beside(name, layout)
        try:
            await self._store.rename(making, target)
        except (NotFound, Conflict):
            # An earlier attempt has come so far, or farther. A late mark may have made the folder
            # again from which the parts were removed.
            await self._store.stat(target)
            if is_replaced:
                # Perhaps this version was published and replaced, and its parts are being removed.
                raise Conflict(f"{name!r} was replaced meanwhile") from None
        # Until the store answers, it is unknown whether others have read and replaced the manifest;
        # it may be written once more.
        async with self._tree.parts.held(target) as held:
            if was_named(await self._check_parts(name, layout, target)):
                return None  # An earlier attempt has worked, and others have renamed the file.
            await publish(self._store, name, layout.encode(), mode=mode)
            await self._check_published(name, layout, target)
            made = _made(name, layout, mode)
            with suppress(BootseerError):  # the caller asks again
                entry = await self.current(made)
                if entry is not made:
                    # Only now is it known which version it is to those who list the folder.
                    held.becomes = mark_name(entry.info, layout.size_bytes)
                return entry
        return None

    async def _folder_of(self, entry: FileEntry, layout: StripeManifest) -> str:
        """Return the folder of a file's parts, or where it would be."""
        try:
            return (await self._tree.parts.find(entry.name, layout))[0]
        except NotFound:
            return parts_beside(entry.name, layout)

    async def _check_published(self, name: str, layout: StripeManifest, folder: str) -> None:
        """Remove the manifest again if its parts are gone, or another file's.

        Another node has renamed their folder; or the file, before the manifest was written again.
        """
        try:
            found = await self._check_parts(name, layout, folder)
        except Conflict:
            if await self._tree.has_version(name, layout):
                await self._store.delete(name)
            raise
        if was_named(found) and await self._has_twin(name, layout):
            await self._store.delete(name)

    async def _check_parts(
        self, name: str, layout: StripeManifest, folder: str
    ) -> Sequence[ObjectInfo]:
        """Return the listing of a folder of parts.

        Raises:
            Conflict: some of the parts are missing.
        """
        found = await self._store.list(folder)
        names = {info.name.rpartition("/")[2] for info in found}
        missing = {stripe_manifest.part_name(unit.part) for unit in layout.units} - names
        if missing:
            raise Conflict(
                f"{name!r}: {min(missing)!r} is missing in {folder!r}; its folder was moved or "
                "removed while it was being written"
            )
        return found

    async def _has_twin(self, name: str, layout: StripeManifest) -> bool:
        """Tell whether another file in the folder has the same parts as a file."""
        entries = await self._tree.list(above(name))
        if not any(e.name != name and e.has_parts_of(layout) for e in entries):
            return False
        return await self._tree.has_version(name, layout)  # else it was renamed just now

    async def _has_content(self, name: str, content: PlainContent) -> bool:
        """Tell whether a file has some content already."""
        try:
            async with self._store.open(name) as reader:
                if reader.size_bytes != content.size_bytes:
                    return False
                data = await reader.pread(0, content.size_bytes)
        except NotFound:
            return False
        return xxhash.xxh3_128_intdigest(data) == content.checksum


def _made(name: str, layout: StripeManifest, mode: int | None) -> FileEntry:
    """Return an entry for a striped file that was published, whatever the store has of it."""
    return FileEntry(ObjectInfo(name, len(layout.encode()), time.time_ns(), mode=mode), layout)


def _are_same(one: FileEntry | None, other: FileEntry | None) -> bool:
    return one is other or bool(one and other and one.info.is_version(other.info))

"""Find, mark and move the parts of striped files; they follow their manifests.

Another process may rename a manifest at any moment. A process that replaces or removes a file
cannot know that it is still the file that it has read. So it removes the parts only after the name
is gone, and only if the marks show that they still belong to that name:

    rename                                     replace or remove
    1. mark the old name as leaving, and       1. write or delete the name
       the parts with the new name             2. read the marks: remove the parts, or leave
    2. read again what has the old name           them to `ckpt gc` if the name is leaving or
    3. rename the manifest, then the parts        they are marked with another name
    4. read what was renamed, perhaps a
       version published since step 2: mark
       that, and remove the first mark

While the parts of a file are not beside it yet, a link there, an object, says where they are.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass

import trio

from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest
from bootseer.errors import BootseerError, ConfigError, Conflict, Corrupt, Denied, NoSpace, NotFound
from bootseer.store.api.base import ObjectInfo, Store, publish, read_all
from bootseer.store.api.name import check_name

MAKING = "making-"
"""Begins the name of a folder of parts that no manifest names yet."""
FROM = "from-"
"""Begins the name of a link: an object with the folder where parts of files here may be."""
_NAMED = "named-"
"""Begins the name of a mark in a folder of parts: an empty folder."""
_LEAVING = "leaving-"
"""Begins the name of a folder of marks beside the parts: a file is being renamed."""
_HELD = "held-"
"""Begins the name of a mark in a folder of parts that may not be removed now."""
_FROM_BYTES = 4096
_MOST_FOLDERS = 64
"""Folders searched for the parts of one file."""
_STEP_S = 1.0
IF_MISSING = (
    "`bootseer ckpt verify -R --repair` of the whole tree brings them back if a folder was renamed "
    "while the file was moved; if not, restore the file from another copy"
)
"""What to do about missing parts."""


async def let_changes_settle() -> None:
    """Wait longer than a change needs between two of its steps."""
    await trio.sleep(_STEP_S)


def above(name: str) -> str:
    """Return the folder of a name; "" is the root."""
    return name.rpartition("/")[0]


def parts_of(folder: str) -> str:
    """Return the name of the folder that holds the parts of a folder's files."""
    return f"{folder}/{PARTS_FOLDER}" if folder else PARTS_FOLDER


def parts_folder(folder: str, parts_id: str) -> str:
    """Return the name of the folder of the parts of a file in `folder`."""
    return f"{parts_of(folder)}/{parts_id}"


def parts_beside(name: str, layout: StripeManifest) -> str:
    """Return the name of the folder of a file's parts when no move is under way."""
    return parts_folder(above(name), layout.parts_id)


def making_folder(name: str, parts_id: str) -> str:
    """Return the name of the folder for the parts of a file that is being written."""
    return parts_folder(above(name), MAKING + parts_id)


def new_parts(name: str) -> tuple[str, str]:
    """Return a new id of parts, and the name of the folder to write them to."""
    parts_id = secrets.token_hex(16)
    return parts_id, making_folder(name, parts_id)


@dataclass(slots=True)
class HeldMark:
    """A mark that protects parts for a while.

    Attributes:
        becomes: what it is renamed to at the end, instead of being removed; None for nothing.
    """

    becomes: str | None = None


class Parts:
    """The parts of a store's striped files."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def folders(self, name: str, layout: StripeManifest) -> AsyncGenerator[str, None]:
        """Yield the folders that may have the parts of a file, the likeliest first."""
        beside = parts_beside(name, layout)
        yield beside
        others = await self._others(above(name))
        for other in others:
            yield parts_folder(other, layout.parts_id)
        if others:  # the parts may have been moved from there meanwhile
            yield beside

    async def find(self, name: str, layout: StripeManifest) -> tuple[str, Sequence[ObjectInfo]]:
        """Return the folder that has the parts of a file, and a listing of it.

        Raises:
            NotFound: there is none.
        """
        async with aclosing(self.folders(name, layout)) as folders:
            async for folder in folders:
                found = await self._store.list(folder)
                if has_parts(found):
                    return folder, found
        raise NotFound(f"{name!r}: its parts are missing")

    async def find_own(self, name: str, layout: StripeManifest) -> str | None:
        """Return the folder of the parts of a file that has lost its name; None if it was renamed.

        The caller checks whether the file has got the same name once more.
        """
        # Before the marks of the parts: a rename makes those before it removes this one.
        if await self._store.list(_leaving(name)):
            return None
        with suppress(NotFound):
            folder, found = await self.find(name, layout)
            if _are_of(name, found):
                return folder
        return None

    async def move_away(self, name: str, layout: StripeManifest, target: str) -> None:
        """Move the parts of a file that has lost its name to `target`.

        Raises:
            NotFound: they are gone, or the file was renamed.
        """
        folder = await self.find_own(name, layout)
        if folder is None:
            raise NotFound(f"{name!r}: its parts are gone")
        await self._store.rename(folder, target)

    async def move_beside(
        self, name: str, layout: StripeManifest, folder: str | None = None
    ) -> bool:
        """Move the parts of a file beside it; returns whether they were not there.

        Args:
            name: of the file.
            layout: what its manifest says.
            folder: where they are, if nothing beside the file leads there.

        Raises:
            NotFound: they are nowhere.
        """
        beside = parts_beside(name, layout)
        if folder is None:
            folder, _ = await self.find(name, layout)
        if folder == beside:
            return False
        with suppress(Conflict):
            return await self._rename_to(folder, beside)
        # Another process has moved them, or a late mark has made the folder again.
        if not has_parts(await self._store.list(beside)):
            await self._take_marks(beside, folder)
            await self._rename_to(folder, beside)
        return True

    async def complete_move(self, name: str, layout: StripeManifest | None) -> None:
        """Move the parts of a file beside it, if it is striped and its move was interrupted.

        Raises:
            Corrupt: they are nowhere.
        """
        if layout is not None:
            try:
                await self.move_beside(name, layout)
            except NotFound as error:
                raise Corrupt(f"{error}; {IF_MISSING}") from error

    async def _rename_to(self, folder: str, beside: str) -> bool:
        try:
            await self._store.rename(folder, beside)
        except NotFound:  # another process has moved them
            await self._store.stat(beside)
        return True

    async def _take_marks(self, folder: str, target: str) -> None:
        """Move the marks of a folder that has no parts to `target`, and remove the folder.

        Raises:
            Conflict: the folder is not empty.
        """
        for info in await self._store.list(folder):
            await self._add_mark(target, info.name.rpartition("/")[2])
            await self._remove_mark([folder], info.name.rpartition("/")[2])
        with suppress(NotFound):
            await self._store.delete(folder)

    @asynccontextmanager
    async def held(self, *folders: str) -> AsyncIterator[HeldMark]:
        """Protect the parts in the first folder, which may move to the second, from removal."""
        mark = _HELD + secrets.token_hex(8)
        held = HeldMark()
        await self._add_mark(folders[0], mark)
        try:
            yield held
        finally:
            if held.becomes is None or not await self._rename_mark(
                f"{folders[0]}/{mark}", held.becomes
            ):
                await self._remove_mark(folders, mark)

    async def touch(self, *folders: str) -> None:
        """Set the time of the first folder of parts that exists to now."""
        for folder in folders:
            with suppress(NotFound):
                await self._store.stat(folder)  # the mark alone would make the folder
                async with self.held(folder):
                    return

    @asynccontextmanager
    async def leaving(self, name: str) -> AsyncIterator[None]:
        """Protect the parts of the file that is renamed, whichever has the name by then.

        If an error leaves open whether it was renamed, the mark stays until `ckpt gc`.
        """
        folder, mark = _leaving(name), secrets.token_hex(8)
        await self._add_mark(folder, mark)
        try:
            yield
        except (Conflict, NotFound):
            await self._end_leaving(folder, mark)
            raise
        await self._end_leaving(folder, mark)

    async def _end_leaving(self, folder: str, mark: str) -> None:
        await self._remove_mark([folder], mark)
        with suppress(BootseerError):  # others are renaming it, too
            await self._store.delete(folder)

    async def mark(self, name: str, layout: StripeManifest, target: str) -> None:
        """Mark the parts of a file with its new name."""
        with suppress(NotFound):
            folder, _ = await self.find(name, layout)
            await self._add_mark(folder, _mark(target))

    @asynccontextmanager
    async def renamed(self, name: str, target: str, layout: StripeManifest) -> AsyncIterator[None]:
        """Protect the parts of a file from removal while it is renamed; they are beside it."""
        folder, new = (parts_beside(n, layout) for n in (name, target))
        await self._add_mark(folder, _mark(target))
        if folder == new:
            held: AbstractAsyncContextManager[HeldMark | None] = nullcontext()
        else:
            held = self.held(folder, new)  # in the other folder, the mark may be another file's
        async with held:
            try:
                yield
            except (Conflict, NotFound):
                if _mark(name) != _mark(target):
                    await self._remove_mark([folder], _mark(target))
                raise
            if _mark(name) != _mark(target):
                await self._remove_mark([new, folder], _mark(name))

    async def _add_mark(self, folder: str, mark: str) -> None:
        with suppress(Denied, NoSpace):  # another user's parts, which only they remove; a quota
            await self._store.mkdir(f"{folder}/{mark}")

    async def _remove_mark(self, folders: Sequence[str], mark: str) -> None:
        """Remove a mark; if that fails, the parts are left to `ckpt gc`."""
        for folder in folders:
            try:
                await self._store.delete(f"{folder}/{mark}")
                return
            except NotFound:
                continue
            except BootseerError:
                return

    async def _rename_mark(self, mark: str, target: str) -> bool:
        """Give a mark another name; returns whether it has that."""
        try:
            await self._store.rename(mark, target)
        except BootseerError:
            return False
        return True

    async def link(self, name: str, target: str) -> str:
        """Write a link from a file's new folder to the folder of its parts; returns its name.

        The link has a relative path, for a folder above both may move or be opened as a tree of its
        own, and a path from the root, for the new folder may move alone.
        """
        here, there = above(name), above(target)
        link = f"{parts_of(there)}/{FROM}{secrets.token_hex(8)}"
        text = "\n".join((os.path.relpath(f"/{here}", f"/{there}"), f"/{here}"))
        await publish(self._store, link, text.encode())
        return link

    async def unlink(self, link: str) -> None:
        """Remove a link that no file needs any more."""
        with suppress(BootseerError):
            await self._store.delete(link)

    async def _others(self, folder: str) -> Sequence[str]:
        """Return the other folders that may have parts of files in a folder, following all links.

        A file that was moved again before its parts had come needs several links.
        """
        found = [folder]
        for one in found:
            for info in await self._store.list(parts_of(one)):
                if is_link(info):
                    for other in await self._linked(one, info.name):
                        if other not in found and len(found) < _MOST_FOLDERS:
                            found.append(other)
        return found[1:]

    async def _linked(self, folder: str, link: str) -> Sequence[str]:
        """Return the folders that a link names."""
        found = []
        with suppress(NotFound, Corrupt, UnicodeDecodeError):
            for path in (await read_all(self._store, link, _FROM_BYTES)).decode().split("\n"):
                with suppress(Corrupt, ConfigError):
                    other = _resolve(folder, path)
                    check_name(parts_of(other))
                    found.append(other)
        return found


def is_link(info: ObjectInfo) -> bool:
    """Tell whether an object is a link to a folder of parts."""
    return not info.is_folder and info.name.rpartition("/")[2].startswith(FROM)


def is_of_move(info: ObjectInfo) -> bool:
    """Tell whether an entry beside the parts is a link or a mark of a move."""
    return is_link(info) or info.name.rpartition("/")[2].startswith(_LEAVING)


def has_parts(found: Sequence[ObjectInfo]) -> bool:
    """Tell by the listing of a folder of parts whether it has parts, and not marks alone."""
    return not all(info.is_folder for info in found)


def was_named(found: Sequence[ObjectInfo]) -> bool:
    """Tell by the listing of a folder of parts whether a rename of the file has begun."""
    return any(info.name.rpartition("/")[2].startswith(_NAMED) for info in found if info.is_folder)


def _are_of(name: str, found: Sequence[ObjectInfo]) -> bool:
    """Tell by the listing of a folder of parts whether they belong to a name."""
    names = {info.name.rpartition("/")[2] for info in found if info.is_folder}
    return names <= {_mark(name)}


def _mark(name: str) -> str:
    """Return the mark of a file renamed to `name`; the folder, which may move too, is left out."""
    return f"{_NAMED}{_digest(name)}"


def _leaving(name: str) -> str:
    """Return the folder of the marks that say that a name is leaving."""
    return parts_folder(above(name), f"{_LEAVING}{_digest(name)}")


def _digest(name: str) -> str:
    return hashlib.sha256(name.rpartition("/")[2].encode()).hexdigest()[:16]


def _resolve(folder: str, path: str) -> str:
    """Return the folder at a path, relative to `folder` (``../other``) or the root (``/other``).

    Raises:
        Corrupt: the path leads out of the store.
    """
    parts = folder.split("/") if folder and not path.startswith("/") else []
    for step in path.split("/"):
        if step == "..":
            if not parts:
                raise Corrupt(f"{path!r} leads out of the tree from {folder!r}")
            parts.pop()
        elif step not in ("", "."):
            parts.append(step)
    return "/".join(parts)

"""Where the parts of striped files are kept, and how they move and go with their manifests.

A manifest is given another name by anybody, at any moment, and takes whatever it says with it: who
replaces or removes a file cannot know that it was the one that he has looked at. So the parts of a
file are removed only by who has seen, after its name was taken, that they are still that name's:

    who moves a file                           who replaces or removes it
    1. marks the old name as one that leaves,  1. writes or deletes the name
       and the parts with the new name         2. looks at the marks: leaves the parts to
    2. looks again what has the old name          `ckpt gc` if the name leaves, or they are of
    3. renames the manifest, then the parts       another name, and removes his own
    4. looks what has moved, perhaps what was
       published in the last moment: marks it,
       and takes the first mark away

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

import trio

from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest
from bootseer.errors import BootseerError, ConfigError, Conflict, Corrupt, Denied, NoSpace, NotFound
from bootseer.store.api.base import ObjectInfo, Store, publish, read_all
from bootseer.store.api.name import check_name

MAKING = "making-"
"""Begins the name of a folder of parts that no manifest names yet."""
FROM = "from-"
"""Begins the name of an object that says where else the parts of files here may be."""
_NAMED = "named-"
"""Begins the name of a mark in a folder of parts, which is a folder, too."""
_LEAVING = "leaving-"
"""Begins the name of a folder of marks beside the parts: a name is being taken from a file."""
_HELD = "held-"
"""The same, of parts that nobody may remove now."""
_FROM_BYTES = 4096
_MOST_FOLDERS = 64
"""Looked into for the parts of one file."""
_STEP_S = 1.0
IF_MISSING = (
    "`bootseer ckpt verify -R --repair` of the whole tree brings them back if a folder was renamed "
    "while the file was moved; if not, restore the file from another copy"
)
"""What to do about missing parts."""


async def let_changes_settle() -> None:
    """Wait so long that what is in no order then is not just between two steps of a change."""
    await trio.sleep(_STEP_S)


def above(name: str) -> str:
    """Return the folder that a name is in; "" is the root."""
    return name.rpartition("/")[0]


def parts_of(folder: str) -> str:
    """Return the name of the folder in which the parts of a folder's files are."""
    return f"{folder}/{PARTS_FOLDER}" if folder else PARTS_FOLDER


def parts_folder(folder: str, parts_id: str) -> str:
    """Return the name of the folder of the parts of a file in `folder`."""
    return f"{parts_of(folder)}/{parts_id}"


def parts_beside(name: str, layout: StripeManifest) -> str:
    """Return the name of the folder of a file's parts, unless it is on its way there."""
    return parts_folder(above(name), layout.parts_id)


def making_folder(name: str, parts_id: str) -> str:
    """Return the name of the folder to make the parts of a file in."""
    return parts_folder(above(name), MAKING + parts_id)


def new_parts(name: str) -> tuple[str, str]:
    """Return an id for the parts of a file and the folder to make them in."""
    parts_id = secrets.token_hex(16)
    return parts_id, making_folder(name, parts_id)


class Parts:
    """The parts of a store's striped files."""

    def __init__(self, store: Store) -> None:
        """Look for them in `store`."""
        self._store = store

    async def folders(self, name: str, layout: StripeManifest) -> AsyncGenerator[str, None]:
        """Name the folders in which the parts of a file may be, the likeliest first."""
        beside = parts_beside(name, layout)
        yield beside
        others = await self._others(above(name))
        for other in others:
            yield parts_folder(other, layout.parts_id)
        if others:  # which they may have left meanwhile
            yield beside

    async def find(self, name: str, layout: StripeManifest) -> tuple[str, Sequence[ObjectInfo]]:
        """Return the folder in which the parts of a file are, and what is in it.

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
        """Return the folder of the parts of a file that has lost its name, unless it has another.

        Whether the name was given to the same file once more is for the caller to see.
        """
        # Before the marks of the parts: who moves the file makes those before he takes this away.
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
            NotFound: they are gone, or the file has another name.
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
            folder: in which they are, if they are not found from where the file is.

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
        # Somebody else has brought them, or marks that came late have made the folder again.
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
        except NotFound:  # somebody else has done it
            await self._store.stat(beside)
        return True

    async def _take_marks(self, folder: str, target: str) -> None:
        """Remove a folder in which there are only marks; who has made them finds them in another.

        Raises:
            Conflict: something has come into it.
        """
        for info in await self._store.list(folder):
            await self._add_mark(target, info.name.rpartition("/")[2])
            await self._remove_mark([folder], info.name.rpartition("/")[2])
        with suppress(NotFound):
            await self._store.delete(folder)

    @asynccontextmanager
    async def held(self, *folders: str) -> AsyncIterator[None]:
        """Keep others from removing the parts in the first folder, which may move to the second."""
        mark = _HELD + secrets.token_hex(8)
        await self._add_mark(folders[0], mark)
        try:
            yield
        finally:
            await self._remove_mark(folders, mark)

    async def touch(self, *folders: str) -> None:
        """Have parts look as if something had just been put to them, in the first that is there."""
        for folder in folders:
            with suppress(NotFound):
                await self._store.stat(folder)  # which a mark would make
                async with self.held(folder):
                    return

    @asynccontextmanager
    async def leaving(self, name: str) -> AsyncIterator[None]:
        """Keep others from removing the parts of what loses a name, whichever file that will be.

        Where it is not known whether it has lost it, the mark stays until `ckpt gc`.
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
        with suppress(BootseerError):  # others are about the same name
            await self._store.delete(folder)

    async def mark(self, name: str, layout: StripeManifest, target: str) -> None:
        """Mark the parts of a file with the new name that it has got."""
        with suppress(NotFound):
            folder, _ = await self.find(name, layout)
            await self._add_mark(folder, _mark(target))

    @asynccontextmanager
    async def renamed(self, name: str, target: str, layout: StripeManifest) -> AsyncIterator[None]:
        """Keep others from removing the parts of a file, which are beside it, while it moves."""
        folder, new = (parts_beside(n, layout) for n in (name, target))
        await self._add_mark(folder, _mark(target))
        if folder == new:
            held: AbstractAsyncContextManager[None] = nullcontext()
        else:
            held = self.held(folder, new)  # there, a file of the same name is another
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
        with suppress(Denied, NoSpace):  # of another user's, which only he can remove; a full quota
            await self._store.mkdir(f"{folder}/{mark}")

    async def _remove_mark(self, folders: Sequence[str], mark: str) -> None:
        """Remove a mark; of a file with one too many, the parts are left to `ckpt gc`."""
        for folder in folders:
            try:
                await self._store.delete(f"{folder}/{mark}")
                return
            except NotFound:
                continue
            except BootseerError:
                return

    async def link(self, name: str, target: str) -> str:
        """Have the parts of a file found from its new place; returns what says so, an object.

        It leads there from where it is, for a folder that has both may move, or be all of what
        somebody opens; and from the root, for the folder that it is in may move alone.
        """
        here, there = above(name), above(target)
        link = f"{parts_of(there)}/{FROM}{secrets.token_hex(8)}"
        text = "\n".join((os.path.relpath(f"/{here}", f"/{there}"), f"/{here}"))
        await publish(self._store, link, text.encode())
        return link

    async def unlink(self, link: str) -> None:
        """Remove a link when all that it is for has its parts beside it."""
        with suppress(BootseerError):
            await self._store.delete(link)

    async def _others(self, folder: str) -> Sequence[str]:
        """Return the folders that parts may have to be brought from.

        A file that was moved on before its parts had come is behind several links.
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
        """Return the folders that a link in a folder may lead to."""
        found = []
        with suppress(NotFound, Corrupt, UnicodeDecodeError):
            for path in (await read_all(self._store, link, _FROM_BYTES)).decode().split("\n"):
                with suppress(Corrupt, ConfigError):
                    other = _resolve(folder, path)
                    check_name(parts_of(other))
                    found.append(other)
        return found


def is_link(info: ObjectInfo) -> bool:
    """Tell whether an object says where else parts may be."""
    return not info.is_folder and info.name.rpartition("/")[2].startswith(FROM)


def is_of_move(info: ObjectInfo) -> bool:
    """Tell whether something beside the parts is there only while a file moves."""
    return is_link(info) or info.name.rpartition("/")[2].startswith(_LEAVING)


def has_parts(found: Sequence[ObjectInfo]) -> bool:
    """Tell whether there are parts in what was made for them: marks may be there alone."""
    return not all(info.is_folder for info in found)


def was_named(found: Sequence[ObjectInfo]) -> bool:
    """Tell by the marks in a folder of parts whether others have moved their file, or begun to."""
    return any(info.name.rpartition("/")[2].startswith(_NAMED) for info in found if info.is_folder)


def _are_of(name: str, found: Sequence[ObjectInfo]) -> bool:
    """Tell by the marks in a folder of parts whether they are of a name."""
    names = {info.name.rpartition("/")[2] for info in found if info.is_folder}
    return names <= {_mark(name)}


def _mark(name: str) -> str:
    """Name the mark of what is moved to a name: of the file in its folder, which may move, too."""
    return f"{_NAMED}{_digest(name)}"


def _leaving(name: str) -> str:
    """Name the folder of the marks of who takes a name from a file."""
    return parts_folder(above(name), f"{_LEAVING}{_digest(name)}")


def _digest(name: str) -> str:
    return hashlib.sha256(name.rpartition("/")[2].encode()).hexdigest()[:16]


def _resolve(folder: str, path: str) -> str:
    """Return the folder that is at a path: of another (``../other``), or of the root (``/other``).

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

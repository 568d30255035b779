"""A tree of the store with striped files in it, as its users see it.

Names are those of the store. A striped file has the name of its manifest; the folders of parts are
not shown, and move and go with what they belong to.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import trio

from bootseer.checkpoint.source import (
    PlainSource,
    Source,
    StripedSource,
    parts_folder,
    parts_folders,
)
from bootseer.core import stripe
from bootseer.core.stripe import PARTS_FOLDER, Layout
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound
from bootseer.store.base import ObjectInfo, Store, publish
from bootseer.units import NS_PER_S

_log = logging.getLogger(__name__)

MAKING = "making-"
"""Begins the name of a folder of parts that no manifest names yet."""
ABANDONED_S = 2 * 86400
"""A write that has made no new part for so long has been given up."""
_STEP_S = 1.0
"""Parts that are nobody's for so long are not just between two steps of a change."""
_LOOKS = 16
"""Manifests that a listing reads at once."""
_KNOWN = 20_000
"""Layouts that are remembered."""
_STUMP = (
    "{!r} may be what is left of a damaged manifest: there are parts beside it that belong to no "
    "file; if it is not, remove them with `bootseer ckpt gc --despite`"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder.

    Attributes:
        info: what the store says of it, or of its manifest.
        layout: of a striped file.
        problem: why its manifest cannot be used; it is neither read nor written then.
    """

    info: ObjectInfo
    layout: Layout | None = None
    problem: Corrupt | None = None

    @property
    def name(self) -> str:
        """Its whole name in the store."""
        return self.info.name

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.info.is_folder

    @property
    def size_bytes(self) -> int:
        """Length of what can be read; 0 for a folder."""
        return self.layout.size_bytes if self.layout else self.info.size_bytes


class CheckpointTree:
    """Files and folders of a store, striped ones among them.

    Errors are the store's. Changes of one file are atomic to its readers, wherever they are. What
    is left over of what they replace or remove is no error: `reap` and `unused_parts` find it.
    """

    def __init__(self, store: Store) -> None:
        """Show the tree of `store`; nothing is read yet."""
        self.store = store
        self._known: dict[str, Entry] = {}
        self._changing: Counter[str] = Counter()
        self._lost: set[str] = set()

    async def stat(self, name: str) -> Entry:
        """Describe a file or a folder; ``""`` is the root, which need not exist yet.

        Raises:
            NotFound: there is none.
        """
        if not name:
            return Entry(ObjectInfo("", 0, 0, is_folder=True))
        _check_shown(name)
        entry = await self._look(await self.store.stat(name))
        if _may_be_a_stump(entry.info):
            return (await self._suspect(name.rpartition("/")[0], [entry]))[0]
        return entry

    async def list(self, folder: str = "") -> Sequence[Entry]:
        """Describe what is in a folder, sorted by name.

        A manifest is read once; what is known of it holds for as long as its length and time do.
        """
        infos = [i for i in await self.store.list(folder) if _is_shown(i.name)]
        entries: list[Entry | None] = [None] * len(infos)
        limit = trio.CapacityLimiter(_LOOKS)

        async def look(index: int) -> None:
            async with limit:
                with suppress(NotFound):
                    entries[index] = await self._look(infos[index])

        async with trio.open_nursery() as nursery:
            for index, info in enumerate(infos):
                if info.is_folder or not stripe.may_be_manifest(info.size_bytes):
                    entries[index] = Entry(info)
                else:
                    nursery.start_soon(look, index)
        found = [entry for entry in entries if entry is not None]
        if any(_may_be_a_stump(entry.info) for entry in found):
            return await self._suspect(folder, found)
        return found

    def source(self, entry: Entry) -> Source:
        """Read a version of a file.

        Raises:
            Corrupt: its manifest cannot be used.
            Conflict: it is a folder.
        """
        if entry.is_folder:
            raise Conflict(f"{entry.name!r} is a folder")
        if entry.problem is not None:
            raise Corrupt(str(entry.problem)) from entry.problem
        if entry.layout is not None:
            return StripedSource(self.store, entry.info, entry.layout)
        return PlainSource(self.store, entry.info)

    async def mkdir(self, name: str, mode: int | None = None) -> None:
        """Make a folder."""
        _check_shown(name)
        await self.store.mkdir(name, mode=mode)

    async def remove(self, entry: Entry) -> None:
        """Remove a file; its parts go after its name."""
        with self._change(entry.layout):
            await self.store.delete(entry.name)
            await self.drop_parts(entry)

    async def set_aside(self, entry: Entry) -> Entry:
        """Take a file's name away, and keep its content until `drop_aside`.

        It is kept at the root of the tree, so that the folder in which it was can be removed.
        """
        if entry.layout is not None:
            with self._change(entry.layout):
                await self.store.delete(entry.name)
                return await self.keep_parts(entry)
        target = f"{self.new_parts('')[1]}/{stripe.part_name(0)}"
        await self.store.rename(entry.name, target)
        return replace(entry, info=replace(entry.info, name=target))

    async def keep_parts(self, entry: Entry) -> Entry:
        """Keep the parts of a striped file that has lost its name, until `drop_aside`."""
        assert entry.layout is not None
        self._known.pop(entry.name, None)
        _, folder = self.new_parts("")
        for parts in parts_folders(entry.name, entry.layout):
            with suppress(NotFound):
                await self.store.rename(parts, parts_folder(folder, entry.layout.parts_id))
                break
        target = f"{folder}/{stripe.part_name(0)}"
        return replace(entry, info=replace(entry.info, name=target))

    async def drop_aside(self, entry: Entry) -> None:
        """Remove what `set_aside` or `keep_parts` has kept."""
        folder = entry.name.rpartition("/")[0]
        if not folder.startswith(f"{PARTS_FOLDER}/{MAKING}"):
            raise ValueError(f"{entry.name!r} was not set aside")
        await self.store.delete_tree(folder)

    async def remove_folder(self, name: str) -> None:
        """Remove a folder in which nothing is shown.

        Raises:
            Conflict: it is not empty.
        """
        found = await self.store.list(name)
        if [i for i in found if _is_shown(i.name)]:
            raise Conflict(f"{name!r} is not empty")
        if found:
            await self.reap(name)
            await self.store.delete(_parts_of(name))
        await self.store.delete(name)

    async def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with all that is below."""
        entry = await self.stat(name)
        if entry.is_folder:
            await self.store.delete_tree(name)
        else:
            await self.remove(entry)

    async def rename(self, entry: Entry, target: str, *, over: Entry | None = None) -> Entry:
        """Give a file or a folder another name; returns what it is then.

        Args:
            entry: as it is now.
            target: its new name.
            over: the file there, which is replaced; None if nothing may be.

        Raises:
            Conflict: something else is there.
        """
        _check_shown(target)
        here, there = entry.name.rpartition("/")[0], target.rpartition("/")[0]
        with self._change(entry.layout, over.layout if over else None):
            if entry.layout is not None and here != there:
                entry = await self._move_parts(entry, entry.layout, here, there)
            await self.store.rename(entry.name, target, overwrite=over is not None)
            self._known.pop(entry.name, None)
            if over is not None and not _share_parts(over, entry.layout):
                await self.drop_parts(over)
        return replace(entry, info=replace(entry.info, name=target))

    async def publish(self, name: str, layout: Layout, mode: int | None, making: str) -> Entry:
        """Show a striped file whose parts are complete; what has failed may be tried again.

        Args:
            name: of the file.
            layout: what the manifest is to say.
            mode: permission bits; the store's default if None.
            making: the folder in which the parts were made.
        """
        over = await self.find(name)
        target = parts_folder(name.rpartition("/")[0], layout.parts_id)
        with self._change(layout, over.layout if over else None):
            try:
                await self.store.rename(making, target)
            except NotFound:
                # An attempt before this one has come so far, or farther.
                await self.store.stat(target)
            await publish(self.store, name, layout.encode(), mode=mode)
            if over is not None and not _share_parts(over, layout):
                await self.drop_parts(over)
        return await self.stat(name)

    async def publish_plain(
        self, name: str, content: str | None, mode: int | None, making: str
    ) -> Entry:
        """Show an ordinary file: the object `content`, made in `making`, or an empty one.

        What has failed may be tried again.
        """
        over = await self.find(name)
        with self._change(over.layout if over else None):
            if content is None:
                await publish(self.store, name, b"", mode=mode)
            else:
                try:
                    await self.store.rename(content, name, overwrite=True)
                except NotFound:
                    await self.store.stat(name)  # as above
            await self._drop(making)
            if over is not None:
                await self.drop_parts(over)
        return await self.stat(name)

    async def find(self, name: str) -> Entry | None:
        """Describe a file or a folder, if there is one."""
        try:
            return await self.stat(name)
        except NotFound:
            return None

    async def set_mode(self, entry: Entry, mode: int) -> None:
        """Change who may use a file or a folder; the parts of a file are closed first."""
        if entry.layout is not None:
            folder = await self._parts(entry, entry.layout)
            await self.store.set_mode(folder, mode | (mode & 0o444) >> 2 | 0o700)
            for part in await self.store.list(folder):
                await self.store.set_mode(part.name, mode)
        await self.store.set_mode(entry.name, mode)

    def new_parts(self, name: str) -> tuple[str, str]:
        """Return an id for the parts of a file and the folder to make them in."""
        parts_id = secrets.token_hex(16)
        return parts_id, parts_folder(name.rpartition("/")[0], MAKING + parts_id)

    async def reap(self, folder: str, older_than_s: float = ABANDONED_S) -> int:
        """Remove the parts of writes that were given up; returns of how many."""
        reaped = 0
        before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
        for info in await self.store.list(_parts_of(folder)):
            if info.name.rpartition("/")[2].startswith(MAKING) and info.mtime_ns <= before_ns:
                with suppress(NotFound):
                    await self.store.delete_tree(info.name)
                    reaped += 1
        return reaped

    async def unused_parts(self, folder: str, despite: Container[str] = ()) -> Sequence[ObjectInfo]:
        """List the folders of parts below a folder that no manifest below it names.

        Those of a file that is being published are among them until its manifest is there.

        Args:
            folder: its name.
            despite: names of damaged files that have no parts, or whose parts do not matter.

        Raises:
            Corrupt: a manifest is damaged, and what it names cannot be told.
        """
        named: set[str] = set()
        found: list[ObjectInfo] = []

        async def walk(name: str) -> None:
            # The parts first: what is published after that names its own.
            found.extend(await self.store.list(_parts_of(name)))
            for entry in await self.list(name):
                if entry.is_folder:
                    await walk(entry.name)
                elif entry.problem is not None and not (
                    _may_be_a_stump(entry.info) or entry.name in despite
                ):
                    raise Corrupt(f"{entry.problem}; what its parts are cannot be told")
                elif entry.layout is not None:
                    named.add(entry.layout.parts_id)

        await walk(folder)
        return [
            info
            for info in found
            if info.is_folder
            and stripe.check_id(info.name.rpartition("/")[2])
            and info.name.rpartition("/")[2] not in named
        ]

    async def _suspect(self, folder: str, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Take what may be the beginning of a manifest for that, where there are parts of no file.

        Such parts are there after a crash, and between two steps of a writer, perhaps on another
        node.
        """
        if not await self._parts_of_none(folder):
            return entries
        return [
            replace(entry, problem=Corrupt(_STUMP.format(entry.name)))
            if _may_be_a_stump(entry.info) and await self._begins_like_one(entry.info)
            else entry
            for entry in entries
        ]

    async def _begins_like_one(self, info: ObjectInfo) -> bool:
        if not info.size_bytes:
            return True
        try:
            async with self.store.open(info.name, known=info) as reader:
                return stripe.MAGIC.startswith(await reader.pread(0, len(stripe.MAGIC)))
        except BootseerError:
            return True

    async def _parts_of_none(self, folder: str) -> bool:
        unnamed = await self._unnamed_parts(folder)
        if unnamed - self._lost:
            await trio.sleep(_STEP_S)
            unnamed &= await self._unnamed_parts(folder)
            self._lost |= unnamed
        return bool(unnamed)

    async def _unnamed_parts(self, folder: str) -> set[str]:
        """Return the ids of parts in a folder that are no file's there, and not being changed."""
        kept = await self.store.list(_parts_of(folder))
        ids = {info.name.rpartition("/")[2] for info in kept if info.is_folder}
        unnamed = {name for name in ids if stripe.check_id(name)} - set(self._changing)
        if not unnamed:
            return unnamed
        for info in await self.store.list(folder):
            with suppress(NotFound):
                if (entry := await self._look(info)).layout is not None:
                    unnamed.discard(entry.layout.parts_id)
        return unnamed - set(self._changing)

    @contextmanager
    def _change(self, *layouts: Layout | None) -> Iterator[None]:
        """Note whose parts may be nobody's between two steps of a change."""
        ids = [layout.parts_id for layout in layouts if layout is not None]
        self._changing.update(ids)
        try:
            yield
        finally:
            self._changing -= Counter(ids)

    async def _look(self, info: ObjectInfo) -> Entry:
        """Find out whether an object is a manifest."""
        if info.is_folder or not stripe.may_be_manifest(info.size_bytes):
            return Entry(info)
        known = self._known.get(info.name)
        if known is None or known.info != info:
            known = await self._read(info)
            while len(self._known) >= _KNOWN:
                del self._known[next(iter(self._known))]
            self._known[info.name] = known
            return known
        return replace(known, info=info)

    async def _read(self, info: ObjectInfo) -> Entry:
        async with self.store.open(info.name, known=info) as reader:
            head = await reader.pread(0, len(stripe.MAGIC))
            data = await reader.pread(0, stripe.MAX_BYTES) if stripe.is_manifest(head) else None
            if reader.size_bytes != info.size_bytes:
                return await self._look(await self.store.stat(info.name))
        if data is None:
            return Entry(info)
        try:
            return Entry(info, stripe.decode(data, info.name))
        except Corrupt as error:
            return Entry(info, problem=error)

    async def _move_parts(self, entry: Entry, layout: Layout, here: str, there: str) -> Entry:
        """Move the parts to another folder; at each step the file can be read where it is."""
        beside, target = (parts_folder(folder, layout.parts_id) for folder in (here, there))
        found = await self._parts(entry, layout)
        if found != beside:
            # A move was cut off, perhaps to yet another folder; a manifest names only one.
            await self.store.rename(found, beside)
        moving = replace(layout, elsewhere=os.path.relpath(f"/{there}", f"/{here}"))
        await publish(self.store, entry.name, moving.encode(), mode=entry.info.mode)
        entry = await self.stat(entry.name)
        await self.store.rename(beside, target)
        return entry

    async def _parts(self, entry: Entry, layout: Layout) -> str:
        """Find the folder of a file's parts."""
        for folder in parts_folders(entry.name, layout):
            with suppress(NotFound):
                return (await self.store.stat(folder)).name
        raise Corrupt(f"{entry.name!r}: its parts are missing; restore the file from another copy")

    async def drop_parts(self, entry: Entry) -> None:
        """Remove the parts of a file that has lost its name."""
        self._known.pop(entry.name, None)
        if entry.layout is not None:
            for folder in parts_folders(entry.name, entry.layout):
                await self._drop(folder)

    async def _drop(self, folder: str) -> None:
        """Remove parts that nobody needs, now or when what is left over is next looked for."""
        try:
            await self.store.delete_tree(folder)
        except NotFound:
            return
        except BootseerError as error:
            _log.warning("%s is of no use any more and stays for now: %s", folder, error)


def _share_parts(entry: Entry, layout: Layout | None) -> bool:
    """Tell whether two files have the same parts, because somebody has copied a manifest."""
    return (
        entry.layout is not None and layout is not None and entry.layout.parts_id == layout.parts_id
    )


def _parts_of(folder: str) -> str:
    return f"{folder}/{PARTS_FOLDER}" if folder else PARTS_FOLDER


def _may_be_a_stump(info: ObjectInfo) -> bool:
    return not info.is_folder and info.size_bytes < len(stripe.MAGIC)


def _is_shown(name: str) -> bool:
    return name.rpartition("/")[2] != PARTS_FOLDER


def _check_shown(name: str) -> None:
    if PARTS_FOLDER in name.split("/"):
        raise NotFound(f"{name!r}: {PARTS_FOLDER!r} is where parts of striped files are kept")

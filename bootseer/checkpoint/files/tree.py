"""A tree of the store with striped files in it, as its users see it.

Names are those of the store. A striped file has the name of its manifest; the folders of parts are
not shown, and move and go with what they belong to.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import trio
import xxhash

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.parts import (
    IF_MISSING,
    MAKING,
    Parts,
    above,
    is_link,
    is_of_move,
    let_others_step,
    making_folder,
    parts_beside,
    parts_folder,
    parts_of,
    was_named,
)
from bootseer.checkpoint.files.source import FileSource, PlainSource, StripedSource
from bootseer.checkpoint.files.stripe_manifest import PARTS_FOLDER, StripeManifest
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound
from bootseer.store.api.base import ObjectInfo, Store, Unlisted, publish
from bootseer.units import NS_PER_S

_log = logging.getLogger(__name__)

ABANDONED_S = 2 * 86400
"""A write that has made no new part for so long has been given up."""
_MOVED_S = 3600
"""Nobody is still moving the file for which a link was made so long ago."""
_LOOKS = 16
"""Manifests that a listing reads at once."""
_KNOWN = 20_000
"""Layouts that are remembered."""
_STAYS = "parts of %s are of no use any more and stay for now: %s"
_STUMP = (
    "{!r} may be what is left of a damaged manifest: there are parts beside it that belong to no "
    "file; if it is not, remove them with `bootseer ckpt gc --despite`"
)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or a folder.

    Attributes:
        info: what the store says of it, or of its manifest.
        layout: of a striped file.
        problem: why its manifest cannot be used; it is neither read nor written then.
    """

    info: ObjectInfo
    layout: StripeManifest | None = None
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


@dataclass(slots=True)
class PublishAttempts:
    """What has come of publishing one version of a file until now.

    Attributes:
        have_begun: there was one.
        over: what had the name at the first, if anything.
        are_done: the version has had its name; it is not written again, whatever has it now.
    """

    have_begun: bool = False
    over: FileEntry | None = None
    are_done: bool = False


class PlainContent(NamedTuple):
    """An object that is to be a file: its name, its length, and XXH3-128 of all of it."""

    name: str
    size_bytes: int
    checksum: int


class CheckpointTree:
    """Files and folders of a store, striped ones among them.

    Errors are the store's. Changes of one file are atomic to its readers, wherever they are. What
    is left over of what they replace or remove is no error: `reap` and `unused_parts` find it.
    """

    def __init__(self, store: Store) -> None:
        """Show the tree of `store`; nothing is read yet."""
        self.store = store
        self.parts = Parts(store)
        self._known: dict[str, FileEntry] = {}
        self._changing: Counter[str] = Counter()
        self._lost: set[str] = set()
        # By the new name of a file, the folder in which its parts may still be.
        self._unfinished: dict[str, str] = {}

    async def stat(self, name: str) -> FileEntry:
        """Describe a file or a folder; ``""`` is the root, which need not exist yet.

        Raises:
            NotFound: there is none.
        """
        if not name:
            return FileEntry(ObjectInfo("", 0, 0, is_folder=True))
        _check_shown(name)
        entry = await self._look(await self.store.stat(name))
        if _may_be_a_stump(entry.info):
            return (await self._suspect(above(name), [entry]))[0]
        return entry

    async def list(
        self, folder: str = "", unlisted: list[Unlisted] | None = None
    ) -> Sequence[FileEntry]:
        """Describe what is in a folder, sorted by name.

        A manifest is read once; what is known of it holds for as long as its length and time do.

        Args:
            folder: its name.
            unlisted: learns of what is there and cannot be used.
        """
        listing = await self.store.list(folder)
        if unlisted is not None:
            unlisted += listing.unlisted
        infos = [info for info in listing if _is_shown(info.name)]
        entries: list[FileEntry | None] = [None] * len(infos)
        limit = trio.CapacityLimiter(_LOOKS)
        errors: list[BootseerError] = []

        async def look(index: int, scope: trio.CancelScope) -> None:
            async with limit:
                try:
                    entries[index] = await self._look(infos[index])
                except NotFound:
                    return
                except BootseerError as error:
                    errors.append(error)
                    scope.cancel()

        async with trio.open_nursery() as nursery:
            for index, info in enumerate(infos):
                if info.is_folder or not stripe_manifest.may_be_manifest(info.size_bytes):
                    entries[index] = FileEntry(info)
                else:
                    nursery.start_soon(look, index, nursery.cancel_scope)
        if errors:
            raise errors[0]
        found = [entry for entry in entries if entry is not None]
        if any(_may_be_a_stump(entry.info) for entry in found):
            return await self._suspect(folder, found)
        return found

    def source(self, entry: FileEntry) -> FileSource:
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

    async def remove(self, entry: FileEntry) -> None:
        """Remove a file; its parts go after its name."""
        with self._change(entry.layout):
            await self.store.delete(entry.name)
            await self.drop_parts(entry)

    async def set_aside(self, entry: FileEntry) -> FileEntry | None:
        """Take a file's name away, and keep its content until `drop_aside`.

        It is kept at the root of the tree, so that the folder in which it was can be removed.

        Returns:
            What is kept; None if another node is moving it.
        """
        if entry.layout is not None:
            with self._change(entry.layout):
                await self.store.delete(entry.name)
                return await self.keep_parts(entry)
        target = f"{self.new_parts('')[1]}/{stripe_manifest.part_name(0)}"
        await self.store.rename(entry.name, target)
        return replace(entry, info=replace(entry.info, name=target))

    async def keep_parts(self, entry: FileEntry) -> FileEntry | None:
        """Keep the parts of a striped file that has lost its name; see `set_aside`."""
        assert entry.layout is not None
        self._known.pop(entry.name, None)
        _, folder = self.new_parts("")
        try:
            kept = parts_folder(folder, entry.layout.parts_id)
            await self.parts.take(entry.name, entry.layout, kept)
        except NotFound:
            return None
        target = f"{folder}/{stripe_manifest.part_name(0)}"
        return replace(entry, info=replace(entry.info, name=target))

    async def drop_aside(self, entry: FileEntry) -> None:
        """Remove what `set_aside` or `keep_parts` has kept."""
        folder = above(entry.name)
        if not folder.startswith(f"{PARTS_FOLDER}/{MAKING}"):
            raise ValueError(f"{entry.name!r} was not set aside")
        await self.store.delete_tree(folder)

    async def remove_folder(self, name: str) -> None:
        """Remove a folder in which nothing is shown.

        Raises:
            Conflict: it is not empty; or a file is perhaps just being moved into it.
        """
        await self._finish_moves(name)
        found = await self.store.list(name)
        if [i for i in found if _is_shown(i.name)]:
            raise Conflict(f"{name!r} is not empty")
        if found:
            await self.reap(name)
            for info in await self.left_over(name, _MOVED_S):
                if is_of_move(info):  # for files that are not here, and are not coming any more
                    await self.store.delete_tree(info.name)
            await self.store.delete(parts_of(name))
        await self.store.delete(name)

    async def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with all that is below.

        Raises:
            Conflict: parts are below that may be those of a file that was moved out.
        """
        entry = await self.stat(name)
        if entry.is_folder:
            await self._check_moved_out(name)
            await self.store.delete_tree(name)
        else:
            await self.remove(entry)

    async def _check_moved_out(self, folder: str) -> None:
        """Refuse a folder in which a move that has failed half-way may have left the parts."""
        with suppress(Corrupt):  # then whose they are cannot be told
            for info in await self.unused_parts(folder):
                if was_named(await self.store.list(info.name)):
                    raise Conflict(
                        f"{folder!r} has parts that no file in it names, in {info.name!r}: perhaps "
                        "those of a file that was moved out of it. In the tree in which that is, "
                        "`bootseer ckpt verify -R --repair` brings them; if there is none, "
                        "`bootseer ckpt gc` removes them"
                    )

    async def rename(
        self, entry: FileEntry, target: str, *, over: FileEntry | None = None
    ) -> FileEntry:
        """Give a file or a folder another name; returns what it is then.

        Args:
            entry: as it is now.
            target: its new name.
            over: the file there, which is replaced; None if nothing may be.

        Raises:
            Conflict: something else is there.
        """
        _check_shown(target)
        if entry.is_folder:
            await self._finish_moves(entry.name)
        with self._change(entry.layout, over.layout if over else None):
            if entry.is_folder:
                await self.store.rename(entry.name, target)
            else:
                async with self.parts.leaving(entry.name):
                    await self._move(entry, target, overwrite=over is not None)
            self._known.pop(entry.name, None)
            if over is not None and not _share_parts(over, entry.layout):
                await self.drop_parts(over)
        return replace(entry, info=replace(entry.info, name=target))

    async def _move(self, entry: FileEntry, target: str, *, overwrite: bool) -> None:
        """Move a file, or what has got its name in the last moment."""
        if entry.layout is not None:
            await self._move_striped(entry, entry.layout, target, overwrite=overwrite)
        else:
            await self.store.rename(entry.name, target, overwrite=overwrite)
        try:
            info = await self.store.stat(target)
            now = entry if info.is_version(entry.info) else await self._look(info)
        except NotFound:
            return  # somebody has moved it on, or removed it
        except BootseerError:
            if above(entry.name) != above(target):
                await self.parts.link(entry.name, target)
            raise
        if now.layout is None or _share_parts(now, entry.layout):
            return
        await self.parts.mark(entry.name, now.layout, target)
        if above(entry.name) != above(target):
            # Who gave it that name may still be bringing its parts there: the link is left to gc.
            await self.parts.link(entry.name, target)
            with suppress(Corrupt):
                await self._bring(now)

    async def _move_striped(
        self, entry: FileEntry, layout: StripeManifest, target: str, *, overwrite: bool
    ) -> None:
        """Move a striped file; at each step it can be read where its name is."""
        await self._bring(entry)
        async with self.parts.renamed(entry.name, target, layout):
            now = await self.stat(entry.name)
            if not _share_parts(now, layout):
                raise Conflict(f"{entry.name!r} was replaced; look at it, and move it again")
            if above(entry.name) == above(target):
                await self.store.rename(entry.name, target, overwrite=overwrite)
                return
            self._unfinished[target] = above(entry.name)
            link = await self.parts.link(entry.name, target)
            await self.store.rename(entry.name, target, overwrite=overwrite)
            now = await self.stat(target)
            if _share_parts(now, layout):
                await self._bring(now)
                await self.parts.unlink(link)
            self._unfinished.pop(target, None)

    async def _finish_moves(self, folder: str) -> None:
        """Bring what was moved out of a folder, or into it, and failed half-way.

        Its parts, or the link to them, move with the folder.
        """
        for name, source in list(self._unfinished.items()):
            if any(f"{place}/".startswith(f"{folder}/") for place in (name, source)):
                now = await self.find(name)
                if now is not None:
                    await self._bring(now)
                self._unfinished.pop(name, None)

    async def _bring(self, entry: FileEntry) -> None:
        """Have the parts of a file beside it."""
        if entry.layout is not None:
            try:
                await self.parts.bring(entry.name, entry.layout)
            except NotFound as error:
                raise Corrupt(f"{error}; {IF_MISSING}") from error

    async def publish(
        self,
        name: str,
        layout: StripeManifest,
        mode: int | None,
        making: str,
        attempts: PublishAttempts,
    ) -> FileEntry:
        """Show a striped file whose parts are complete; what has failed may be tried again.

        Args:
            name: of the file.
            layout: what the manifest is to say.
            mode: permission bits; the store's default if None.
            making: the folder in which the parts were made.
            attempts: the same one each time.

        Raises:
            Conflict: parts are missing, for somebody has moved or removed their folder; or
                somebody has replaced what was, or was going to be, replaced by this.
        """
        over = await self.find(name)
        if not attempts.have_begun:
            attempts.have_begun, attempts.over = True, over
        first = attempts.over
        with self._change(layout, over.layout if over else None):
            if over is not None and _share_parts(over, layout) and not attempts.are_done:
                # An attempt before this one may have failed just when its parts had gone.
                await self._check_published(name, layout, await self._folder_of(over, layout))
                attempts.are_done = True
            if not attempts.are_done:
                await self._publish(name, layout, mode, making, replaced=not _are_same(first, over))
                attempts.are_done = True
            if first is not None and not _share_parts(first, layout):
                await self.drop_parts(first)
        info = ObjectInfo(name, len(layout.encode()), time.time_ns(), mode=mode)
        return await self.now(FileEntry(info, layout))

    async def _publish(
        self, name: str, layout: StripeManifest, mode: int | None, making: str, *, replaced: bool
    ) -> None:
        """Write the manifest, when all parts are beside it; `replaced` since the first attempt."""
        target = parts_beside(name, layout)
        try:
            await self.store.rename(making, target)
        except (NotFound, Conflict):
            # An attempt before this one has come so far, or farther. A mark that came late may have
            # made the folder again from which the parts had gone.
            await self.store.stat(target)
            if replaced:
                # Perhaps it was seen and replaced, and its parts are being removed.
                raise Conflict(f"{name!r} was replaced meanwhile") from None
        # Whether the manifest has been seen, and replaced, by others is not known before an answer
        # comes; until then it may be written once more.
        async with self.parts.held(target):
            if was_named(await self._check_parts(name, layout, target)):
                return  # An attempt before this one has worked, and others have moved the file.
            await publish(self.store, name, layout.encode(), mode=mode)
            await self._check_published(name, layout, target)

    async def _folder_of(self, entry: FileEntry, layout: StripeManifest) -> str:
        """Return where the parts of a file are, or would be."""
        try:
            return (await self.parts.find(entry.name, layout))[0]
        except NotFound:
            return parts_beside(entry.name, layout)

    async def _check_published(self, name: str, layout: StripeManifest, folder: str) -> None:
        """Take the name from a file whose parts are gone, or are another's.

        Another node has renamed their folder; or the file, before it was written once more.
        """
        try:
            found = await self._check_parts(name, layout, folder)
        except Conflict:
            if await self._has(name, layout):
                await self.store.delete(name)
            raise
        if was_named(found) and await self._has_twin(name, layout):
            await self.store.delete(name)

    async def _has_twin(self, name: str, layout: StripeManifest) -> bool:
        """Tell whether the parts of a file are its name's and another's in the folder."""
        entries = await self.list(above(name))
        if not any(e.name != name and _share_parts(e, layout) for e in entries):
            return False
        return await self._has(name, layout)  # else it is one that was moved just now

    async def publish_plain(
        self, name: str, content: PlainContent | None, mode: int | None, making: str
    ) -> FileEntry:
        """Show an ordinary file: `content`, made in the folder `making`, or an empty one.

        What has failed may be tried again.

        Args:
            name: of the file.
            content: of it, which has its mode and time.
            mode: of an empty one; the store's default if None.
            making: the folder in which parts were made.

        Raises:
            NotFound: there is no such content; somebody has moved or removed its folder.
        """
        over = await self.find(name)
        made = ObjectInfo(name, 0, time.time_ns(), mode=mode)
        with self._change(over.layout if over else None):
            if content is None:
                await publish(self.store, name, b"", mode=mode)
            else:
                try:
                    made = replace(await self.store.stat(content.name), name=name)
                    await self.store.rename(content.name, name, overwrite=True)
                except NotFound:
                    if not await self._has_content(name, content):  # as above
                        raise
                    made = replace(made, size_bytes=content.size_bytes)
            await self._drop(making)
            if over is not None:
                await self.drop_parts(over)
        return await self.now(FileEntry(made), content)

    async def now(self, made: FileEntry, content: PlainContent | None = None) -> FileEntry:
        """Return what a file that was just published is now.

        Returns:
            It as it was made, if somebody has replaced it, or given it another name, since.
        """
        found = await self.find(made.name)
        if found is None or found.is_folder:
            return made
        if made.layout is not None:
            return found if _share_parts(found, made.layout) else made
        if found.layout is not None or found.size_bytes != made.size_bytes:
            return made
        if content is None or found.info.is_version(made.info):
            return found
        # Some stores make a copy, which is another version.
        return found if await self._has_content(made.name, content) else made

    async def _check_parts(
        self, name: str, layout: StripeManifest, folder: str
    ) -> Sequence[ObjectInfo]:
        """Return what is in the folder of a file's parts, which are all there."""
        found = await self.store.list(folder)
        names = {info.name.rpartition("/")[2] for info in found}
        missing = {stripe_manifest.part_name(unit.part) for unit in layout.units} - names
        if missing:
            raise Conflict(
                f"{name!r}: {min(missing)!r} is missing in {folder!r}; its folder was moved or "
                "removed while it was being written"
            )
        return found

    async def _has_content(self, name: str, content: PlainContent) -> bool:
        """Tell whether a name has some content already."""
        try:
            async with self.store.open(name) as reader:
                if reader.size_bytes != content.size_bytes:
                    return False
                data = await reader.pread(0, content.size_bytes)
        except NotFound:
            return False
        return xxhash.xxh3_128_intdigest(data) == content.checksum

    async def find(self, name: str) -> FileEntry | None:
        """Describe a file or a folder, if there is one."""
        try:
            return await self.stat(name)
        except NotFound:
            return None

    async def set_mode(self, entry: FileEntry, mode: int) -> None:
        """Change who may use a file or a folder; the parts of a file are closed first."""
        if entry.layout is not None:
            folder, parts = await self.parts.find(entry.name, entry.layout)
            await self.store.set_mode(folder, mode | (mode & 0o444) >> 2 | 0o700)
            for part in parts:
                if not part.is_folder:
                    await self.store.set_mode(part.name, mode)
        await self.store.set_mode(entry.name, mode)

    def new_parts(self, name: str) -> tuple[str, str]:
        """Return an id for the parts of a file and the folder to make them in."""
        parts_id = secrets.token_hex(16)
        return parts_id, making_folder(name, parts_id)

    async def reap(self, folder: str, older_than_s: float = ABANDONED_S) -> int:
        """Remove what writes and moves have left that were given up; returns of how many."""
        return await self.remove_left_over(await self.left_over(folder, older_than_s))

    async def left_over(self, folder: str, older_than_s: float) -> Sequence[ObjectInfo]:
        """List what writes to a folder, and moves into it, have left that were given up."""
        before_ns = time.time_ns() - int(older_than_s * NS_PER_S)
        return [
            info
            for info in await self.store.list(parts_of(folder))
            if info.mtime_ns <= before_ns
            and (info.name.rpartition("/")[2].startswith(MAKING) or is_of_move(info))
        ]

    async def remove_left_over(self, found: Sequence[ObjectInfo]) -> int:
        """Remove what `left_over` has found, when the moves that it is of have been completed.

        Returns:
            How much of it is gone.
        """
        # A file may be behind several links, which are removed only when all of them have served.
        kept: set[str] = set()
        for folder in {above(above(info.name)) for info in found if is_link(info)}:
            for entry in await self.list(folder):
                try:
                    await self._bring(entry)
                except Corrupt:
                    continue
                except Conflict:  # somebody else is at it
                    kept.add(parts_of(folder))
        gone = [info for info in found if not is_link(info) or above(info.name) not in kept]
        for info in gone:
            with suppress(NotFound):
                await self.store.delete_tree(info.name)
        return len(gone)

    async def unused_parts(self, folder: str, despite: Container[str] = ()) -> Sequence[ObjectInfo]:
        """List the folders of parts below a folder that no manifest below it names.

        Those of a file that is being published are among them until its manifest is there.

        Args:
            folder: its name.
            despite: names of damaged files that have no parts, or whose parts do not matter.

        Raises:
            Corrupt: a manifest is damaged, or has a name that cannot be used; what it names cannot
                be told.
        """
        named: set[str] = set()
        found: list[ObjectInfo] = []

        async def walk(name: str) -> None:
            # The parts first: what is published after that names its own.
            found.extend(await self.store.list(parts_of(name)))
            unlisted: list[Unlisted] = []
            for entry in await self.list(name, unlisted):
                if entry.is_folder:
                    await walk(entry.name)
                elif entry.problem is not None and not (
                    _may_be_a_stump(entry.info) or entry.name in despite
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

    async def _suspect(self, folder: str, entries: Sequence[FileEntry]) -> Sequence[FileEntry]:
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
                return stripe_manifest.MAGIC.startswith(
                    await reader.pread(0, len(stripe_manifest.MAGIC))
                )
        except BootseerError:
            return True

    async def _parts_of_none(self, folder: str) -> bool:
        unnamed = await self._unnamed_parts(folder)
        if unnamed - self._lost:
            await let_others_step()
            unnamed &= await self._unnamed_parts(folder)
            self._lost |= unnamed
        return bool(unnamed)

    async def _unnamed_parts(self, folder: str) -> set[str]:
        """Return the ids of parts in a folder that are no file's there, and not being changed."""
        kept = await self.store.list(parts_of(folder))
        ids = {info.name.rpartition("/")[2] for info in kept if info.is_folder}
        unnamed = {name for name in ids if stripe_manifest.check_id(name)} - set(self._changing)
        if not unnamed:
            return unnamed
        for info in await self.store.list(folder):
            with suppress(NotFound):
                if (entry := await self._look(info)).layout is not None:
                    unnamed.discard(entry.layout.parts_id)
        return unnamed - set(self._changing)

    @contextmanager
    def _change(self, *layouts: StripeManifest | None) -> Iterator[None]:
        """Note whose parts may be nobody's between two steps of a change."""
        ids = [layout.parts_id for layout in layouts if layout is not None]
        self._changing.update(ids)
        try:
            yield
        finally:
            self._changing -= Counter(ids)

    async def _look(self, info: ObjectInfo) -> FileEntry:
        """Find out whether an object is a manifest."""
        if info.is_folder or not stripe_manifest.may_be_manifest(info.size_bytes):
            return FileEntry(info)
        known = self._known.get(info.name)
        if known is None or not known.info.is_version(info):
            known = await self._read(info)
            while len(self._known) >= _KNOWN:
                del self._known[next(iter(self._known))]
            self._known[info.name] = known
            return known
        return replace(known, info=info)

    async def _read(self, info: ObjectInfo) -> FileEntry:
        async with self.store.open(info.name, known=info) as reader:
            head = await reader.pread(0, len(stripe_manifest.MAGIC))
            data = (
                await reader.pread(0, stripe_manifest.MAX_BYTES)
                if stripe_manifest.is_manifest(head)
                else None
            )
            if reader.size_bytes != info.size_bytes:
                return await self._look(await self.store.stat(info.name))
        if data is None:
            return FileEntry(info)
        try:
            return FileEntry(info, stripe_manifest.decode(data, info.name))
        except Corrupt as error:
            return FileEntry(info, problem=error)

    async def drop_parts(self, entry: FileEntry) -> None:
        """Remove the parts of a file that has lost its name."""
        self._known.pop(entry.name, None)
        if entry.layout is None:
            return
        try:
            folder = await self.parts.own(entry.name, entry.layout)
            if folder is not None and not await self._has(entry.name, entry.layout):
                await self._drop(folder)
        except BootseerError as error:
            _log.warning(_STAYS, entry.name, error)

    async def _has(self, name: str, layout: StripeManifest) -> bool:
        """Tell whether a name is that of a striped file's parts."""
        found = await self.find(name)
        return found is not None and _share_parts(found, layout)

    async def _drop(self, folder: str) -> None:
        """Remove parts that nobody needs, now or when what is left over is next looked for."""
        try:
            await self.store.delete_tree(folder)
        except NotFound:
            return
        except BootseerError as error:
            _log.warning(_STAYS, folder, error)


def _are_same(one: FileEntry | None, other: FileEntry | None) -> bool:
    return one is other or bool(one and other and one.info.is_version(other.info))


def _share_parts(entry: FileEntry, layout: StripeManifest | None) -> bool:
    """Tell whether two files have the same parts, because somebody has copied a manifest."""
    return (
        entry.layout is not None and layout is not None and entry.layout.parts_id == layout.parts_id
    )


def _may_be_a_stump(info: ObjectInfo) -> bool:
    return not info.is_folder and info.size_bytes < len(stripe_manifest.MAGIC)


def _is_shown(name: str) -> bool:
    return name.rpartition("/")[2] != PARTS_FOLDER


def _check_shown(name: str) -> None:
    if PARTS_FOLDER in name.split("/"):
        raise NotFound(f"{name!r}: {PARTS_FOLDER!r} is where parts of striped files are kept")

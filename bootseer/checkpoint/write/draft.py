"""A version of a file in the making: written in order or not, and published as a whole.

write(offset, data) ─► tail unit ──────────────┐
                  └─► spill (out of order) ─┐  ▼
flush:                                      └► deal ─► parts
publish: the folder of parts is renamed, the manifest written
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.namespace import Namespace
from bootseer.checkpoint.files.parts import above, making_folder, new_parts, parts_folder
from bootseer.checkpoint.files.publication import PlainContent, Publication
from bootseer.checkpoint.files.source import FileSource
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, part_name, units_between
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.write.options import WriteContext, WriteOptions
from bootseer.checkpoint.write.spill import FileTooLarge, Spill
from bootseer.checkpoint.write.stripe_writer import StripeWriter
from bootseer.errors import BootseerError, Closed, NoSpace, NotFound, Transient, Unavailable
from bootseer.store.api.base import ObjectInfo

_MANY_PARTS = stripe_manifest.MAX_PARTS // 2
"""Each sync, and each look at what was just written, ends parts, and a store that is away breaks
them; a manifest takes only so many."""


def may_pass(error: BootseerError) -> bool:
    """Tell whether what has failed may succeed later."""
    return isinstance(error, Transient | Unavailable) and not isinstance(error, NoSpace)


class Drafts:
    """What all files that are being written have in common.

    Concurrency: the tasks of one trio run.
    """

    def __init__(
        self, tree: CheckpointTree, nursery: trio.Nursery, options: WriteOptions | None = None
    ) -> None:
        """Write to `tree`, in tasks of `nursery`."""
        self.tree = tree
        self.names = Namespace(tree)
        self.pipelines = WriteContext(tree.store, nursery, options or WriteOptions())

    def begin(self, name: str, mode: int | None, base: FileSource | None = None) -> Draft:
        """Begin a new version of a file.

        Args:
            name: where it will be published, unless it is moved until then.
            mode: permission bits; the store's default if None.
            base: the version that it starts out as; None for an empty file.
        """
        return Draft(self, name, mode, base)


class Draft:
    """A version of a file in the making, which nobody sees before `publish`.

    Concurrency: one call at a time.

    Cancellation: of a call leaves the draft fit only to be discarded.
    """

    def __init__(
        self, shared: Drafts, name: str, mode: int | None, base: FileSource | None
    ) -> None:
        """Use `Drafts.begin`."""
        self.name = name
        self.mode = self._parts_mode = mode
        self.mtime_ns: int | None = None
        self.size_bytes = base.size_bytes if base else 0
        self.changed = True
        self._was_given_up = self._has_left = False
        self._publication = Publication(shared.tree)
        self._tree = shared.tree
        self._names = shared.names
        self._pipelines = shared.pipelines
        self._options = shared.pipelines.options
        self._unit_bytes = self._options.unit_bytes
        self._base = base
        self._base_bytes = self.size_bytes
        self._parts_id, self._folder = new_parts(name)
        self._stripe_writer = StripeWriter(shared.pipelines, self._folder, mode)
        self._tail: bytearray | None = None
        self._tail_unit = 0
        self._spill = Spill(self._options.spill_dir, self._options.spill_bytes)

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be made of it any more."""
        error = self._stripe_writer.error
        return error is not None and (self._was_given_up or not may_pass(error))

    # Changing it

    async def write(self, offset: int, data: bytes | memoryview) -> None:
        """Put bytes at an offset, after zeros if that is beyond the end.

        Back-pressure: returns when all whole units but one are on their way to a part.

        Raises:
            FileTooLarge: too much was written out of order, or there is no manifest for so much.
            BootseerError: what was written before could not be stored; the draft is lost.
        """
        await trio.lowlevel.checkpoint_if_cancelled()  # what is under way has ended by that, too
        with self._changing():
            await self._write(offset, memoryview(data))

    async def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it by zeros; see `write`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._changing():
            await self._truncate(size_bytes)

    async def read(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes as they are by now."""
        self._stripe_writer.check()
        stop = min(self.size_bytes, offset + size_bytes)
        pieces = []
        for unit in units_between(offset, stop, self._unit_bytes):
            start = unit * self._unit_bytes
            data = await self._load(unit)
            pieces.append(bytes(data[max(0, offset - start) : stop - start]))
        return b"".join(pieces)

    async def drain(self) -> None:
        """Have nothing on its way to a part.

        Raises:
            BootseerError: see `flush`.
        """
        await self._resume()
        await self._stripe_writer.drain()

    async def keep(self) -> None:
        """Show `bootseer ckpt gc` that it is still being written, though no part is new."""
        if self._stripe_writer.parts:
            # They are there already if only the manifest could not be written.
            published = parts_folder(above(self.name), self._parts_id)
            await self._tree.parts.touch(self._folder, published)

    def move(self, name: str) -> None:
        """Learn that the folder in which it is made has moved, parts and all; call `drain` before.

        Args:
            name: where it will be published now.
        """
        if self._has_left:
            return
        self.name = name
        self._folder = self._stripe_writer.folder = making_folder(name, self._parts_id)

    async def leave_folder(self) -> None:
        """Be made at the root of the tree from now on: its file is removed, and its folder will be.

        Raises:
            BootseerError: see `drain`.
        """
        await self.drain()
        if not self._has_left:
            with suppress(NotFound):  # no part was made, or an attempt before has come so far
                await self._tree.store.rename(
                    self._folder, making_folder(self._parts_id, self._parts_id)
                )
            self.move(self._parts_id)
            self._has_left = True

    def move_base(self, name: str) -> None:
        """Learn that the version which it started out as has another name."""
        if self._base is not None:
            self._base.move(name)

    # Ending it

    async def flush(self) -> None:
        """Return when all of it is in parts that survive; later writes may still follow.

        Raises:
            BootseerError: it cannot be stored; while `is_lost` is not true, a later attempt may
                succeed. What is written before that is an error, and loses the draft.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._resume()
        self._stripe_writer.check()
        if not self.changed:
            return
        try:
            await self._place_all()
            if len(self._stripe_writer.parts) > stripe_manifest.MAX_PARTS:
                await self._deal_anew()
        except BootseerError as error:
            self._stripe_writer.give_up(error)
            raise
        self.changed = False

    async def _resume(self) -> None:
        """Write again, if what has failed may succeed now."""
        if self._stripe_writer.error is not None and not self.is_lost:
            await self._stripe_writer.resume()

    async def publish(self) -> FileEntry:
        """Show it under its name, in the place of what is there, with its mode and time.

        Raises:
            BootseerError: it could not be stored, or not be named; nothing is visible.
        """
        await self.flush()
        await self._let_go()
        if not self.size_bytes:
            entry = await self._publication.publish_plain(self.name, None, self.mode, self._folder)
        elif (content := self._plain_content()) is not None:
            with suppress(NotFound):  # an attempt before this one has given it its name
                await self._set_attributes(
                    FileEntry(ObjectInfo(content.name, content.size_bytes, 0))
                )
            return await self._publication.publish_plain(
                self.name, content, self.mode, self._folder
            )
        else:
            parts, placed = self._stripe_writer.parts, self._stripe_writer.placed
            units = tuple(placed[unit] for unit in range(len(placed)))
            layout = StripeManifest(
                self.size_bytes, self._unit_bytes, self._parts_id, len(parts), units
            )
            entry = await self._publication.publish_striped(
                self.name, layout, self.mode, self._folder
            )
        with suppress(NotFound):  # others have moved it, or removed it, since
            if await self._set_attributes(entry):
                return await self._publication.current(entry)
        return entry

    def _plain_content(self) -> PlainContent | None:
        """Return the one part that is all of the file, if there is one."""
        placed = self._stripe_writer.placed
        part = self._stripe_writer.parts[placed[0].part]
        if len(placed) != 1 or not part.is_whole or part.size_bytes != self.size_bytes:
            return None
        path = f"{self._folder}/{part_name(part.index)}"
        return PlainContent(path, self.size_bytes, placed[0].checksum)

    async def _set_attributes(self, entry: FileEntry) -> bool:
        """Give a file its mode and time, where it was made with others; returns whether it was."""
        has_set = False
        if self.mode is not None and self.mode != self._parts_mode:
            await self._names.set_mode(entry, self.mode)
            has_set = True
        if self.mtime_ns is not None:
            await self._tree.store.set_mtime(entry.name, self.mtime_ns)
            has_set = True
        return has_set

    def lose(self, error: BootseerError) -> None:
        """Make nothing more of it."""
        self._was_given_up = True
        self._stripe_writer.give_up(error)

    async def discard(self) -> None:
        """Remove what was made of it."""
        self.lose(Closed(f"{self.name!r} was given up"))
        await self._let_go()
        if self._stripe_writer.parts:
            with trio.move_on_after(5, shield=True):
                # A part that is just being made would make the folder once more.
                with trio.move_on_after(3):
                    await self._stripe_writer.ended()
                try:
                    await self._tree.store.delete_tree(self._folder)
                except BootseerError:
                    return  # it is reaped later

    async def _let_go(self) -> None:
        await self._spill.close()
        if self._base is not None:
            base, self._base, self._base_bytes = self._base, None, 0
            await base.close()

    # Units

    async def _write(self, offset: int, view: memoryview) -> None:
        self._check_size(offset + len(view))
        self.changed = True
        if len(self._stripe_writer.parts) > _MANY_PARTS:
            await self._deal_anew()
        if offset > self.size_bytes:
            await self._extend(offset)
        while len(view):
            unit, inside = divmod(offset, self._unit_bytes)
            piece = view[: self._unit_bytes - inside]
            await self._put(unit, inside, piece)
            offset += len(piece)
            self.size_bytes = max(self.size_bytes, offset)
            view = view[len(piece) :]
            if self._tail is not None and len(self._tail) == self._unit_bytes:
                await self._deal_tail()

    async def _truncate(self, size_bytes: int) -> None:
        self._check_size(size_bytes)
        if size_bytes == self.size_bytes:
            return
        self.changed = True
        if size_bytes > self.size_bytes:
            await self._extend(size_bytes)
            return
        last, inside = divmod(size_bytes, self._unit_bytes)
        kept = await self._load(last) if inside else bytearray()
        for unit in units_between(size_bytes, self.size_bytes, self._unit_bytes):
            await self._stripe_writer.take_back(unit)
            self._spill.drop(unit)
        self.size_bytes = size_bytes
        self._base_bytes = min(self._base_bytes, last * self._unit_bytes)
        self._tail = kept[:inside] if inside else None
        self._tail_unit = last

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lose the draft when a change fails: without it the rest is not to be stored either."""
        try:
            self._stripe_writer.check()
            yield
        except NoSpace:
            raise  # refused as a whole, or the dealer has given up
        except BootseerError as error:
            self.lose(error)
            raise

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > stripe_manifest.MAX_UNITS * self._unit_bytes:
            raise FileTooLarge(
                f"{self.name!r}: {size_bytes} bytes are more than {stripe_manifest.MAX_UNITS} "
                f"units of {self._unit_bytes} hold: write it with larger units"
            )

    async def _put(self, unit: int, inside: int, piece: memoryview) -> None:
        """Change a part of one unit."""
        at_end = unit * self._unit_bytes + inside == self.size_bytes
        if self._tail is None and at_end:
            self._tail, self._tail_unit = await self._load(unit), unit
            self._spill.drop(unit)
        if self._tail is not None and unit == self._tail_unit:
            self._tail[inside : inside + len(piece)] = piece
            await self._stripe_writer.take_back(unit)
            return
        whole = not inside and len(piece) >= self._unit_length(unit)
        data = bytearray(piece) if whole else await self._load(unit)
        data[inside : inside + len(piece)] = piece
        await self._spill.put(unit, data, self._unit_bytes)
        await self._stripe_writer.take_back(unit)

    async def _deal_tail(self) -> None:
        assert self._tail is not None
        unit, data, self._tail = self._tail_unit, self._tail, None
        await self._stripe_writer.deal(unit, data)

    async def _extend(self, size_bytes: int) -> None:
        """Add zeros at the end."""
        if size_bytes - self.size_bytes > self._options.spill_bytes:
            raise NoSpace(f"{self.name!r}: too many bytes are left out, up to {size_bytes}")
        while self.size_bytes < size_bytes:
            unit, inside = divmod(self.size_bytes, self._unit_bytes)
            count = min(self._unit_bytes - inside, size_bytes - self.size_bytes)
            await self._put(unit, inside, memoryview(bytes(count)))
            self.size_bytes += count
            if self._tail is not None and len(self._tail) == self._unit_bytes:
                await self._deal_tail()

    def _unit_length(self, unit: int) -> int:
        return min(self._unit_bytes, self.size_bytes - unit * self._unit_bytes)

    async def _load(self, unit: int) -> bytearray:
        """Return a unit as it is by now, wherever it is."""
        length = self._unit_length(unit)
        if self._tail is not None and unit == self._tail_unit:
            return bytearray(self._tail[:length])
        if unit in self._spill:
            return (await self._spill.get(unit, self._unit_bytes))[:length]
        if self._stripe_writer.has(unit):
            return bytearray(await self._stripe_writer.read(unit))[:length]
        start = unit * self._unit_bytes
        if self._base is None or start >= self._base_bytes:
            return bytearray(length)
        data = bytearray()
        stop = min(start + length, self._base_bytes)
        for piece in units_between(start, stop, self._base.piece_bytes):
            begin, end = self._base.piece_range(piece)
            content = await self._base.fetch(piece)
            data += content[max(0, start - begin) : min(stop, end) - begin]
        return data.ljust(length, b"\0")

    async def _deal_anew(self) -> None:
        """Write what was dealt once more, to few parts; if that fails, it is where it was."""
        await self._stripe_writer.drain()
        parts_id, folder = new_parts(self.name)
        stripe_writer = StripeWriter(self._pipelines, folder, self._parts_mode)
        try:
            for unit in sorted(self._stripe_writer.placed):
                await stripe_writer.deal(unit, bytearray(await self._stripe_writer.read(unit)))
            await stripe_writer.drain()
        except BaseException:
            stripe_writer.give_up(
                Closed(f"{folder!r} was given up")
            )  # what is there is reaped later
            raise
        folder, self._folder = self._folder, folder
        self._parts_id, self._stripe_writer = parts_id, stripe_writer
        with suppress(BootseerError):  # it is reaped later
            await self._tree.store.delete_tree(folder)

    async def _place_all(self) -> None:
        """Have every unit placed, and every part ended."""
        deal = self._stripe_writer.deal
        for unit in self._spill.units():
            await deal(unit, await self._spill.get(unit, self._unit_bytes))
            self._spill.drop(unit)
        for unit in units_between(0, self._base_bytes, self._unit_bytes):
            is_tail = self._tail is not None and unit == self._tail_unit
            if not is_tail and not self._stripe_writer.has(unit):
                await deal(unit, await self._load(unit))
        if self._tail and not self._stripe_writer.has(self._tail_unit):
            await deal(self._tail_unit, bytearray(self._tail))
        await self._stripe_writer.drain()

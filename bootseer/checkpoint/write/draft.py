"""A version of a file in the making: written in order or not, and published as a whole.

Its content goes through `UnitBuffer` to parts; to publish it, the folder of parts is renamed, and
the manifest written.
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
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, part_name
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.write.options import WriteContext, WriteOptions
from bootseer.checkpoint.write.spill import FileTooLarge
from bootseer.checkpoint.write.stripe_writer import StripeWriter
from bootseer.checkpoint.write.unit_buffer import UnitBuffer
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
        self.context = WriteContext(tree.store, nursery, options or WriteOptions())

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
        self.changed = True
        self._was_given_up = self._has_left = False
        self._publication = Publication(shared.tree)
        self._tree = shared.tree
        self._names = shared.names
        self._options = shared.context.options
        self._parts_id, self._folder = new_parts(name)
        self._units = UnitBuffer(shared.context, self._folder, mode, base)

    @property
    def size_bytes(self) -> int:
        """Its length by now."""
        return self._units.size_bytes

    @property
    def _writer(self) -> StripeWriter:
        return self._units.writer

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be made of it any more."""
        error = self._writer.error
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
        self._writer.check()
        return await self._units.read(offset, size_bytes)

    async def drain(self) -> None:
        """Have nothing on its way to a part.

        Raises:
            BootseerError: see `flush`.
        """
        await self._resume()
        await self._writer.drain()

    async def keep(self) -> None:
        """Show `bootseer ckpt gc` that it is still being written, though no part is new."""
        if self._writer.parts:
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
        self._folder = making_folder(name, self._parts_id)
        self._writer.move(self._folder)

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
        self._units.move_base(name)

    # Ending it

    async def flush(self) -> None:
        """Return when all of it is in parts that survive; later writes may still follow.

        Raises:
            BootseerError: it cannot be stored; while `is_lost` is not true, a later attempt may
                succeed. What is written before that is an error, and loses the draft.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._resume()
        self._writer.check()
        if not self.changed:
            return
        try:
            await self._units.place_all()
            if len(self._writer.parts) > stripe_manifest.MAX_PARTS:
                await self._rewrite_parts()
        except BootseerError as error:
            self._writer.give_up(error)
            raise
        self.changed = False

    async def _resume(self) -> None:
        """Write again, if what has failed may succeed now."""
        if self._writer.error is not None and not self.is_lost:
            await self._writer.resume()

    async def publish(self) -> FileEntry:
        """Show it under its name, in the place of what is there, with its mode and time.

        Raises:
            BootseerError: it could not be stored, or not be named; nothing is visible.
        """
        await self.flush()
        await self._units.close()
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
            parts, placed = self._writer.parts, self._writer.placed
            units = tuple(placed[unit] for unit in range(len(placed)))
            layout = StripeManifest(
                self.size_bytes, self._options.unit_bytes, self._parts_id, len(parts), units
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
        placed = self._writer.placed
        part = self._writer.parts[placed[0].part]
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
        self._writer.give_up(error)

    async def discard(self) -> None:
        """Remove what was made of it."""
        self.lose(Closed(f"{self.name!r} was given up"))
        await self._units.close()
        if self._writer.parts:
            with trio.move_on_after(5, shield=True):
                # A part that is just being made would make the folder once more.
                with trio.move_on_after(3):
                    await self._writer.ended()
                try:
                    await self._tree.store.delete_tree(self._folder)
                except BootseerError:
                    return  # gc removes it

    async def _write(self, offset: int, view: memoryview) -> None:
        self._check_size(offset + len(view))
        self.changed = True
        if len(self._writer.parts) > _MANY_PARTS:
            await self._rewrite_parts()
        if offset > self.size_bytes:
            await self._extend(offset)
        await self._units.write(offset, view)

    async def _truncate(self, size_bytes: int) -> None:
        self._check_size(size_bytes)
        if size_bytes == self.size_bytes:
            return
        self.changed = True
        if size_bytes > self.size_bytes:
            await self._extend(size_bytes)
        else:
            await self._units.cut(size_bytes)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lose the draft when a change fails: without it the rest is not to be stored either."""
        try:
            self._writer.check()
            yield
        except NoSpace:
            raise  # refused as a whole, or the dealer has given up
        except BootseerError as error:
            self.lose(error)
            raise

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > stripe_manifest.MAX_UNITS * self._options.unit_bytes:
            raise FileTooLarge(
                f"{self.name!r}: {size_bytes} bytes are more than {stripe_manifest.MAX_UNITS} "
                f"units of {self._options.unit_bytes} hold: write it with larger units"
            )

    async def _extend(self, size_bytes: int) -> None:
        """Add zeros at the end."""
        if size_bytes - self.size_bytes > self._options.spill_bytes:
            raise NoSpace(f"{self.name!r}: too many bytes are left out, up to {size_bytes}")
        await self._units.extend(size_bytes)

    async def _rewrite_parts(self) -> None:
        """Write the parts once more, as few; if that fails, they are where they were."""
        await self._writer.drain()
        parts_id, folder = new_parts(self.name)
        await self._units.rewrite(folder)
        folder, self._folder = self._folder, folder
        self._parts_id = parts_id
        with suppress(BootseerError):  # gc removes it
            await self._tree.store.delete_tree(folder)

"""Write a new version of a file, in order or not, and publish it as a whole.

Content goes through `UnitBuffer` to parts. `Publication` renames the folder of parts and writes the
manifest.
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
"""Parts after which the draft is rewritten: each sync, each read of new content and each outage of
the store ends parts, and a manifest has room for only so many."""


def may_succeed_later(error: BootseerError) -> bool:
    """Tell whether an operation that failed so may succeed later."""
    return isinstance(error, Transient | Unavailable) and not isinstance(error, NoSpace)


class Drafts:
    """Begins drafts that share one tree and one budget.

    Concurrency: the tasks of one trio run.
    """

    def __init__(
        self, tree: CheckpointTree, nursery: trio.Nursery, options: WriteOptions | None = None
    ) -> None:
        """Begin drafts of files of `tree`, written by tasks of `nursery`."""
        self.tree = tree
        self.names = Namespace(tree)
        self.context = WriteContext(tree.store, nursery, options or WriteOptions())

    def begin(self, name: str, mode: int | None, base: FileSource | None = None) -> Draft:
        """Begin a new version of a file.

        Args:
            name: where it will be published, unless it is moved until then.
            mode: permission bits; the store's default if None.
            base: the version to start from; None for an empty file.
        """
        return Draft(self, name, mode, base)


class Draft:
    """A new version of a file, which is invisible before `publish`.

    Concurrency: one call at a time.

    Cancellation: a cancelled call leaves the draft fit only to be discarded.
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
        return self._units.size_bytes

    @property
    def _writer(self) -> StripeWriter:
        return self._units.writer

    @property
    def is_lost(self) -> bool:
        """Tell whether it can never be published."""
        error = self._writer.error
        return error is not None and (self._was_given_up or not may_succeed_later(error))

    # Changing it

    async def write(self, offset: int, data: bytes | memoryview) -> None:
        """Put bytes at an offset, after zeros if that is beyond the end.

        Back-pressure: returns when all whole units but one are on their way to a part.

        Raises:
            FileTooLarge: too much was written out of order, or is more than a manifest describes.
            BootseerError: earlier writes could not be stored; the draft is lost.
        """
        await trio.lowlevel.checkpoint_if_cancelled()  # the tasks that write parts may be, too
        with self._changing():
            await self._write(offset, memoryview(data))

    async def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it by zeros; see `write`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._changing():
            await self._truncate(size_bytes)

    async def read(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes of the present content."""
        self._writer.check()
        return await self._units.read(offset, size_bytes)

    async def drain(self) -> None:
        """End all parts, so that nothing is on its way to one.

        Raises:
            BootseerError: see `flush`.
        """
        await self._resume()
        await self._writer.drain()

    async def touch(self) -> None:
        """Set the time of the parts to now, so that `bootseer ckpt gc` leaves them."""
        if self._writer.parts:
            # They are beside the file already if only the manifest could not be written.
            published = parts_folder(above(self.name), self._parts_id)
            await self._tree.parts.touch(self._folder, published)

    def move(self, name: str) -> None:
        """Set the new name when its folder has moved, with the parts; call `drain` before that.

        Args:
            name: where it will be published.
        """
        if self._has_left:
            return
        self.name = name
        self._folder = making_folder(name, self._parts_id)
        self._writer.move(self._folder)

    async def leave_folder(self) -> None:
        """Move the parts to the root of the tree: the file is removed, and its folder will be.

        Raises:
            BootseerError: see `drain`.
        """
        await self.drain()
        if not self._has_left:
            with suppress(NotFound):  # no part was written, or an earlier attempt moved them
                await self._tree.store.rename(
                    self._folder, making_folder(self._parts_id, self._parts_id)
                )
            self.move(self._parts_id)
            self._has_left = True

    def move_base(self, name: str) -> None:
        """Set the new name of the version that it started from."""
        self._units.move_base(name)

    # Ending it

    async def flush(self) -> None:
        """Store all of it in parts that survive a crash; writes may still follow.

        Raises:
            BootseerError: it cannot be stored. While `is_lost` is not true, a later attempt may
                succeed; a write before that fails, and loses the draft.
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
            self._writer.fail(error)
            raise
        self.changed = False

    async def _resume(self) -> None:
        """Write again after an error that may have passed."""
        if self._writer.error is not None and not self.is_lost:
            await self._writer.resume()

    async def publish(self) -> FileEntry:
        """Publish it under its name, replacing the version there, with its mode and time.

        Raises:
            BootseerError: it could not be stored, or not be published; nothing is visible.
        """
        await self.flush()
        await self._units.close()
        if not self.size_bytes:
            entry = await self._publication.publish_plain(self.name, None, self.mode, self._folder)
        elif (content := self._plain_content()) is not None:
            with suppress(NotFound):  # an earlier attempt has renamed it
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
        with suppress(NotFound):  # others have renamed or removed it since
            if await self._set_attributes(entry):
                found = await self._publication.current(entry)
                if found.has_parts_of(entry.layout) and not found.info.is_version(entry.info):
                    await self._tree.marks.move(entry, found.info)
                return found
        return entry

    def _plain_content(self) -> PlainContent | None:
        """Return the part that is the whole file; None if there is no such part."""
        placed = self._writer.placed
        part = self._writer.parts[placed[0].part]
        if len(placed) != 1 or not part.is_whole or part.size_bytes != self.size_bytes:
            return None
        path = f"{self._folder}/{part_name(part.index)}"
        return PlainContent(path, self.size_bytes, placed[0].checksum)

    async def _set_attributes(self, entry: FileEntry) -> bool:
        """Set mode and time of a file where they differ; returns whether they did."""
        has_set = False
        if self.mode is not None and self.mode != self._parts_mode:
            await self._names.set_mode(entry, self.mode)
            has_set = True
        if self.mtime_ns is not None:
            await self._tree.store.set_mtime(entry.name, self.mtime_ns)
            has_set = True
        return has_set

    def lose(self, error: BootseerError) -> None:
        """Give it up because of an error: it can never be published."""
        self._was_given_up = True
        self._writer.fail(error)

    async def discard(self) -> None:
        """Give it up, and remove its parts."""
        self.lose(Closed(f"{self.name!r} was given up"))
        await self._units.close()
        if self._writer.parts:
            with trio.move_on_after(5, shield=True):
                # A part that is just being created would create the folder again.
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
        """Lose the draft when a change fails: the rest must not be stored without it."""
        try:
            self._writer.check()
            yield
        except NoSpace:
            raise  # refused as a whole, or the writer has failed
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
        """Write the content once more, to fewer parts; if that fails, the old ones stay."""
        await self._writer.drain()
        parts_id, folder = new_parts(self.name)
        await self._units.rewrite(folder)
        folder, self._folder = self._folder, folder
        self._parts_id = parts_id
        with suppress(BootseerError):  # gc removes it
            await self._tree.store.delete_tree(folder)

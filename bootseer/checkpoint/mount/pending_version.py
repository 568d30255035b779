"""A version of a file that was written through a mount and is not published yet."""

from __future__ import annotations

import time

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.write.draft import Draft
from bootseer.errors import BootseerError


class PendingVersion:
    """A draft, and what has come of publishing it.

    Concurrency: the caller of each coroutine holds the file's lock.

    Attributes:
        draft: what was written.
        mtime_ns: of the last write.
        failed: why it could not be published.
        is_lost: it never will be, and that has been told.
        is_vouched: a process that opened it has closed it and was not killed, and nothing was
            written since.
    """

    def __init__(self, draft: Draft) -> None:
        """Begin with what `draft` has."""
        self.draft = draft
        self.mtime_ns = time.time_ns()
        self.failed: BootseerError | None = None
        self.is_lost = False
        self.is_vouched = False

    @property
    def state(self) -> str:
        """Whether it is being written, or why it is not published."""
        if self.failed is None:
            return "being written"
        return f"{'lost' if self.is_lost else 'waiting'}: {self.failed}"

    async def write(self, offset: int, data: bytes) -> None:
        """Put bytes at an offset; see `Draft.write`."""
        await self.draft.write(offset, data)
        self._note_change()

    async def truncate(self, size_bytes: int) -> None:
        """Cut or extend it; see `Draft.truncate`."""
        await self.draft.truncate(size_bytes)
        self._note_change()

    def _note_change(self) -> None:
        self.mtime_ns = time.time_ns()
        self.draft.mtime_ns = None

    def set_attributes(self, mode: int | None, mtime_ns: int | None) -> None:
        """Set the mode and time that it is to be published with; None leaves one as it is."""
        if mode is not None:
            self.draft.mode = mode
        if mtime_ns is not None:
            self.draft.mtime_ns = self.mtime_ns = mtime_ns

    async def publish(self) -> FileEntry:
        """Show it under its name.

        Raises:
            BootseerError: see `Draft.publish`; while `Draft.is_lost` is not true, a later attempt
                may succeed.
        """
        try:
            return await self.draft.publish()
        except BootseerError as error:
            self.failed = error
            raise

    def lose(self, error: BootseerError) -> None:
        """Give up publishing it."""
        self.draft.lose(error)
        self.failed, self.is_lost = error, True

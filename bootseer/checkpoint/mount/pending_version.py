"""Keep a version of a file that was written through a mount until it is published."""

from __future__ import annotations

import time

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.write.draft import Draft
from bootseer.errors import BootseerError


class PendingVersion:
    """A draft of a file, and the result of publishing it.

    Concurrency: the caller of each coroutine holds the file's lock.

    Attributes:
        draft: the written content.
        mtime_ns: time of the last write.
        failed: why the last attempt to publish it failed.
        is_lost: it will never be published, and that was reported.
        is_vouched: a process that opened it has closed it without being killed, and nothing was
            written since.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.mtime_ns = time.time_ns()
        self.failed: BootseerError | None = None
        self.is_lost = False
        self.is_vouched = False

    @property
    def state(self) -> str:
        """Return "being written", or why it is not published."""
        if self.failed is None:
            return "being written"
        return f"{'lost' if self.is_lost else 'waiting'}: {self.failed}"

    async def write(self, offset: int, data: bytes) -> None:
        await self.draft.write(offset, data)
        self._note_change()

    async def truncate(self, size_bytes: int) -> None:
        """Cut or extend the content; see `Draft.truncate`."""
        await self.draft.truncate(size_bytes)
        self._note_change()

    def _note_change(self) -> None:
        self.mtime_ns = time.time_ns()
        self.draft.mtime_ns = None

    def set_attributes(self, mode: int | None, mtime_ns: int | None) -> None:
        """Set the mode and time to publish it with; None leaves one unchanged."""
        if mode is not None:
            self.draft.mode = mode
        if mtime_ns is not None:
            self.draft.mtime_ns = self.mtime_ns = mtime_ns

    async def publish(self) -> FileEntry:
        """Publish it under its name.

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
        self.draft.lose(error)
        self.failed, self.is_lost = error, True

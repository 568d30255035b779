"""Keep which handles of a file are open, and how its published version is read."""

from __future__ import annotations

from typing import NamedTuple

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.mount.open_writers import OpenWriters
from bootseer.checkpoint.mount.page_cache import CachedPieces
from bootseer.checkpoint.mount.page_pushes import PagePushes
from bootseer.checkpoint.read.fetcher import FileFetch
from bootseer.core.access_log import Recording
from bootseer.readahead_window import ReadaheadWindow


class ReadState(NamedTuple):
    """The state of reading one version of a file.

    Attributes:
        fetch: fetches its pieces.
        window: tells what to read ahead.
        cached: the pieces that the page cache should have.
    """

    fetch: FileFetch
    window: ReadaheadWindow
    cached: CachedPieces


class OpenFile:
    """The open handles of a file, and how its published version is read.

    Concurrency: the tasks of one trio run; changes with the file's lock held.

    Attributes:
        handles: number of open handles.
        writers: the processes of each handle that may write.
        reading: state of reading the published version; None if it is not being read.
        recording: records what is read of it, if that is to be recorded.
        is_recordable: false once the file was written here: a start does not read such a file.
        aside: where the version is kept that was removed or replaced while open.
        pushes: pushes its content into the page cache.
    """

    def __init__(self) -> None:
        self.handles = 0
        self.writers: set[OpenWriters] = set()
        self.reading: ReadState | None = None
        self.recording: Recording | None = None
        self.is_recordable = True
        self.aside: FileEntry | None = None
        self.pushes = PagePushes()
        self._cached: CachedPieces | None = None

    def add_handle(self, writers: OpenWriters | None) -> None:
        """Count a new handle, with its writers if it may write."""
        self.handles += 1
        if writers is not None:
            self.writers.add(writers)

    def remove_handle(self, writers: OpenWriters | None) -> None:
        """Count off a handle that `add_handle` has counted."""
        self.handles -= 1
        if writers is not None:
            self.writers.remove(writers)

    def record(self, recording: Recording | None) -> None:
        self.recording = recording

    def stop_recording(self) -> None:
        """Record nothing any more, because the file was written here."""
        self.recording, self.is_recordable = None, False

    def cached_pieces(self, piece_bytes: int, size_bytes: int) -> CachedPieces:
        """Return the pieces that the page cache should have; they outlast the handles."""
        if self._cached is None:
            self._cached = CachedPieces(piece_bytes, size_bytes)
        return self._cached

    def start_reading(self, reading: ReadState) -> None:
        """Set the state of reading the published version."""
        self.reading = reading

    async def stop_reading(self) -> None:
        """Close the readers of the published version."""
        if self.reading is not None:
            reading, self.reading = self.reading, None
            await reading.fetch.close()

    async def end_version(self) -> None:
        """Stop reading a version that is replaced, and forget what the page cache has of it."""
        await self.stop_reading()
        self._cached = None
        self.pushes.forget_marks()

    def move(self, name: str) -> None:
        """Set the new name of the version that is being read."""
        if self.reading is not None:
            self.reading.fetch.source.move(name)

    def put_aside(self, aside: FileEntry | None) -> None:
        """Set where the version that is being read is kept; None if it is lost."""
        self.aside = aside
        if aside is not None:
            self.move(aside.name)

    def take_aside(self) -> FileEntry | None:
        """Return where a version is kept, and forget it."""
        aside, self.aside = self.aside, None
        return aside

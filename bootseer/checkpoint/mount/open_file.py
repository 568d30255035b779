"""What is open of one file of a checkpoint mount: by whom, and how it is read."""

from __future__ import annotations

from typing import NamedTuple

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.mount.open_writers import OpenWriters
from bootseer.checkpoint.mount.page_cache import CachedPieces
from bootseer.checkpoint.mount.page_pushes import PagePushes
from bootseer.checkpoint.read.fetcher import FileFetch
from bootseer.checkpoint.read.readahead_window import ReadaheadWindow
from bootseer.core.access_log import Recording


class ReadState(NamedTuple):
    """How a version of a file is read.

    Attributes:
        fetch: brings its pieces.
        window: what to read ahead.
        cached: the pieces that the page cache should have.
    """

    fetch: FileFetch
    window: ReadaheadWindow
    cached: CachedPieces


class OpenFile:
    """Who has a file open, and how it is read.

    Concurrency: the tasks of one trio run; changes with the file's lock held.

    Attributes:
        handles: how often it is open.
        writers: who has it open to write, for each time that it is.
        reading: how the published version is read, while it is open.
        recording: takes what is read of it, if that counts.
        is_recordable: false once it was written here; to read that is not what a start does.
        aside: where it is kept, removed or replaced while open.
        pushes: of its content into the page cache.
    """

    def __init__(self) -> None:
        """Begin with a file that is not open."""
        self.handles = 0
        self.writers: set[OpenWriters] = set()
        self.reading: ReadState | None = None
        self.recording: Recording | None = None
        self.is_recordable = True
        self.aside: FileEntry | None = None
        self.pushes = PagePushes()
        self._cached: CachedPieces | None = None

    def add_handle(self, writers: OpenWriters | None) -> None:
        """Count an open(2), perhaps of one who may write."""
        self.handles += 1
        if writers is not None:
            self.writers.add(writers)

    def remove_handle(self, writers: OpenWriters | None) -> None:
        """Take one off that `add_handle` has counted."""
        self.handles -= 1
        if writers is not None:
            self.writers.remove(writers)

    def record(self, recording: Recording | None) -> None:
        """Have `recording` take what is read from now on."""
        self.recording = recording

    def stop_recording(self) -> None:
        """Record nothing of it any more: it was written here."""
        self.recording, self.is_recordable = None, False

    def cached_pieces(self, piece_bytes: int, size_bytes: int) -> CachedPieces:
        """Return what the page cache should have, which outlasts the handles of a version."""
        if self._cached is None:
            self._cached = CachedPieces(piece_bytes, size_bytes)
        return self._cached

    def start_reading(self, reading: ReadState) -> None:
        """Read the published version so."""
        self.reading = reading

    async def stop_reading(self) -> None:
        """Close what the published version is read with."""
        if self.reading is not None:
            reading, self.reading = self.reading, None
            await reading.fetch.close()

    async def end_version(self) -> None:
        """Stop reading a version that is another now, and forget what the page cache has of it."""
        await self.stop_reading()
        self._cached = None
        self.pushes.forget_marks()

    def move(self, name: str) -> None:
        """Learn that the version which is read has another name."""
        if self.reading is not None:
            self.reading.fetch.source.move(name)

    def put_aside(self, aside: FileEntry | None) -> None:
        """Learn where the version which is read is kept; None if it is lost."""
        self.aside = aside
        if aside is not None:
            self.move(aside.name)

    def take_aside(self) -> FileEntry | None:
        """Return what is kept, of which nothing is known any more then."""
        aside, self.aside = self.aside, None
        return aside

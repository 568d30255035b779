"""Work on many files at once: list them, count progress, and collect failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bootseer import parallel
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import FetchLimits
from bootseer.errors import BootseerError, NoSpace, Transient, Unavailable
from bootseer.store.api.base import Unlisted

T = TypeVar("T")

FILES_AT_ONCE = 8
"""Files worked on at once: small ones wait for answers, large ones keep the store busy."""
LINK = "a link or special file"
"""Reason for leaving a file out."""
_OUTAGES = 8
"""Files that fail because of the store before the work ends."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A file whose work failed, and why."""

    name: str
    error: BootseerError


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not copied, which is no failure."""

    name: str
    reason: str


@dataclass(slots=True)
class BatchProgress:
    """Counters of a piece of work, which may be read at any time.

    Attributes:
        total_files: number of all files.
        total_bytes: length of all files.
        done_files: files that succeeded, with the skipped ones.
        done_bytes: bytes of files that were compared, skipped, or copied.
        moved_bytes: bytes that were copied.
        skipped_files: files that were there already.
        failures: in the order in which they happened.
        left_out: links, special files, and incomplete exports.
    """

    total_files: int = 0
    total_bytes: int = 0
    done_files: int = 0
    done_bytes: int = 0
    moved_bytes: int = 0
    skipped_files: int = 0
    failures: list[Failure] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def skip(self, size_bytes: int) -> None:
        """Count a file that is there already."""
        self.done_files += 1
        self.skipped_files += 1
        self.done_bytes += size_bytes

    def move(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes
        self.moved_bytes += size_bytes


async def walk(
    tree: CheckpointTree, name: str, unlisted: list[Unlisted] | None = None
) -> Sequence[FileEntry]:
    """Return the entry of a file, or those of a folder and all below it, folders first.

    Args:
        tree: where it is.
        name: of the file or folder.
        unlisted: gets the objects that cannot be used.

    Raises:
        NotFound: there is no such file or folder.
    """
    found = [await tree.stat(name)]
    folders = [name] if found[0].is_folder else []
    while folders:
        entries = await tree.list(folders.pop(), unlisted)
        found += entries
        folders += [entry.name for entry in reversed(entries) if entry.is_folder]
    return found


async def for_each(
    items: Iterable[T],
    work: Callable[[T], Awaitable[None]],
    name_of: Callable[[T], str],
    progress: BatchProgress,
    at_once: int = FILES_AT_ONCE,
) -> None:
    """Call `work` with each item, `at_once` at a time; failures go to `progress`.

    Raises:
        BootseerError: it would fail with all others, too: no space is left, or the store is away.
    """
    outages = 0

    async def attempt(item: T) -> None:
        nonlocal outages
        try:
            await work(item)
        except BootseerError as error:
            progress.failures.append(Failure(name_of(item), error))
            outages += isinstance(error, Unavailable | Transient)
            if isinstance(error, NoSpace) or outages >= _OUTAGES:
                raise

    await parallel.for_each(items, attempt, at_once)


def limits_for(entries: Iterable[FileEntry]) -> FetchLimits:
    """Return limits of memory that allow to fetch the longest units of these files."""
    usual = FetchLimits()
    unit_bytes = max((entry.layout.unit_bytes for entry in entries if entry.layout), default=0)
    return FetchLimits(memory_bytes=max(usual.memory_bytes, 2 * unit_bytes))

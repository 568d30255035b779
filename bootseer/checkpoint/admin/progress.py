"""Many files at once: what there is, how far it has come, and what has failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import FetchLimits
from bootseer.errors import BootseerError, NoSpace, Transient, Unavailable
from bootseer.store.api.base import Unlisted

T = TypeVar("T")

FILES_AT_ONCE = 8
"""Small ones wait for the store's answers, and large ones keep it busy by themselves."""
LINK = "a link or special file"
"""Why one is left out."""
_OUTAGES = 8
"""Files that fail for want of the store itself before it is taken to be gone."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A file with which something could not be done."""

    name: str
    error: BootseerError


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not brought to the other side, which is no failure."""

    name: str
    reason: str


@dataclass(slots=True)
class Progress:
    """How far a piece of work has come; whoever shows it looks at it when it likes.

    Attributes:
        total_files: to do in all.
        total_bytes: of these files.
        done_files: that came through, the skipped ones included.
        done_bytes: of all that was looked at, skipped, or moved.
        moved_bytes: that were read from one side and written to the other.
        skipped_files: that were there already.
        failures: what went wrong, in the order in which it did.
        left_out: links, special files, and what is no file of anybody's.
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
        """Count bytes that have been read and written."""
        self.done_bytes += size_bytes
        self.moved_bytes += size_bytes


async def walk(
    tree: CheckpointTree, name: str, unlisted: list[Unlisted] | None = None
) -> Sequence[FileEntry]:
    """List a file, or a folder and all that is below it, folders before what is in them.

    Args:
        tree: where it is.
        name: of the file or folder.
        unlisted: learns of what is there and cannot be used.

    Raises:
        NotFound: there is neither.
    """
    found = [await tree.stat(name)]
    folders = [name] if found[0].is_folder else []
    while folders:
        entries = await tree.list(folders.pop(), unlisted)
        found += entries
        folders += [entry.name for entry in reversed(entries) if entry.is_folder]
    return found


async def each(
    items: Iterable[T],
    work: Callable[[T], Awaitable[None]],
    name_of: Callable[[T], str],
    progress: Progress,
    at_once: int = FILES_AT_ONCE,
) -> None:
    """Do some work with each item, several at once; what fails with one goes to the tally.

    Raises:
        BootseerError: it would fail with all others, too: there is no space, or no store.
    """
    waiting = iter(items)
    outages = 0
    end: list[BootseerError] = []

    async def some(scope: trio.CancelScope) -> None:
        nonlocal outages
        for item in waiting:
            try:
                await work(item)
            except BootseerError as error:
                progress.failures.append(Failure(name_of(item), error))
                outages += isinstance(error, Unavailable | Transient)
                if isinstance(error, NoSpace) or outages >= _OUTAGES:
                    end.append(error)
                    scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(some, nursery.cancel_scope)
    if end:
        raise end[0]


@asynccontextmanager
async def background() -> AsyncIterator[trio.Nursery]:
    """Lend a nursery for the length of a block; what is left in it then is cancelled.

    An error of ours that ends the block comes out as it is, and not in a group.
    """
    ended: BootseerError | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except BootseerError as error:
            ended = error
        nursery.cancel_scope.cancel()
    if ended is not None:
        raise ended


def limits_for(entries: Iterable[FileEntry]) -> FetchLimits:
    """Return limits with which every one of these files can be fetched, however long its units."""
    usual = FetchLimits()
    unit_bytes = max((entry.layout.unit_bytes for entry in entries if entry.layout), default=0)
    return FetchLimits(memory_bytes=max(usual.memory_bytes, 2 * unit_bytes))

"""Read all of a file or a tree, report what is damaged, and complete interrupted moves.

Nothing is guessed: bytes that no copy has intact stay lost, and are reported.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

import trio

from bootseer.checkpoint.admin.describe import FileProblem, find_parts, part_problems
from bootseer.checkpoint.admin.progress import (
    LINK,
    BatchProgress,
    for_each,
    limits_for,
    walk,
)
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.checkpoint.files.leftovers import Leftovers
from bootseer.checkpoint.files.parts import above, has_parts, parts_beside, parts_of
from bootseer.checkpoint.files.source import FileSource
from bootseer.checkpoint.files.stripe_manifest import StripeManifest
from bootseer.checkpoint.files.tree import CheckpointTree
from bootseer.checkpoint.read.fetcher import Fetcher
from bootseer.checkpoint.read.lanes import Lanes
from bootseer.errors import BootseerError, Conflict, Corrupt, NotFound, Transient, Unavailable
from bootseer.parallel import background
from bootseer.store.api.base import Unlisted


@dataclass(slots=True)
class VerifyResult:
    """Result of a verification.

    Attributes:
        progress: files and bytes read.
        problems: in the order in which they were found.
        notes: remarks that are no problems; one line each.
        repaired: moves completed and parts removed; one line each.
    """

    progress: BatchProgress = field(default_factory=BatchProgress)
    problems: list[FileProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)


async def verify(
    tree: CheckpointTree,
    name: str,
    result: VerifyResult,
    *,
    deep: bool = True,
    repair: bool = False,
) -> None:
    """Read every byte of a file or a tree, from any copy that is intact.

    Args:
        tree: where it is.
        name: of the file or folder.
        result: gets everything that is found.
        deep: read everything below a folder, and not its own files only.
        repair: complete interrupted moves, and remove the parts of abandoned writes.

    Raises:
        NotFound: there is no such file or folder.
        BootseerError: the store cannot be read.
    """
    unlisted: list[Unlisted] = []
    look = walk if deep else _shallow
    entries = await look(tree, name, unlisted)
    result.notes += [f"{one.name}: left out, {LINK}" for one in unlisted if not one.problem]
    result.problems += [FileProblem(one.name, one.problem) for one in unlisted if one.problem]
    files = [entry for entry in entries if not entry.is_folder]
    folders = {entry.name for entry in entries if entry.is_folder}
    folders |= {above(entry.name) for entry in files}
    progress = result.progress
    progress.total_files = len(files)
    progress.total_bytes = sum(entry.size_bytes for entry in files if entry.problem is None)
    async with background() as nursery:
        fetcher = Fetcher(nursery, limits_for(files))
        work = _Verify(tree, fetcher, result, folders, repair=repair)
        await for_each(files, work.verify_file, lambda entry: entry.name, progress)
    result.problems += [FileProblem(f.name, str(f.error)) for f in progress.failures]
    if repair:
        leftovers = Leftovers(tree)
        for folder in sorted(folders):
            if count := await leftovers.remove_abandoned(folder):
                result.repaired.append(
                    f"{folder or '/'}: removed the parts of {count} abandoned writes"
                )


@dataclass(eq=False)
class _Verify:
    """Verifies one file after another of a tree."""

    tree: CheckpointTree
    fetcher: Fetcher
    result: VerifyResult
    folders: Collection[str]
    repair: bool = field(kw_only=True)
    _searching: trio.Lock = field(default_factory=trio.Lock)
    # The folders that may have parts, by their id; None until some are missing.
    _kept: dict[str, list[str]] | None = None

    async def verify_file(self, entry: FileEntry) -> None:
        if entry.problem is not None:
            raise entry.problem
        lost: set[int] = set()
        if entry.layout is not None:
            lost = await self._parts(entry, entry.layout)
        await self._read(entry, lost)
        if not any(problem.name == entry.name for problem in self.result.problems):
            self.result.progress.done_files += 1

    async def _parts(self, entry: FileEntry, layout: StripeManifest) -> set[int]:
        """Check the parts, and return the units that cannot be read."""
        folder, parts = await find_parts(self.tree, entry, layout)
        is_lost = all(part.size_bytes is None for part in parts)
        if is_lost and (found := await self._search(layout)) is not None:
            folder = found
        if folder != parts_beside(entry.name, layout):
            await self._move(entry, layout, folder)
            if is_lost and self.repair:
                _, parts = await find_parts(self.tree, entry, layout)
        problems = part_problems(entry, layout, parts)
        if problems and await self._is_replaced(entry):
            raise _replaced(entry)
        self.result.problems += problems
        return {unit for problem in problems for unit in problem.units}

    async def _search(self, layout: StripeManifest) -> str | None:
        """Find parts without a link: a folder was renamed while the file was moved."""
        store = self.tree.store
        async with self._searching:
            if self._kept is None:
                self._kept = {}
                for folder in self.folders:
                    for info in await store.list(parts_of(folder)):
                        self._kept.setdefault(info.name.rpartition("/")[2], []).append(info.name)
        for name in self._kept.get(layout.parts_id, ()):
            if has_parts(await store.list(name)):
                return name
        return None

    async def _move(self, entry: FileEntry, layout: StripeManifest, there: str) -> None:
        """Complete an interrupted move of a file, or note it."""
        said = f"{entry.name}: its parts are in {above(there)!r}, as in the midst of a move"
        if not self.repair:
            self.result.notes.append(f"{said}; --repair completes it")
        elif await self._is_replaced(entry):
            raise _replaced(entry)
        elif await self.tree.parts.move_beside(entry.name, layout, there):
            self.result.repaired.append(f"{entry.name}: its parts are beside it again")

    async def _read(self, entry: FileEntry, lost: set[int]) -> None:
        """Read all pieces but the lost ones, by as many streams at once as allowed."""
        progress = self.result.progress
        source = _RecordingSource(self.tree.source(entry))
        await source.plan()
        lanes = Lanes(self.fetcher.limits.streams_per_lane)
        for piece in range(source.pieces):
            if piece in lost:
                progress.done_bytes += source.piece_range(piece).size_bytes
            else:
                lanes.add(piece, source.lane(piece))
        file = self.fetcher.open(source)
        streams = self.fetcher.limits.memory_bytes // max(1, source.piece_bytes)
        streams = max(1, min(self.fetcher.limits.streams, streams))
        end: list[BootseerError] = []
        wrong: dict[int, BootseerError] = {}
        silent: dict[Hashable, list[int]] = {}  # by lane, whose machine does not answer

        async def some() -> None:
            while not end and (taken := lanes.take()) is not None:
                piece, lane = taken
                try:
                    if lane in silent:
                        silent[lane].append(piece)
                    else:
                        await file.get(piece)
                        progress.moved_bytes += source.piece_range(piece).size_bytes
                except (Transient, Unavailable) as error:
                    silent.setdefault(lane, []).append(piece)
                    wrong.setdefault(silent[lane][0], error)
                except Corrupt as error:
                    wrong[piece] = error
                except BootseerError as error:
                    end.append(error)
                finally:
                    lanes.done(lane)
                progress.done_bytes += source.piece_range(piece).size_bytes

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(min(streams, len(lanes))):
                    nursery.start_soon(some)
        finally:
            await file.close()
        if end:
            raise end[0]
        together = {pieces[0]: tuple(pieces) for pieces in silent.values()}
        if source.pieces and len(together) == len(wrong) == len(silent) > 0:
            asked = sum(map(len, together.values()))
            if asked == source.pieces - len(lost):
                raise wrong[min(wrong)]  # nothing at all could be read
        for piece, error in sorted(wrong.items()):
            pieces = together.get(piece, (piece,))
            self.result.problems.append(_problem(entry, source, pieces, error))
            if entry.layout is None:
                break  # one problem for an ordinary object
        for piece, mistake in sorted(source.failed.items()):
            if piece not in wrong:
                self.result.notes.append(f"{mistake}; another copy is right")

    async def _is_replaced(self, entry: FileEntry) -> bool:
        """Tell whether a file was replaced or removed, which would explain missing parts."""
        try:
            return not entry.info.is_version(await self.tree.store.stat(entry.name))
        except NotFound:
            return True


class _RecordingSource(FileSource):
    """A source that records the pieces whose reads failed."""

    def __init__(self, inner: FileSource) -> None:
        self.size_bytes = inner.size_bytes
        self.piece_bytes = inner.piece_bytes
        self._info = inner._info
        self.failed: dict[int, Corrupt] = {}
        self._inner = inner

    async def plan(self) -> None:
        await self._inner.plan()

    def lane(self, piece: int) -> Hashable:
        return self._inner.lane(piece)

    async def fetch(self, piece: int, attempt: int = 0) -> bytes:
        try:
            return await self._inner.fetch(piece, attempt)
        except Corrupt as error:
            self.failed.setdefault(piece, error)
            raise

    async def close(self) -> None:
        await self._inner.close()


async def _shallow(
    tree: CheckpointTree, name: str, unlisted: list[Unlisted]
) -> Sequence[FileEntry]:
    top = await tree.stat(name)
    below = await tree.list(name, unlisted) if top.is_folder else ()
    return [top, *(entry for entry in below if not entry.is_folder)]


def _problem(
    entry: FileEntry, source: FileSource, pieces: tuple[int, ...], error: BootseerError
) -> FileProblem:
    if entry.layout is None:
        return FileProblem(entry.name, str(error))
    part = entry.layout.units[pieces[0]].part
    if not isinstance(error, Corrupt):
        return FileProblem(entry.name, f"cannot be read: {error}", part, tuple(sorted(pieces)))
    start, stop = source.piece_range(pieces[0])
    offset = entry.layout.units[pieces[0]].offset
    text = f"bytes {start} to {stop} of the file do not match their checksum (offset {offset})"
    return FileProblem(entry.name, text, part, pieces)


def _replaced(entry: FileEntry) -> Conflict:
    return Conflict(f"{entry.name!r} was replaced or removed meanwhile; verify it again")

"""Read all objects of a snapshot, and compare them with its manifest."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import trio

from bootseer.env.client.scan import tree_digest
from bootseer.env.restore.apply import Read
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.frame_source import FrameSource
from bootseer.env.snapshot.frames import Frame, content
from bootseer.env.snapshot.index import Index
from bootseer.env.snapshot.manifest import Snapshot, shown_path
from bootseer.errors import Corrupt, NotFound
from bootseer.image.library import catalog as images
from bootseer.image.library import verify as image_verify
from bootseer.image.library.upload import UploadProgress
from bootseer.store.api.base import Store

_THREADS = 2
_DAMAGE = (Corrupt, NotFound)
"""What else goes wrong says nothing of what is stored."""


@dataclass(frozen=True, slots=True)
class SnapshotProblem:
    """A damaged object.

    Attributes:
        name: of an object of the store, or path of a file as its user sees it.
        reason: one line.
    """

    name: str
    reason: str


async def verify(store: Store, key: str, progress: UploadProgress) -> list[SnapshotProblem]:
    """Compare all objects of a snapshot with their digests.

    Read are the manifest, the index, all frames with the SHA-256 of each file in them, and every
    block of the squashfs.

    Args:
        store: that has the snapshot.
        key: of the snapshot.
        progress: kept up to date.

    Returns:
        The objects that are damaged or missing.

    Raises:
        NotFound: there is no such snapshot.
        BootseerError: the store does not answer.
    """
    try:
        snapshot = await repository.read_snapshot(store, key)
    except Corrupt as error:
        return [SnapshotProblem(repository.manifest_object(key), str(error))]
    progress.total_bytes += snapshot.frames_bytes + snapshot.image_bytes
    problems: list[SnapshotProblem] = []
    index = frames = None
    folder = repository.folder_of(key, snapshot.capture)
    try:
        index = await repository.read_index(store, snapshot)
        if tree_digest(index.tree) != snapshot.digest:
            problems.append(SnapshotProblem(f"{folder}/index", "its tree is not the manifest's"))
    except _DAMAGE as error:
        problems.append(SnapshotProblem(f"{folder}/index", str(error)))
    try:
        frames = await repository.read_frames(store, snapshot)
    except _DAMAGE as error:
        problems.append(SnapshotProblem(f"{folder}/frames", str(error)))
    if frames is not None:
        problems += await _verify_frames(store, snapshot, index, frames, progress)
    problems += await _verify_image(store, snapshot, progress)
    return problems


async def _verify_frames(
    store: Store,
    snapshot: Snapshot,
    index: Index | None,
    frames: Sequence[Frame],
    progress: UploadProgress,
) -> list[SnapshotProblem]:
    files = _Files(snapshot, index)
    async with FrameSource(store, snapshot) as source:
        work = partial(_read_through, snapshot, frames, source.read, files, progress.add)
        problems = await trio.to_thread.run_sync(work)
    return problems + files.problems()


async def _verify_image(
    store: Store, snapshot: Snapshot, progress: UploadProgress
) -> list[SnapshotProblem]:
    try:
        _, manifest = await images.read_manifest(store, snapshot.image)
    except _DAMAGE as error:
        return [SnapshotProblem(images.manifest_object(snapshot.image), str(error))]
    found = await image_verify.verify(store, snapshot.image, manifest, progress.add)
    return [
        SnapshotProblem(d.name, f"damaged at byte {d.offset}, {d.size_bytes} bytes: {d.reason}")
        for d in found
    ]


def _read_through(
    snapshot: Snapshot,
    frames: Sequence[Frame],
    read: Read,
    files: _Files,
    count: Callable[[int], None],
) -> list[SnapshotProblem]:
    """Read all frames in order, in a thread; returns those that are damaged."""
    problems = []
    for frame, data in _contents(frames, read):
        trio.from_thread.check_cancelled()
        if isinstance(data, memoryview):
            files.add(frame, data)
        else:
            files.add(frame, None)
            part = frame.stored_start // repository.PART_BYTES
            name = repository.frames_object(snapshot.key, snapshot.capture, part)
            problems.append(SnapshotProblem(name, str(data)))
        count(frame.stored_bytes)
    return problems


def _contents(
    frames: Sequence[Frame], read: Read
) -> Iterator[tuple[Frame, memoryview | Corrupt | NotFound]]:
    """Read and decompress frames ahead; yields the content of each, or its problem."""

    def one(frame: Frame) -> memoryview | Corrupt | NotFound:
        try:
            return content(frame, read(frame))
        except _DAMAGE as error:
            return error

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="verify")
    waiting: deque[tuple[Frame, Future[memoryview | Corrupt | NotFound]]] = deque()
    try:
        for frame in frames:
            waiting.append((frame, pool.submit(one, frame)))
            if len(waiting) > _THREADS:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Files:
    """Hashes every file in a stream of frames with SHA-256."""

    def __init__(self, snapshot: Snapshot, index: Index | None) -> None:
        """Expect the digests of an index; without one, nothing is compared."""
        self._snapshot = snapshot
        self._index = index
        places = index.places if index is not None else {}
        self._waiting = deque(sorted(places, key=lambda path: (places[path].tar, path)))
        self._digest = hashlib.sha256()
        self._is_whole = True
        self._wrong: list[bytes] = []
        self._lost: list[bytes] = []

    def add(self, frame: Frame, data: memoryview | None) -> None:
        """Take the next frame; None for a damaged one."""
        if self._index is None:
            return
        while self._waiting:
            path = self._waiting[0]
            start = self._index.places[path].tar
            stop = start + self._index.tree[path].size_bytes
            if start >= frame.start + frame.size_bytes and stop > start:
                break
            if data is not None:
                below = max(start, frame.start) - frame.start
                self._digest.update(data[below : max(below, stop - frame.start)])
            elif stop > start:
                self._is_whole = False
            if stop > frame.start + frame.size_bytes:
                break
            self._end(path)

    def problems(self) -> list[SnapshotProblem]:
        """Return the files that are damaged, when there are no more frames."""
        said = [
            SnapshotProblem(
                shown_path(path, self._snapshot.targets), "its SHA-256 is not the index's"
            )
            for path in self._wrong
        ]
        lost = [*self._lost, *self._waiting]
        said += [
            SnapshotProblem(
                shown_path(path, self._snapshot.targets), "its content is damaged or missing"
            )
            for path in lost
        ]
        return said

    def _end(self, path: bytes) -> None:
        assert self._index is not None
        if not self._is_whole:
            self._lost.append(path)
        elif self._digest.digest() != self._index.tree[path].digest:
            self._wrong.append(path)
        self._waiting.popleft()
        self._digest = hashlib.sha256()
        self._is_whole = True

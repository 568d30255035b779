"""Read all objects of a snapshot, and compare them with its manifest."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from bootseer.env.client.scan import tree_digest
from bootseer.env.restore.apply import Read
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.chunk_source import ChunkSource
from bootseer.env.snapshot.chunks import Chunk, content, split
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
_WRONG = "its SHA-256 is not the index's"


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

    It reads the manifest, the index, every file for its SHA-256, and every block of the squashfs.

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
    progress.total_bytes += snapshot.image_bytes
    problems: list[SnapshotProblem] = []
    folder = repository.folder_of(key, snapshot.capture)
    try:
        index = await repository.read_index(store, snapshot)
    except _DAMAGE as error:
        problems.append(SnapshotProblem(f"{folder}/index", str(error)))
    else:
        if tree_digest(index.tree) != snapshot.digest:
            problems.append(SnapshotProblem(f"{folder}/index", "its tree is not the manifest's"))
        with suppress(*_DAMAGE):  # of the image's manifest, which is reported below
            problems += await _verify_files(store, snapshot, index, progress)
    problems += await _verify_image(store, snapshot, progress)
    return problems


async def _verify_files(
    store: Store, snapshot: Snapshot, index: Index, progress: UploadProgress
) -> list[SnapshotProblem]:
    chunks = await trio.to_thread.run_sync(split, index)
    progress.total_bytes += sum(chunk.stored_bytes for chunk in chunks)
    async with ChunkSource(store, snapshot) as source:
        work = partial(_damaged_files, index, chunks, source.read, progress.add)
        damaged = await trio.to_thread.run_sync(work)
    return [
        SnapshotProblem(shown_path(path, snapshot.targets), reason)
        for path, reason in sorted(damaged.items())
    ]


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


def _damaged_files(
    index: Index, chunks: Sequence[Chunk], read: Read, count: Callable[[int], None]
) -> dict[bytes, str]:
    """Compare each file with its SHA-256, in a thread.

    Returns:
        For each file that differs, the reason.
    """
    damaged = {}
    digest = hashlib.sha256()
    for path in index.places:
        if not index.tree[path].size_bytes and index.tree[path].digest != digest.digest():
            damaged[path] = _WRONG
    for chunk, data in _contents(chunks, read):
        trio.from_thread.check_cancelled()
        for piece in chunk.pieces:
            if piece.offset == 0:
                digest = hashlib.sha256()
            if isinstance(data, memoryview):
                digest.update(data[piece.start : piece.start + piece.size_bytes])
            else:
                damaged[piece.path] = "its content is damaged or missing"
            node = index.tree[piece.path]
            is_last = piece.offset + piece.size_bytes == node.size_bytes
            if is_last and digest.digest() != node.digest:
                damaged.setdefault(piece.path, _WRONG)
        count(chunk.stored_bytes)
    return damaged


def _contents(
    chunks: Sequence[Chunk], read: Read
) -> Iterator[tuple[Chunk, memoryview | Corrupt | NotFound]]:
    """Read and decompress chunks ahead; yields the content of each, or its problem."""

    def one(chunk: Chunk) -> memoryview | Corrupt | NotFound:
        try:
            return content(chunk, read(chunk))
        except _DAMAGE as error:
            return error

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="verify")
    waiting: deque[tuple[Chunk, Future[memoryview | Corrupt | NotFound]]] = deque()
    try:
        for chunk in chunks:
            waiting.append((chunk, pool.submit(one, chunk)))
            if len(waiting) > _THREADS:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)

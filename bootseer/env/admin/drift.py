"""Run an install command again, aside, and compare its result with its snapshot."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import trio

from bootseer.env.admin.diff import PathDiff, VersionDiff, contrast, versions
from bootseer.env.admin.sandbox import Sandbox
from bootseer.env.capture.capture import CaptureResult, scan_after, scan_before
from bootseer.env.client.key import key_of
from bootseer.env.client.options import RunOptions
from bootseer.env.client.scan import TreeNode
from bootseer.env.restore.apply import Read
from bootseer.env.snapshot import repository
from bootseer.env.snapshot.chunk_source import ChunkSource
from bootseer.env.snapshot.chunks import Chunk, content, split
from bootseer.env.snapshot.group_store import find_snapshot
from bootseer.env.snapshot.index import Index
from bootseer.env.snapshot.manifest import Snapshot
from bootseer.errors import NotFound, Unavailable
from bootseer.store.api.base import Store

_THREADS = 2
_OF_A_RUN = re.compile(
    rb".*\.pyc|(.*/)?[^/]+\.dist-info/(direct_url\.json|INSTALLER)|(.*/)?conda-meta/history"
)
"""Files that tell when, and from where, something was installed: what is in them does not count."""
_RECORD = re.compile(rb"(.*/)?[^/]+\.dist-info/RECORD")


@dataclass(frozen=True, slots=True)
class DriftResult:
    """What differs between a snapshot and a new run of its command.

    Attributes:
        snapshot: that the new result was compared with.
        versions: distributions whose version differs.
        deltas: paths that differ; before is the snapshot, after the new result.
    """

    snapshot: Snapshot
    versions: Sequence[VersionDiff]
    deltas: Sequence[PathDiff]


async def drift(
    stores: Sequence[Store], run_options: RunOptions, image: str, scratch: str
) -> DriftResult:
    """Run a command as if its targets were empty, and compare with its snapshot.

    Times are not compared, nor the content of byte code and of installers' notes. The result is
    removed. Changes that the command makes outside of its targets stay, in caches for example.

    Args:
        stores: the user's, and those that groups share.
        run_options: command and targets.
        image: digest of the image around, "" for none.
        scratch: folder for the new result.

    Raises:
        NotFound: there is no snapshot of this command.
        Unavailable: the command cannot be run aside, or fails.
        BootseerError: the snapshot cannot be read.

    Cancellation: the command is ended, and its result removed.
    """
    with Sandbox(run_options, image, scratch) as sandbox:
        parts = await trio.to_thread.run_sync(sandbox.parts, abandon_on_cancel=True)
        try:
            store, snapshot = await find_snapshot(stores, key_of(parts))
        except NotFound as error:
            raise NotFound(f"{error}: `bootseer env run` captures it") from error
        if not snapshot.is_whole:
            raise Unavailable(
                f"{snapshot.key[:12]} was captured in folders that were not empty, so a sandbox "
                "cannot repeat it; compare with `bootseer env diff`"
            )
        index = await repository.read_index(store, snapshot)
        befores = [scan_before(folder) for folder in sandbox.folders]
        status = await trio.to_thread.run_sync(sandbox.run, abandon_on_cancel=True)
        if status:
            raise Unavailable(f"the command failed with {status}: there is nothing to compare")
        scan = partial(scan_after, sandbox.folders, befores, os.geteuid())
        try:
            made = await trio.to_thread.run_sync(scan)
        except OSError as error:
            raise Unavailable(f"the result of the command cannot be read: {error}") from error
        await trio.to_thread.run_sync(_read_all, made)
        deltas = await _without_records(store, snapshot, index, made, _compare(index.tree, made))
        return DriftResult(snapshot, versions(index.tree, made.tree), deltas)


def _compare(then: Mapping[bytes, TreeNode], made: CaptureResult) -> list[PathDiff]:
    return contrast(_timeless(then), _timeless(made.tree))


def _timeless(tree: Mapping[bytes, TreeNode]) -> dict[bytes, TreeNode]:
    """Return a tree without what differs in every run."""
    return {
        path: node._replace(size_bytes=0, digest=b"") if _OF_A_RUN.fullmatch(path) else node
        for path, node in tree.items()
    }


def _read_all(made: CaptureResult) -> None:
    """Hash the files that a command has made.

    Raises:
        BootseerError: a file changes, or cannot be read.
    """

    def read(path: bytes) -> None:
        for _ in made.read(path):
            pass

    files = [p for p, node in made.tree.items() if node.kind == "file" and not node.same_as]
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(read, files):
            pass
    made.finish()


async def _without_records(
    store: Store, snapshot: Snapshot, index: Index, made: CaptureResult, deltas: Sequence[PathDiff]
) -> list[PathDiff]:
    """Leave out lists of files (RECORD) that differ only in files that are not compared."""
    records = [
        delta
        for delta in deltas
        if _RECORD.fullmatch(delta.path) and delta.before is not None and delta.after is not None
    ]
    if not records:
        return list(deltas)
    chunks = await trio.to_thread.run_sync(split, index)

    def compare(read: Read) -> set[bytes]:
        return {delta.path for delta in records if is_same(delta.path, read)}

    def is_same(path: bytes, read: Read) -> bool:
        now = b"".join(bytes(piece) for piece in made.read(path))
        return _lines(_read_file(chunks, read, index.tree[path].same_as or path)) == _lines(now)

    async with ChunkSource(store, snapshot) as source:
        same = await trio.to_thread.run_sync(compare, source.read)
    return [delta for delta in deltas if delta.path not in same]


def _read_file(chunks: Sequence[Chunk], read: Read, path: bytes) -> bytes:
    """Read a file from the chunks that have pieces of it."""
    return b"".join(
        bytes(content(chunk, read(chunk))[piece.start : piece.start + piece.size_bytes])
        for chunk in chunks
        for piece in chunk.pieces
        if piece.path == path
    )


def _lines(record: bytes) -> list[bytes]:
    """Return the lines of a RECORD that are compared."""
    return sorted(
        line for line in record.splitlines() if not _OF_A_RUN.fullmatch(line.partition(b",")[0])
    )

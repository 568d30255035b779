"""Store the result of a command in both forms: squashfs and tar frames."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from bootseer.core import table
from bootseer.core.tree_rows import BLOCK_BYTES
from bootseer.env.capture.capture import CaptureResult
from bootseer.env.client.key import KeyPart, key_of
from bootseer.env.client.scan import tree_digest
from bootseer.env.snapshot import frames, manifest, repository, tar_stream
from bootseer.env.snapshot import index as tree_index
from bootseer.env.snapshot.frames import Frame
from bootseer.env.snapshot.index import ContentPlace
from bootseer.env.snapshot.manifest import MAX_FINDINGS, MAX_OUTSIDE, Finding, Snapshot, shown_path
from bootseer.env.snapshot.squashfs import find_content
from bootseer.env.snapshot.tar_stream import TarLayout
from bootseer.errors import BootseerError, Unavailable
from bootseer.image.library.upload import about_now, put
from bootseer.squashfs.mksquashfs import Start, start_plainly
from bootseer.squashfs.writer import PackOptions, pack
from bootseer.store.api.base import Data, Store, publish

_THREADS = 2
_SENDING = 2
"""Parts on their way at once; as many are in memory, and the one that is being made."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a snapshot came to be.

    Attributes:
        parts: of its key.
        targets: absolute paths.
        bases: what was in each before.
        user: name of the user who ran the command.
        node: name of the node.
        command_ms: time that the command took.
    """

    parts: tuple[KeyPart, ...]
    targets: tuple[str, ...]
    bases: tuple[str, ...]
    user: str
    node: str
    command_ms: int

    @property
    def key(self) -> str:
        """Key that the snapshot is stored under."""
        return key_of(self.parts)


async def publish_snapshot(
    store: Store,
    made: CaptureResult,
    provenance: Provenance,
    findings: Iterable[Finding],
    scratch: str,
    *,
    replace: bool = False,
    count: Callable[[int], None] = lambda size_bytes: None,
    mksquashfs: Start = start_plainly,
) -> Snapshot:
    """Store the result of a command; the manifest is written last.

    Args:
        store: of the user.
        made: the result; has its digests afterwards.
        provenance: how it came to be.
        findings: what may fail elsewhere.
        scratch: folder of this node for the squashfs, a file without a name.
        replace: replace a snapshot that is stored under the key.
        count: called with numbers of bytes of content that were stored.
        mksquashfs: starts it.

    Raises:
        Conflict: a file has changed meanwhile, or another process has published the same key.
        BootseerError: the result cannot be read or stored; nothing is published.

    Cancellation: as after an error, what was sent is removed, unless the manifest was being
    written: the snapshot may be there, and then it is complete.
    """
    if len(made.outside) > MAX_OUTSIDE:
        raise Unavailable(
            f"{len(made.outside):,} links point outside their targets, but a snapshot can list "
            f"only {MAX_OUTSIDE:,}: make the installer copy files instead"
        )
    key, capture = provenance.key, secrets.token_hex(8)
    folder = repository.folder_of(key, capture)
    is_closing = False
    try:
        with ExitStack() as opened:
            sink = _Parts(store, partial(repository.frames_object, key, capture))
            layout = await trio.to_thread.run_sync(tar_stream.plan, made.tree)
            table_rows, image = await sink.take(
                partial(_pack, made, layout, scratch, opened, sink, count, mksquashfs)
            )
            content = await trio.to_thread.run_sync(find_content, image)
            added = await put(store, image, about_now(f"environment {key}", provenance.user))
        places = {
            path: ContentPlace(*content[path], layout.places[path].content)
            for path, node in made.tree.items()
            if node.kind == "file" and not node.same_as
        }
        index = tree_index.encode(made.tree, places, made.deleted)
        check = partial(tree_index.decode, index, f"{folder}/index", made.outside)
        await trio.to_thread.run_sync(check)  # what would be refused later is not stored
        await publish(store, f"{folder}/index", index)
        encoded_frames = frames.encode(table_rows)
        await publish(store, f"{folder}/frames", encoded_frames)
        snapshot = Snapshot(
            key=key,
            parts=provenance.parts,
            targets=provenance.targets,
            bases=provenance.bases,
            capture=capture,
            digest=tree_digest(made.tree),
            image=added.digest,
            image_bytes=added.manifest.size_bytes,
            index=table.digest_of(index).hex(),
            frames=table.digest_of(encoded_frames).hex(),
            frames_bytes=sum(frame.stored_bytes for frame in table_rows),
            files=len(made.tree) - 1,
            content_bytes=made.content_bytes,
            outside=tuple(path.hex() for path in made.outside),
            findings=tuple(_all_findings(made, provenance, findings))[:MAX_FINDINGS],
            captured_ns=time.time_ns(),
            captured_by=provenance.user,
            node=provenance.node,
            command_ms=provenance.command_ms,
        )
        name, encoded = repository.manifest_object(key), snapshot.encode()
        manifest.check(encoded, name, key)
        is_closing = True
        await publish(store, name, encoded, overwrite=replace)
    except BaseException:
        with trio.move_on_after(5, shield=True), suppress(BootseerError):
            # A commit that was cut off may have happened all the same.
            if not is_closing or (await repository.read_snapshot(store, key)).capture != capture:
                await store.delete_tree(folder)
        raise
    return snapshot


def _pack(
    made: CaptureResult,
    layout: TarLayout,
    scratch: str,
    opened: ExitStack,
    sink: _Parts,
    count: Callable[[int], None],
    mksquashfs: Start,
) -> tuple[list[Frame], Path]:
    """Read all files once, and make both forms.

    Returns:
        The frames, and the path of the squashfs until `opened` is closed. It has no name in its
        folder, so that it is gone however this process ends.

    Raises:
        Conflict: something has changed.
        BootseerError: it cannot be read or written.
    """
    starts = [place.start for place in layout.places.values()]
    done = []
    with ExitStack() as opening:
        try:
            unnamed = opening.enter_context(tempfile.TemporaryFile(dir=scratch))
        except OSError as error:
            raise Unavailable(f"no file can be made in {scratch}: {error.strerror}") from error
        image = Path(f"/proc/self/fd/{unnamed.fileno()}")
        packing = PackOptions(BLOCK_BYTES, "lz4")
        with pack(image, packing, None, [unnamed.fileno()], mksquashfs) as packer:

            def pieces() -> Iterator[bytes | memoryview]:
                for piece in tar_stream.stream(made.tree, made.read):
                    packer.write(piece)
                    count(len(piece))
                    yield piece

            lengths = frames.cut(starts, layout.size_bytes)
            for frame, stored in frames.compress(pieces(), lengths, _THREADS):
                sink.write(stored)
                done.append(frame)
        made.finish()
        # Moved only now: after a cancellation, the caller must not close the file while this thread
        # writes to it.
        trio.from_thread.check_cancelled()
        opened.push(opening.pop_all())
    return done, image


class _Parts:
    """Stores in parts what a thread writes: parts are sent while others are written."""

    def __init__(self, store: Store, name: Callable[[int], str]) -> None:
        self._store = store
        self._name = name
        self._waiting = bytearray()
        self._count = 0
        self._sending = trio.CapacityLimiter(_SENDING)
        self._nursery: trio.Nursery | None = None
        self._errors: list[BootseerError] = []

    async def take(self, work: Callable[[], T]) -> T:
        """Run a function that writes to this in a thread; returns when all is sent.

        Raises:
            BootseerError: the function's, or a part cannot be stored.
        """
        results: list[T] = []
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                results.append(await trio.to_thread.run_sync(work, abandon_on_cancel=True))
                await self._send(len(self._waiting))
            except BootseerError as error:
                self._errors.insert(0, error)
                nursery.cancel_scope.cancel()
        if self._errors:
            raise self._errors[0]
        return results[0]

    def write(self, data: Data) -> None:
        """Add to the stream, in the thread."""
        trio.from_thread.check_cancelled()
        self._waiting += data
        while len(self._waiting) >= repository.PART_BYTES:
            trio.from_thread.run(self._send, repository.PART_BYTES)
            if self._errors:
                raise self._errors[0].again()

    async def _send(self, size_bytes: int) -> None:
        """Begin to send a part, when there is room for one more."""
        assert self._nursery is not None
        part = bytes(self._waiting[:size_bytes])
        del self._waiting[:size_bytes]
        sender = object()
        await self._sending.acquire_on_behalf_of(sender)
        self._nursery.start_soon(self._publish, self._name(self._count), part, sender)
        self._count += 1

    async def _publish(self, name: str, part: bytes, sender: object) -> None:
        try:
            await publish(self._store, name, part)
        except BootseerError as error:
            self._errors.append(error)
        finally:
            self._sending.release_on_behalf_of(sender)


def _all_findings(
    made: CaptureResult, provenance: Provenance, findings: Iterable[Finding]
) -> Iterator[Finding]:
    for path, kind, detail in made.findings:
        yield Finding(kind, shown_path(path, provenance.targets), detail)
    yield from findings
